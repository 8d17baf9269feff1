"""Export a network with sparse tables to MindIR: the server looks up ids and passes rows in as parameters."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore import dtype as mstype

from ..checkpoint import strict_json, tensor_file
from ..checkpoint.manifest import FolderWriter
from ..data.ragged import RaggedInput, given_names
from ..embedding.layers.embedding_cells import embedding_cells
from ..embedding.layers.embedding_group import EmbeddingGroup
from ..embedding.layers.network_tables import SparseTables
from ..embedding.planning.layout import FieldMap
from ..embedding.planning.planner import Planner
from ..embedding.planning.sparse_plan import ReadSize, TablePlan
from ..embedding.tables.spec import TableSpec
from ..embedding.tables.table import SparseTable
from ..errors import ConfigurationError
from ..features.features import Features
from ..graph.forward import PredictStep
from ..mindspore_internals.cell_structure import cells_and_names, hide, parameters_of
from ..mindspore_internals.shared_memory import Mirror, overwrite
from .published import FEATURES

_PLAIN = re.compile(r"[0-9A-Za-z@_\-./]+")
NETWORK, ABOUT = "network.mindir", "graph.json"


def export_network(
    network: nn.Cell,
    tables: SparseTables | None,
    columns: Sequence[np.ndarray],
    folder: Path,
    *,
    batch: int,
    cast: bool = False,
) -> dict[str, Any]:
    """Write ``network.mindir`` into `folder` and return the description that `ServedGraph` reads, as JSON.

    Args:
        network: network to export, in inference mode afterwards as before.
        tables: its sparse tables, or None.
        columns: one batch of its inputs as raw columns of the shapes and dtypes it takes, [batch, ...]; a column that
            is handed over with offsets [values].
        folder: an existing folder.
        batch: rows of a batch.
        cast: whether outputs are cast to float32.
    """
    fields = fields_of(tables)
    with exportable(network, tables, columns, cast=cast) as (step, inputs, sizes), plain_folder(folder) as plain:
        ms.export(step, *inputs, file_name=f"{plain}/{NETWORK}", file_format="MINDIR")
        shutil.move(f"{plain}/{NETWORK}", folder / NETWORK)
    return {
        "batch": batch,
        "shapes": [list(column.shape[1:]) for column in columns],
        "dtypes": [column.dtype.str for column in columns],
        "fields": fields.to_json(),
        "tables": sizes,
    }


@contextlib.contextmanager
def exportable(
    network: nn.Cell, tables: SparseTables | None, columns: Sequence[np.ndarray], *, cast: bool = False
) -> Iterator[tuple[nn.Cell, list[Tensor], list[dict[str, Any]]]]:
    """Give a cell that `mindspore.export` takes; its embeddings read from parameters.

    Inside, the network is in inference mode. Arguments as of `export_network`.

    Yields:
        The cell; its inputs, ids as positions in the parameters, int32; and for each table its "name", "dim" and
        "padding", with the sizes of its parameters: "size" of ``embedding.<name>.rows`` and "map_size" of
        ``embedding.<name>.places``.
    """
    fields = fields_of(tables)
    sizes = _sizes(tables, fields, columns) if tables is not None else []
    inputs = [column.astype(np.int32) if i in fields.id_columns else column for i, column in enumerate(columns)]
    step = PredictStep(network, cast=cast)
    training, syntax = network.training, ms.get_context("jit_syntax_level")
    network.set_train(False)
    try:
        with _windows_of_fixed_size(network, sizes) as windows:
            for index, window in enumerate(windows):
                step.insert_param_to_cell(f"window_{index}", window)
            yield step, list(map(Tensor, inputs)), sizes
    finally:
        network.set_train(training)
        ms.set_context(jit_syntax_level=syntax)  # an export that fails, as on a full disk, leaves it changed


def fields_of(tables: SparseTables | None) -> FieldMap:
    """Return which columns feed which sparse table."""
    return tables.planner.fields if tables is not None else FieldMap()


@contextlib.contextmanager
def plain_folder(folder: Path) -> Iterator[str]:
    """Make a temporary folder for `mindspore.export`, which refuses paths with spaces, accents and the like.

    Args:
        folder: where the exported file is to go; the temporary folder is in it if its path is plain.

    Raises:
        ConfigurationError: neither it nor a folder for temporary files can be used.
    """
    folders = dict.fromkeys([str(folder.resolve()), tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", os.getcwd()])
    plain = [parent for parent in folders if _PLAIN.fullmatch(parent)]
    for parent in plain:
        try:
            temporary = tempfile.TemporaryDirectory(dir=parent)
        except OSError:
            continue
        with temporary:
            yield temporary.name
        return
    raise ConfigurationError(
        f"MindSpore exports to paths of letters, digits and . _ - @ / only, which {folder} is not; no such folder for "
        f"temporary files can be written ({', '.join(folders)}): set TMPDIR to one"
    )


def _sizes(tables: SparseTables, fields: FieldMap, columns: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    described: list[dict[str, Any]] = [{} for _ in tables.planner.tables]
    for component in fields.components:
        # of columns read as a whole the width may be another one than when their tables were found
        ids = sum(
            columns[part.column].size if part.elements is None else len(columns[part.column]) * len(part.elements)
            for part in component.parts
        )
        for index in component.specs:
            spec = tables.planner.tables[index].spec
            described[index] = {
                "name": spec.name,
                "dim": spec.dim,
                "padding": spec.padding,
                "size": ids + 1,
                "map_size": ids + 1 if component.indirect else 0,
            }
    return described


@contextlib.contextmanager
def _windows_of_fixed_size(network: nn.Cell, described: Sequence[dict[str, Any]]) -> Iterator[list[Parameter]]:
    """Let the network's embeddings read from parameters of the described sizes; restore theirs on exit."""
    cells = [cell for cell in embedding_cells(network) if not cell.is_dense]
    before = [(cell, cell.reading, cell.indirect, cell.working_reading, cell.working_reading_map) for cell in cells]
    windows: dict[str, tuple[Parameter, Parameter | None]] = {}
    for table in described:
        rows = Parameter(
            Tensor(np.zeros((table["size"], table["dim"]), np.float32)), name=f"embedding.{table['name']}.rows"
        )
        row_map = None
        if table["map_size"]:
            blank = Tensor(np.zeros(table["map_size"]), mstype.int32)
            row_map = Parameter(blank, name=f"embedding.{table['name']}.places", requires_grad=False)
        windows[table["name"]] = (rows, row_map)
    groups = [cell for _, cell in cells_and_names(network) if isinstance(cell, EmbeddingGroup)]
    try:
        for group in groups:
            group.is_shared = False
        for cell in cells:
            rows, row_map = windows[cell.spec.name]
            cell.reading, cell.indirect = True, row_map is not None
            hide(cell, "working_reading", rows)
            if row_map is not None:
                hide(cell, "working_reading_map", row_map)
        yield [window for pair in windows.values() for window in pair if window is not None]
    finally:
        for cell, reading, indirect, rows, row_map in before:
            cell.reading, cell.indirect = reading, indirect
            hide(cell, "working_reading", rows)
            hide(cell, "working_reading_map", row_map)
        for group in groups:
            group.refresh()


def write_features(features: Features, folder: FolderWriter) -> None:
    """Write the declaration of the features and their learned statistics."""
    state = features.published_state()
    body = {"declaration": features.declaration(), "state": state["json"]}
    folder.write(f"{FEATURES}.json", [strict_json.dumps(body).encode()])
    folder.write(f"{FEATURES}.safetensors", tensor_file.blocks(state["arrays"]))


def read_features(folder: Path) -> Features:
    """Return the features that `write_features` wrote."""
    body = strict_json.parse((folder / f"{FEATURES}.json").read_bytes())
    path = folder / f"{FEATURES}.safetensors"
    features = Features.from_declaration(body["declaration"])
    features.load_state_dict({"json": body["state"], "arrays": tensor_file.parse(path.read_bytes(), str(path))})
    return features


def write_learned(state: Mapping[str, Any], folder: FolderWriter) -> None:
    """Write the present statistics of online features (`Features.published_state`) beside the weights."""
    folder.write(f"{FEATURES}.json", [strict_json.dumps(state["json"]).encode()])
    folder.write(f"{FEATURES}.safetensors", tensor_file.blocks(state["arrays"]))


class ServedGraph:
    """An exported network with empty tables.

    Args:
        folder: folder with ``network.mindir`` and ``graph.json``.

    Attributes:
        tables: name -> host table, to be filled.
        weights: name -> parameter of the network proper.
        batch: rows of one call.
        ragged: the network's inputs for each ragged column, by name.
        given: names of the columns that callers give.
        features: the declared columns that raw rows are transformed by, or None.
        activation: name of the function from the first output to the quantity of the label, or None.
    """

    def __init__(self, folder: Path) -> None:
        about = strict_json.parse((folder / ABOUT).read_bytes())
        self.about = about
        self.batch: int = about["batch"]
        ragged = about.get("ragged", {})
        self.ragged = {name: RaggedInput(tuple(suffixes), *rest) for name, (suffixes, *rest) in ragged.items()}
        self.given = given_names(about["columns"], self.ragged)
        self.features = read_features(folder) if about.get("features") else None
        self.activation: str | None = about.get("activation")
        self._cell = nn.GraphCell(ms.load(str(folder / NETWORK)))
        parameters = {parameter.name: parameter for parameter in parameters_of(self._cell)}
        self._windows, self._places, self.tables = [], [], {}
        for table in about["tables"]:
            spec = TableSpec(table["name"], table["dim"], initializer="zeros", padding=table["padding"])
            self.tables[table["name"]] = SparseTable(spec, np.zeros(0, np.float32))
            self._windows.append(Mirror(parameters.pop(f"embedding.{table['name']}.rows")))
            places = f"embedding.{table['name']}.places"
            self._places.append(Mirror(parameters.pop(places)) if table["map_size"] else None)
        self.weights = parameters
        fields = FieldMap.from_json(about["fields"])
        sizes = [ReadSize(table["size"], table["map_size"]) for table in about["tables"]]
        trainable = [False] * len(self.tables)
        self._planner = Planner(list(self.tables.values()), trainable, fields, read_sizes=sizes)

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set the parameters of the network without its tables; unknown names are ignored.

        Called on the thread of `run`.
        """
        for name, value in weights.items():
            if name in self.weights:
                overwrite(self.weights[name], value)

    def run(self, columns: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return the outputs of one call, [batch, ...] each.

        Args:
            columns: raw columns of `batch` rows, [batch, ...]; of a network without ragged columns also of fewer rows:
                the outputs of the rows behind them are those of the last one.
        """
        with contextlib.ExitStack() as stack:
            # lookup and read under one lock: the row must not pass to another id in between
            for table in self.tables.values():
                stack.enter_context(table.lock)
            changed, plan = self._planner.plan(columns, False, 1, train=False)
            for part in plan.tables:
                self._load(part, plan.sizes[part.stack])
        if not self.ragged:  # only now: each id that is looked up takes time
            changed = tuple(_filled(column, self.batch) for column in changed)
        outputs = self._cell(*(Tensor(column) for column in changed))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return tuple(output.asnumpy() for output in outputs)

    def _load(self, part: TablePlan, size: int) -> None:
        window = self._windows[part.table].array(size)
        window[0] = 0.0
        self._planner.tables[part.table].store.read_part(part.rows, window[1 : len(part.rows) + 1])
        self._windows[part.table].push()
        if part.reading_map is not None:
            self._places[part.table].array(len(part.reading_map))[:] = part.reading_map
            self._places[part.table].push()


def _filled(column: np.ndarray, rows: int) -> np.ndarray:
    """Return a column of so many rows: the last one repeated where there are fewer."""
    if len(column) == rows:
        return column
    filled = np.empty((rows, *column.shape[1:]), column.dtype)
    filled[: len(column)] = column
    filled[len(column) :] = column[-1]
    return filled
