"""Train a stack's rows inside the graph, on any device with any optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ...mindspore_internals.cell_structure import hide
from ...mindspore_internals.shared_memory import HostMirror
from ..planning.layout import ColumnElement
from ..planning.sparse_plan import TablePlan
from ..tables.table import SparseTable
from .embedding import INITIAL_SIZE, Embedding, WorkingSet
from .row_optimizer import RowOptimizer


class StackProgram(nn.Cell):
    """One stack of tables in the training graph; see `planning.layout`.

    On the host, `load` comes before every call of the program and `write_back` after it. In the graph, every step calls
    `begin` before the forward pass and `update` in place of an optimizer.
    """

    in_graph = True  # see `Bundle.in_graph`
    reader: nn.Cell | None = None  # a `host_rows.ReadRows`
    columns: nn.Cell | None = None  # a `column_reads.ColumnReads`
    # Indices into a step's inputs and gradients, counted from the end. `work_index` is an index into the result of
    # `SparseTables.begin`, counted from the start.
    positions_index = map_index = owned_index = gradient_index = -1
    work_index = 0
    params_count = 1  # length of `differentiated`

    def __init__(
        self,
        name: str,
        working_set: WorkingSet,  # read by the network's cells
        tables: dict[int, SparseTable],
        optimizer: RowOptimizer,
        trainable: bool,
        indirect: bool,  # whether a map translates id positions to row positions
    ) -> None:
        super().__init__(auto_prefix=False)
        first = next(iter(tables.values()))
        self.dim = first.spec.dim
        self.width = first.width
        self.trainable = trainable
        self.indirect = indirect
        self.has_constant_rate = optimizer.lr is not None
        self.constant_rate = Tensor(optimizer.lr or 0.0, mstype.float32)
        hide(self, "name", name)
        hide(self, "working_set", working_set)
        hide(self, "tables", tables)
        hide(self, "optimizer", optimizer)
        hide(self, "step", Parameter(Tensor([0], mstype.int32), name=f"embedding.{name}.step", requires_grad=False))
        hide(self, "rows", working_set.rows)
        hide(self, "step_map", working_set.step_map)
        self.build()

    def build(self) -> None:
        """Create the parameters and operators of this kind of program."""
        blank = np.zeros((INITIAL_SIZE, self.width), np.float32)
        hide(self, "work", Parameter(Tensor(blank), name=f"embedding.{self.name}.work", requires_grad=False))
        hide(self, "_mirror", HostMirror(self.work))

    # -- host side -----------------------------------------------------------------------------------------------

    def load(self, parts: list[TablePlan], size: int) -> None:
        """Load the chunk's rows into the graph."""
        work = self._mirror.array(size)
        table = self.tables[parts[0].table]
        work[0] = table.packed(np.zeros((1, self.dim), np.float32))[0]
        for part in parts:
            self.tables[part.table].store.read(part.rows, work[part.inside])
        self._mirror.push()

    def write_back(self, parts: list[TablePlan]) -> None:
        """Write the trained rows back to the tables."""
        work = self._mirror.pull()
        for part in parts:
            self.tables[part.table].commit(work[part.inside])

    @property
    def differentiated(self) -> list[Parameter]:
        """Parameters to differentiate; `gradient` converts their gradients."""
        return [self.rows]

    def use_reader(self) -> None:
        """Hook: let the cells read through a `host_rows.ReadRows`."""

    def use_columns(self, reads: Mapping[int, ColumnElement]) -> bool:
        """Use a `ColumnReads` for the cells in `reads`, by id(); return False if unable."""
        return False

    def vectors_of(self, cell: Embedding) -> Parameter | None:
        """Return the parameter that a `ColumnReads` sets to a cell's vectors, or None."""
        return None

    def make_room(self, step_size: int, lengths: Sequence[int]) -> None:
        """Hook: allocate `step_size` rows, and columns of the given lengths."""

    # -- graph side ----------------------------------------------------------------------------------------------

    def begin(self, positions, step_map, owned, inputs):
        """Load the rows at `positions` (int32 [n]); return the packed rows for `update`."""
        packed = ops.gather(self.work, positions, 0)
        ops.assign(self.rows, packed[:, : self.dim])
        if self.indirect:
            ops.assign(self.step_map, step_map)
        return packed

    def gradient(self, positions, packed, gradients):
        """Return the row gradients at `positions`, from the gradients of `differentiated`."""
        return gradients[0]

    def update(self, positions, packed, gradient, lr):
        """Apply one optimizer step to the rows at `positions`."""
        step, _, rate = self.next_step(lr)
        ops.scatter_update(self.work, positions, self.optimizer(packed, gradient, rate, step))

    def as_vector(self, rate):
        """Return a learning rate, float32 [] or [1], as [1]."""
        return ops.expand_dims(rate, 0) if rate.ndim == 0 else rate

    def next_step(self, lr):
        """Count an update; return (number float32 [], number int32 [1], learning rate)."""
        number = self.step + 1
        ops.assign(self.step, number)
        step = ops.reshape(ops.cast(number, mstype.float32), ())
        return step, number, self.constant_rate if self.has_constant_rate else lr
