"""Exports a network with parameters for table rows, which the caller fills."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore import dtype as mstype

from ..checkpoint.manifest import FolderWriter
from ..embedding.layers.embedding_cells import embedding_cells
from ..embedding.layers.embedding_group import EmbeddingGroup
from ..embedding.layers.network_tables import SparseTables
from ..embedding.planning.layout import Component, FieldMap, read_layout, separate_tables
from ..errors import ConfigurationError
from ..features.feature_files import declared_state, write_state
from ..features.features import Features
from ..graph.forward import ExportStep
from ..graph.padded_programs import preserve_modes
from ..mindspore_internals.cell_structure import cells_and_names, hide
from ..mindspore_internals.compilation import compile_lock
from .finite import check_state

_ACCEPTED_PATH = re.compile(r"[0-9A-Za-z@_\-./]+")
NETWORK, GRAPH_JSON = "network.mindir", "graph.json"


def program_file(batch: int) -> str:
    """Return the file name of a program with a smaller batch than ``network.mindir``."""
    return f"network-{batch}.mindir"


def export_network(
    network: nn.Cell,
    tables: SparseTables | None,
    columns: Sequence[np.ndarray],
    folder: Path,
    *,
    batch: int,
    cast: bool = False,
    file: str = NETWORK,
) -> dict[str, Any]:
    """Write ``network.mindir``; return a JSON description of it for `ServedGraph`.

    Args:
        network: network to export; its training mode is restored afterwards.
        tables: sparse tables of the network, or None.
        columns: one batch of raw input columns [batch, ...] with the network's shapes and dtypes; for lists passed with
            offsets, the concatenated values [values].
        folder: an existing folder.
        batch: batch size.
        cast: whether outputs are cast to float32.
        file: name of the file.
    """
    fields = fields_of(tables)
    specs = [] if tables is None else [table.spec for table in tables.planner.tables]
    with (
        exportable(network, tables, columns, cast=cast, stacked=True) as (step, inputs, stacks),
        plain_folder(folder) as plain,
    ):
        ms.export(step, *inputs, file_name=f"{plain}/{file}", file_format="MINDIR")
        shutil.move(f"{plain}/{file}", folder / file)
        output_names = step.output_names
    return {
        "batch": batch,
        "shapes": [list(column.shape[1:]) for column in columns],
        "dtypes": [column.dtype.str for column in columns],
        "fields": fields.to_json(),
        "dense": fields.dense_to_json(),
        "tables": [{"name": spec.name, "dim": spec.dim, "padding": spec.padding} for spec in specs],
        "stacks": stacks,
        "outputs": list(output_names),
    }


@contextlib.contextmanager
def exportable(
    network: nn.Cell,
    tables: SparseTables | None,
    columns: Sequence[np.ndarray],
    *,
    cast: bool = False,
    stacked: bool = False,
) -> Iterator[tuple[ExportStep, list[Tensor], list[dict[str, Any]]]]:
    """Yield a cell for `mindspore.export` whose embeddings read from parameters.

    The network is in inference mode inside the context. The other arguments are those of `export_network`.

    Args:
        stacked: True lets tables of equal width share a parameter (`layout.read_layout`), so that one operator can read
            several tables; False gives each table its own parameter.

    Yields:
        The cell; its inputs, with int32 positions in the parameters instead of ids; and a description of each stack of
        tables. A description has the keys "name" (of the first table), "dim", "tables", "size" (number of rows of the
        parameter ``embedding.<name>.rows``) and "map_size" (length of ``embedding.<name>.places``, or 0 if there is no
        such parameter).
    """
    fields = fields_of(tables)
    stacks = _describe_stacks(tables, fields, columns, stacked) if tables is not None else []
    inputs = [column.astype(np.int32) if i in fields.id_columns else column for i, column in enumerate(columns)]
    step = ExportStep(network, cast=cast)
    syntax = ms.get_context("jit_syntax_level")
    try:
        with (
            compile_lock,
            preserve_modes(network),
            _fixed_size_parameters(network, stacks, stacked) as parameters,
        ):
            network.set_train(False)
            for index, parameter in enumerate(parameters):
                step.insert_param_to_cell(f"window_{index}", parameter)
            yield step, list(map(Tensor, inputs)), stacks
    finally:
        ms.set_context(jit_syntax_level=syntax)  # MindSpore does not restore it if an export fails


def fields_of(tables: SparseTables | None) -> FieldMap:
    """Return the map from input columns to sparse tables."""
    return tables.planner.fields if tables is not None else FieldMap()


@contextlib.contextmanager
def plain_folder(folder: Path) -> Iterator[str]:
    """Create a temporary folder whose path `mindspore.export` accepts.

    The temporary folder is inside `folder` if the path of `folder` has only letters, digits and . _ - @ /.

    Raises:
        ConfigurationError: no such folder can be written.
    """
    folders = dict.fromkeys([str(folder.resolve()), tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", os.getcwd()])
    plain = [parent for parent in folders if _ACCEPTED_PATH.fullmatch(parent)]
    for parent in plain:
        try:
            temporary = tempfile.TemporaryDirectory(dir=parent)
        except OSError:
            continue
        with temporary:
            yield temporary.name
        return
    raise ConfigurationError(
        f"MindSpore exports only to paths of letters, digits and . _ - @ /, unlike {folder}; and none of "
        f"{', '.join(folders)} is such a path that can be written: set TMPDIR to one"
    )


def _describe_stacks(
    tables: SparseTables, fields: FieldMap, columns: Sequence[np.ndarray], stacked: bool
) -> list[dict[str, Any]]:
    specs = [table.spec for table in tables.planner.tables]
    layout = read_layout(fields.components, specs) if stacked else separate_tables(fields.components)
    stacks = []
    for stack in layout.stacks:
        bundle = layout.bundles[stack.bundle]
        size = 1 + sum(_ids_read(fields.components[index], columns) for index in bundle.components)  # row 0 is padding
        first, names = specs[stack.tables[0]], [specs[table].name for table in stack.tables]
        sizes = {"size": size, "map_size": size if bundle.indirect else 0}
        stacks.append({"name": first.name, "dim": first.dim, "tables": names, **sizes})
    return stacks


def _ids_read(component: Component, columns: Sequence[np.ndarray]) -> int:
    # The width of a column that is read as a whole may differ from that of the first batch.
    return sum(
        columns[part.column].size if part.elements is None else len(columns[part.column]) * len(part.elements)
        for part in component.parts
    )


@contextlib.contextmanager
def _fixed_size_parameters(
    network: nn.Cell, stacks: Sequence[dict[str, Any]], stacked: bool
) -> Iterator[list[Parameter]]:
    """Make embeddings read from parameters of fixed sizes until the context ends."""
    cells = [cell for cell in embedding_cells(network) if not cell.is_dense]
    attributes = ("working_set", "working_reading", "working_reading_map")
    saved = [(cell, cell.reading, cell.indirect, [getattr(cell, name) for name in attributes]) for cell in cells]
    parameters: list[Parameter] = []
    parameters_of_table: dict[str, tuple[Parameter, Parameter | None]] = {}
    for stack in stacks:
        zeros = Tensor(np.zeros((stack["size"], stack["dim"]), np.float32))
        rows, row_map = Parameter(zeros, name=f"embedding.{stack['name']}.rows"), None
        if stack["map_size"]:
            blank = Tensor(np.zeros(stack["map_size"]), mstype.int32)
            row_map = Parameter(blank, name=f"embedding.{stack['name']}.places", requires_grad=False)
        parameters += [rows] if row_map is None else [rows, row_map]
        parameters_of_table |= dict.fromkeys(stack["tables"], (rows, row_map))
    groups = [cell for _, cell in cells_and_names(network) if isinstance(cell, EmbeddingGroup)]
    try:
        for cell in cells:
            rows, row_map = parameters_of_table[cell.spec.name]
            cell.reading, cell.indirect = True, row_map is not None
            hide(cell, "working_set", rows)  # `EmbeddingGroup.refresh` compares this attribute
            hide(cell, "working_reading", rows)
            if row_map is not None:
                hide(cell, "working_reading_map", row_map)
        for group in groups:
            group.refresh()
            group.is_shared = group.is_shared and stacked
        yield parameters
    finally:
        for cell, reading, indirect, values in saved:
            cell.reading, cell.indirect = reading, indirect
            for name, value in zip(attributes, values, strict=True):
                hide(cell, name, value)
        for group in groups:
            group.refresh()


def write_features(features: Features, folder: FolderWriter) -> None:
    """Write the features' declaration and learned state."""
    check_state(features.published_state())
    write_state(declared_state(features), folder)
