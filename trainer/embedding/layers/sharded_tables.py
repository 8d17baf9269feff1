"""The tables of a network whose rows are divided among processes.

Before a call that trains, the owner of each distinct row gives it, with the optimizer's columns. Then every process has
the rows of the call, applies the same updates to them, their gradients added up with the dense ones, and keeps those it
owns. `planning.sharded_planner` has the exchange of ids before that. All of it runs on the thread that runs graphs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...mindspore_internals.cell_structure import hide
from ..planning.layout import FieldMap, Layout
from ..planning.planner import Planner
from ..planning.sharded_planner import ShardedPlanner, ShardedTable, exchange
from ..planning.sharded_state import gather_table, own_states, renumbered
from ..planning.sparse_plan import SparsePlan, TablePlan
from ..tables.table_state import arrays_of
from .host_rows import HostStackProgram
from .network_tables import SparseTables
from .row_optimizer import RowOptimizer
from .stack_program import StackProgram


class CallBuffer:
    """The rows of a call in memory, as `HostRows` reads and trains them: row p stands at position p.

    Attributes:
        rows: float32 [size, width].
    """

    is_frozen = False  # no snapshot is taken in the middle of a call

    def __init__(self, width: int) -> None:
        self.width = width
        self.lock = contextlib.nullcontext()
        self.rows = np.zeros((1, width), np.float32)

    @property
    def address(self) -> int:
        """Address of the rows in memory."""
        return self.rows.__array_interface__["data"][0]


class CallStackProgram(HostStackProgram):
    """A `HostStackProgram` whose kernels train the rows of a call in the buffer they were gathered in."""

    def stores(self) -> dict[int, Any]:
        """Return the rows of the call, as of one table."""
        hide(self, "buffer", CallBuffer(self.width))
        return {0: self.buffer}

    def load(self, parts: list[TablePlan], size: int) -> None:
        """Put the chunk's rows at their positions."""
        buffer = self.buffer
        if len(buffer.rows) != size:
            buffer.rows = np.zeros((size, buffer.width), np.float32)
            self.host_rows.choose([TablePlan(0, np.arange(1, size, dtype=np.int32), parts[0].stack)], size)
        for part in parts:
            self.tables[part.table].store.read(part.rows, buffer.rows[part.start : part.start + len(part.rows)])

    def write_back(self, parts: list[TablePlan]) -> None:
        """Let the tables keep the trained rows they own."""
        for part in parts:
            self.tables[part.table].commit(self.buffer.rows[part.start : part.start + len(part.rows)])


class ShardedTables(SparseTables):
    """`SparseTables` of which every process keeps a part of the rows. All of them call its methods, in one order."""

    def _planned_tables(self) -> list[Any]:
        # the admission sketches that all processes began with; each goes on counting its own ids only
        hide(self, "_sketches", {})
        return [ShardedTable(table) for table in self.tables.values()]

    def _make_planner(self, trainable: list[bool], fields: FieldMap, accumulate: int, layout: Layout) -> Planner:
        return ShardedPlanner(self.group, self.planned, trainable, fields, accumulate, layout=layout)

    def _program_for(self, optimizer: RowOptimizer) -> type[StackProgram]:
        kind = super()._program_for(optimizer)
        return CallStackProgram if kind is HostStackProgram else kind

    @property
    def rows(self) -> int:
        """Number of rows of all tables in all processes."""
        return self._total(len(table) for table in self.tables.values()) + len(self.tables)

    def changed(self, consumer: str) -> int:
        """See `SparseTables.changed`; of all processes."""
        return self._total([super().changed(consumer)])

    def _total(self, counts: Iterable[int]) -> int:
        return int(self.group.total(np.array([sum(counts)], np.int64))[0])

    def load(self, plan: SparsePlan) -> None:
        """See `SparseTables.load`."""
        if plan.train:
            parts = [(self.planned[part.table], part.rows) for part in plan.tables]
            counts = np.array([table.row_counts(rows) * table.width for table, rows in parts])
            own = [table.own_values(rows).reshape(-1) for table, rows in parts]
            for (table, rows), given in zip(parts, exchange(self.group, own, counts), strict=True):
                table.receive_values(rows, given)
        super().load(plan)

    # -- snapshots -----------------------------------------------------------------------------------------------

    def take(self, consumer: str = "snapshot", *, full: bool = True, folder: Path | None = None) -> dict[str, Any]:
        """Return on rank 0 what `SparseTables.take` of one process returns, and a state of no tables on the others.

        The processes give their rows block by block while all of them wait.

        Args:
            consumer: see there.
            full: see there; the same on all processes.
            folder: where rank 0 joins large arrays, in files without a name.
        """
        own = super().take(consumer, full=full)
        whole: dict[str, Any] = {"json": {}, "arrays": {}}
        for name, table in self.tables.items():
            before = self._sketches.get(name)
            arrays, json = gather_table(
                self.group, table, arrays_of(own["arrays"], name), own["json"][name], before, folder
            )
            if self.group.is_main:
                whole["json"][name] = json
                whole["arrays"] |= {f"{name}/{key}": value for key, value in arrays.items()}
        return whole

    def restore(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """See `SparseTables.restore`; each process takes its part."""
        super().restore(own_states(self.tables, states))
        sketches = {name: table.admission.sketch for name, table in self.tables.items()}
        hide(self, "_sketches", {name: sketch.copy() for name, sketch in sketches.items() if sketch is not None})
        return renumbered(self.group, self.tables, states)
