"""The tables of a network, sharded over processes.

In every step each process receives the weights of its own rows from their owners and sends their gradients back; the
only owners apply the row optimizer (`owner_rows`, `planning.owner_planner`). Operators written in Python do this; a
device that has none (`Device.runs_python`) trains sparse tables in one process.

Ids are planned and exchanged on the thread that prepares chunks, over a `Channel`; all else runs on the thread of the
graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, ops
from mindspore import dtype as mstype

from ...distributed.all_to_all import Channel
from ...errors import ConfigurationError
from ...mindspore_internals import device
from ...mindspore_internals.cell_structure import hide
from ..planning.layout import FieldMap, Layout
from ..planning.owner_planner import OwnerPlanner
from ..planning.planner import Planner
from ..planning.sharded_state import gather_table, joined_json, own_part, own_states, renumbered
from ..planning.sharded_table import OwnedTable
from ..planning.sparse_plan import SparsePlan
from ..tables.table_state import arrays_of
from .network_tables import SparseTables
from .owner_rows import OwnerStackProgram
from .row_optimizer import RowOptimizer
from .stack_program import StackProgram


class ShardedTables(SparseTables):
    """`SparseTables` sharded over processes, which call its methods in one order."""

    def _decide(self, optimizers: Sequence[RowOptimizer | None], accumulate: int) -> None:
        self.by_owner = device.current().runs_python
        if self.tables and not self.by_owner:
            place = f"{self.group.size} processes on {device.current().name}"
            raise ConfigurationError(
                f"several processes train sparse tables on the CPU only; received {', '.join(self.tables)} in {place}: "
                "choose device='cpu', one process or mode='dense'"
            )
        token = Parameter(Tensor(np.zeros(1, np.float32)), name="embedding.exchange", requires_grad=False)
        hide(self, "token", token)
        hide(self, "channel", Channel(self.group))  # channel of the thread that prepares chunks; not open yet

    def _planned_tables(self) -> list[Any]:
        # The admission sketches that all processes started with; each then counts only its own ids.
        hide(self, "_sketches", {})
        return [OwnedTable(table) for table in self.tables.values()]

    def _make_planner(self, trainable: list[bool], fields: FieldMap, accumulate: int, layout: Layout) -> Planner:
        return OwnerPlanner(self.group, self.planned, trainable, fields, accumulate, layout=layout)

    def _program_for(self, optimizer: RowOptimizer) -> Callable[..., StackProgram]:
        return functools.partial(OwnerStackProgram, group=self.group, token=self.token)

    @property
    def rows(self) -> int:
        """Number of rows in all tables of all processes."""
        return self._total(len(table) for table in self.tables.values()) + len(self.tables)

    def changed(self, consumer: str) -> int:
        """Return the rows trained in all processes since the consumer's last state."""
        return self._total([super().changed(consumer)])

    def _total(self, counts: Iterable[int]) -> int:
        return int(self.group.total(np.array([sum(counts)], np.int64))[0])

    def load(self, plan: SparsePlan) -> None:
        """Load the rows of a plan after exchanging them with their owners."""
        for program, own_exchange in zip(self.programs, plan.exchanges, strict=bool(plan.exchanges)):
            program.host_rows.follow(own_exchange)
        super().load(plan)

    # -- graph side ----------------------------------------------------------------------------------------------

    def sums_at_owners(self, work, gradients):
        """Return the row gradients, summed over processes, of the rows trained here.

        They are at the end of `gradients`. Call it only if `by_owner`.
        """
        sums = ()
        for program in self.programs:
            if program.trainable:
                sums += (program.sum_at_owners(work[program.kept_at][1], gradients[program.gradient_at]),)
        return sums

    def squares(self, work, sums):
        """Return the sum of the squares of this process's part of `sums_at_owners`."""
        total = ops.zeros((), mstype.float32)
        for program in self.programs:
            if program.trainable:
                total += program.squares(work[program.kept_at][1], sums[program.gradient_at])
        return total

    # -- snapshots -----------------------------------------------------------------------------------------------

    def take(
        self, consumer: str = "snapshot", *, folder: Path | None = None, own_rows: bool = False, **options: Any
    ) -> dict[str, Any]:
        """Return `SparseTables.take` of one process on rank 0; elsewhere an empty state.

        The processes, whose arguments are the same, send their rows block by block while all of them wait. Rank 0 joins
        large arrays in unnamed files of `folder`. With `own_rows` they send counters only: every process returns the
        arrays of its own rows, as `Frozen`. Joined in the order of ranks they are the arrays of all, with the sketches
        stacked.
        """
        own = super().take(consumer, **options)
        json = joined_json(self.group, own["json"])
        arrays: dict[str, Any] = {}
        for name, table in self.tables.items():
            part = own_part(table, arrays_of(own["arrays"], name), self._sketches.get(name))
            part = part if own_rows else gather_table(self.group, part, folder)
            arrays |= {f"{name}/{key}": value for key, value in part.items()}
        return {"json": json if own_rows or self.group.is_main else {}, "arrays": arrays}

    def restore(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Restore this process's part of the rows of saved states."""
        super().restore(own_states(self.tables, states))
        sketches = {name: table.admission.sketch for name, table in self.tables.items()}
        hide(self, "_sketches", {name: sketch.copy() for name, sketch in sketches.items() if sketch is not None})
        return renumbered(self.group, self.tables, states)
