"""`ServedGraph`: an exported network with its tables, as a server runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ..checkpoint import strict_json
from ..data.ragged import RaggedInput, given_names
from ..embedding.planning.fixed_reads import FixedReads
from ..embedding.planning.layout import FieldMap, read_layout
from ..embedding.tables.spec import TableSpec
from ..embedding.tables.table import SparseTable
from ..mindspore_internals.cell_structure import parameters_of
from ..mindspore_internals.shared_memory import Mirror, overwrite
from .graph_export import ABOUT, NETWORK, read_features


class ServedGraph:
    """An exported network with empty tables.

    One thread at a time calls it, and changes no table meanwhile.

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
        specs = [
            TableSpec(table["name"], table["dim"], initializer="zeros", padding=table["padding"])
            for table in about["tables"]
        ]
        self.tables = {spec.name: SparseTable(spec, np.zeros(0, np.float32)) for spec in specs}
        self._sizes = [(stack["size"], stack["map_size"]) for stack in about["stacks"]]
        self._windows = [Mirror(parameters.pop(f"embedding.{stack['name']}.rows")) for stack in about["stacks"]]
        self._maps = [
            Mirror(parameters.pop(f"embedding.{stack['name']}.places")) if stack["map_size"] else None
            for stack in about["stacks"]
        ]
        self.weights = parameters
        fields = FieldMap.from_json(about["fields"])
        fields.names = tuple(about["columns"])
        self._reads = FixedReads(list(self.tables.values()), fields, read_layout(fields.components, specs))

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
        windows, maps = [], []
        for window, row_map, (size, map_size) in zip(self._windows, self._maps, self._sizes, strict=True):
            windows.append(window.array(size))
            maps.append(None if row_map is None else row_map.array(map_size))
        changed = self._reads(columns, windows, maps)
        for mirror in (*self._windows, *self._maps):
            if mirror is not None:
                mirror.push()
        if not self.ragged:  # only now: each id that is looked up takes time
            changed = [_filled(column, self.batch) for column in changed]
        outputs = self._cell(*(Tensor(column) for column in changed))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return tuple(output.asnumpy() for output in outputs)


def _filled(column: np.ndarray, rows: int) -> np.ndarray:
    """Return a column of so many rows: the last one repeated where there are fewer."""
    if len(column) == rows:
        return column
    filled = np.empty((rows, *column.shape[1:]), column.dtype)
    filled[: len(column)] = column
    filled[len(column) :] = column[-1]
    return filled
