"""Read the vectors of many cells of one column each with one operator.

A cell that gathers its own vectors needs a slice of the batch, a gather, and an operator in the backward pass. With a
cell for each of 26 columns, these operators take longer than the rest of the network. Here one operator reads the
step's rows and fills one parameter per cell, and each cell returns its parameter. In the backward pass, one operator
sums the parameters' gradients by row. This needs cells that receive a column unchanged; `tracing` finds them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ...mindspore_internals.cell_structure import hide
from ...mindspore_internals.python_operators import operator
from ...mindspore_internals.shared_memory import HostMirror
from ..planning.layout import ColumnElement
from ..tables import kernels
from .host_rows import HostRows


class ColumnReads(nn.Cell):
    """Reads the vectors of a stack's cells in a training step."""

    def __init__(self, name: str, rows: HostRows, dim: int, reads: Sequence[ColumnElement]) -> None:
        super().__init__(auto_prefix=False)
        self.inputs = tuple(sorted({read.column for read in reads}))
        blank = Tensor(np.zeros((1, dim), np.float32))
        names = [f"embedding.{name}.vectors.{index}" for index in range(len(reads))]
        parameters = tuple(Parameter(blank.copy(), name=name, requires_grad=True) for name in names)
        hide(self, "parameters", parameters)
        hide(self, "_mirrors", [HostMirror(parameter) for parameter in parameters])
        hide(self, "_columns", [read.column for read in reads])
        hide(self, "_rows", rows)
        hide(self, "_gather", kernels.gather.ready())
        hide(self, "_add", kernels.add_rows.ready())
        cells_of = [[i for i, read in enumerate(reads) if read.column == column] for column in self.inputs]
        hide(self, "_cells_of", cells_of)  # indices of the cells that read each input
        hide(self, "_elements_of", [[reads[cell].element for cell in cells] for cells in cells_of])
        columns, count = len(self.inputs), len(reads)
        hide(self, "dim", dim)
        self.assign, self.map = ops.Assign(), ops.HyperMap()
        self.read = operator(
            self._read, lambda *shapes: ((shapes[2][0], dim),) * count, inputs=2 + columns, outputs=count
        )
        self.add_up = operator(self._add_up, lambda *shapes: (shapes[0][0], dim), inputs=1 + columns + count)

    def make_room(self, rows: Sequence[int]) -> None:
        """Allocate the vectors of a batch; `rows` is the number of rows of each column."""
        for mirror, column in zip(self._mirrors, self._columns, strict=True):
            if mirror.parameter.shape[0] != rows[column]:
                mirror.array(rows[column])

    def _positions(self, ids: Sequence[np.ndarray]) -> np.ndarray:
        """Return the positions of all cells, int32 [cells, batch]."""
        positions = np.empty((len(self.parameters), len(ids[0])), np.int32)
        for column, cells, elements in zip(ids, self._cells_of, self._elements_of, strict=True):
            positions[cells] = column.reshape(len(column), -1).T[elements]
        return positions

    def _read(self, positions: np.ndarray, token: np.ndarray, *ids: np.ndarray) -> tuple[np.ndarray, ...]:
        cells = self._positions(ids)
        vectors = np.empty((cells.size, self.dim), np.float32)
        self._gather(self._rows.read(positions), cells.reshape(-1), vectors, 0)
        return tuple(vectors.reshape(*cells.shape, self.dim))

    def _add_up(self, positions: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
        columns = len(self.inputs)
        sums = np.zeros((len(positions), self.dim), np.float32)
        for cell, gradients in zip(self._positions(arrays[:columns]), arrays[columns:], strict=True):
            self._add(cell, gradients, sums)
        sums[0] = 0  # padding is not trained
        return sums

    # -- graph side ----------------------------------------------------------------------------------------------

    def ids_of(self, inputs):
        """Return the step's input columns that the cells read."""
        ids = ()
        for column in self.inputs:
            ids += (inputs[column],)
        return ids

    def fill(self, positions, token, ids):
        """Read the rows at `positions` and set the cells' vectors."""
        self.map(self.assign, self.parameters, self.read(positions, token, *ids))

    def sums(self, positions, ids, gradients):
        """Sum the vectors' gradients by row: float32 [n, dim] for `positions`."""
        return self.add_up(positions, *ids, *self.map(self._as_float, gradients))

    def _as_float(self, gradient):
        return ops.cast(gradient, mstype.float32)
