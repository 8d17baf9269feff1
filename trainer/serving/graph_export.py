"""A network with sparse tables as MindIR: ids stay outside, rows come in through parameters that a server fills."""

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

_PLAIN = re.compile(r"[0-9A-Za-z@_\-./]+")
NETWORK, ABOUT, FEATURES = "network.mindir", "graph.json", "features"


def export_network(
    network: nn.Cell,
    tables: SparseTables | None,
    columns: Sequence[np.ndarray],
    folder: Path,
    *,
    batch: int,
    cast: bool = False,
) -> dict[str, Any]:
    """Write ``network.mindir`` into `folder` and return what `ServedGraph` has to know, as JSON.

    Args:
        network: network to export, in inference mode afterwards as before.
        tables: its sparse tables, or None.
        columns: one batch of its inputs as raw columns of the shapes and dtypes it takes, [batch, ...]; a column that
            is handed over with offsets [values].
        folder: an existing folder.
        batch: rows of a batch.
        cast: whether outputs are cast to float32.
    """
    fields = tables.planner.fields if tables is not None else FieldMap()
    about: dict[str, Any] = {
        "batch": batch,
        "shapes": [list(column.shape[1:]) for column in columns],
        "dtypes": [column.dtype.str for column in columns],
        "fields": fields.to_json(),
        "tables": _sizes(tables, fields, columns) if tables is not None else [],
    }
    inputs = [column.astype(np.int32) if i in fields.id_columns else column for i, column in enumerate(columns)]
    step = PredictStep(network, cast=cast)
    training, syntax = network.training, ms.get_context("jit_syntax_level")
    network.set_train(False)
    try:
        with _windows_of_fixed_size(network, about["tables"]) as windows:
            for index, window in enumerate(windows):
                step.insert_param_to_cell(f"window_{index}", window)
            with plain_folder(folder) as plain:
                ms.export(step, *map(Tensor, inputs), file_name=f"{plain}/{NETWORK}", file_format="MINDIR")
                shutil.move(f"{plain}/{NETWORK}", folder / NETWORK)
    finally:
        network.set_train(training)
        ms.set_context(jit_syntax_level=syntax)  # an export that fails, as on a full disk, leaves it changed
    return about


@contextlib.contextmanager
def plain_folder(folder: Path) -> Iterator[str]:
    """Make a temporary folder that `mindspore.export` takes: it refuses paths with spaces, accents and the like.

    Args:
        folder: where the exported file is to go; the temporary folder is in it if its path is plain.

    Raises:
        ConfigurationError: neither it nor a folder for temporary files can be used.
    """
    places = dict.fromkeys([str(folder.resolve()), tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", os.getcwd()])
    plain = [place for place in places if _PLAIN.fullmatch(place)]
    for place in plain:
        try:
            made = tempfile.TemporaryDirectory(dir=place)
        except OSError:
            continue
        with made:
            yield made.name
        return
    raise ConfigurationError(
        f"MindSpore exports to paths of letters, digits and . _ - @ / only, which {folder} is not; no such folder for "
        f"temporary files can be written ({', '.join(places)}): set TMPDIR to one"
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
    """Let the network's cells read from parameters of the described sizes, and give them theirs back afterwards."""
    cells = [cell for cell in embedding_cells(network) if not cell.is_dense]
    before = [(cell, cell.reading, cell.indirect, cell.working_reading, cell.working_reading_map) for cell in cells]
    windows: dict[str, tuple[Parameter, Parameter | None]] = {}
    for one in described:
        rows = Parameter(Tensor(np.zeros((one["size"], one["dim"]), np.float32)), name=f"embedding.{one['name']}.rows")
        places = None
        if one["map_size"]:
            blank = Tensor(np.zeros(one["map_size"]), mstype.int32)
            places = Parameter(blank, name=f"embedding.{one['name']}.places", requires_grad=False)
        windows[one["name"]] = (rows, places)
    groups = [cell for _, cell in cells_and_names(network) if isinstance(cell, EmbeddingGroup)]
    try:
        for group in groups:
            group.is_shared = False
        for cell in cells:
            rows, places = windows[cell.spec.name]
            cell.reading, cell.indirect = True, places is not None
            hide(cell, "working_reading", rows)
            if places is not None:
                hide(cell, "working_reading_map", places)
        yield [window for pair in windows.values() for window in pair if window is not None]
    finally:
        for cell, reading, indirect, rows, places in before:
            cell.reading, cell.indirect = reading, indirect
            hide(cell, "working_reading", rows)
            hide(cell, "working_reading_map", places)
        for group in groups:
            group.refresh()


def write_features(features: Features, folder: FolderWriter) -> None:
    """Write the declaration of the features and what they have learned."""
    state = features.state_dict()
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


class ServedGraph:
    """An exported network with empty tables.

    Args:
        folder: folder with ``network.mindir`` and ``graph.json``.

    Attributes:
        tables: name -> host table, to be filled.
        weights: name -> parameter of the network proper.
        batch: rows of one call.
        ragged: what the network takes of ragged columns, by name.
        given: names of the columns that callers give.
        features: the declared columns that raw rows are transformed by, or None.
        activation: name of what turns the first output into the quantity that is compared with the label, or None.
    """

    def __init__(self, folder: Path) -> None:
        about = strict_json.parse((folder / ABOUT).read_bytes())
        self.about = about
        self.batch: int = about["batch"]
        self.ragged = {name: RaggedInput(tuple(made), *rest) for name, (made, *rest) in about.get("ragged", {}).items()}
        self.given = given_names(about["columns"], self.ragged)
        self.features = read_features(folder) if about.get("features") else None
        self.activation: str | None = about.get("activation")
        self._cell = nn.GraphCell(ms.load(str(folder / NETWORK)))
        parameters = {parameter.name: parameter for parameter in parameters_of(self._cell)}
        self._windows, self._places, self.tables = [], [], {}
        for one in about["tables"]:
            spec = TableSpec(one["name"], one["dim"], initializer="zeros", padding=one["padding"])
            self.tables[one["name"]] = SparseTable(spec, np.zeros(0, np.float32))
            self._windows.append(Mirror(parameters.pop(f"embedding.{one['name']}.rows")))
            places = f"embedding.{one['name']}.places"
            self._places.append(Mirror(parameters.pop(places)) if one["map_size"] else None)
        self.weights = parameters
        fields = FieldMap.from_json(about["fields"])
        sizes = [ReadSize(one["size"], one["map_size"]) for one in about["tables"]]
        trainable = [False] * len(self.tables)
        self._planner = Planner(list(self.tables.values()), trainable, fields, read_sizes=sizes)

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set the parameters of the network proper; names it does not have are ignored. On the thread of `run`."""
        for name, value in weights.items():
            if name in self.weights:
                overwrite(self.weights[name], value)

    def run(self, columns: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return the outputs of one call for exactly `batch` rows of raw columns, [batch, ...] each."""
        with contextlib.ExitStack() as stack:
            # between finding out whose row it is and reading it, nobody may give it to another id
            for table in self.tables.values():
                stack.enter_context(table.lock)
            changed, plan = self._planner.plan(columns, False, 1, train=False)
            for part in plan.tables:
                self._load(part, plan.sizes[part.stack])
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
