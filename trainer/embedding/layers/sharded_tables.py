"""The tables of a network, sharded over processes.

In every step each process receives the weights of the rows that it reads from their owners, and sends the gradients
back. Only owners apply the row optimizer (`owner_rows`, `planning.owner_planner`). These exchanges need operators
written in Python; a device without them (`Device.runs_python`) trains sparse tables in one process only.

Ids are planned and exchanged on the thread that prepares chunks, over a `Channel`. Everything else runs on the graph
thread.
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
    """`SparseTables` over several processes, which call its methods in the same order."""

    def _configure_exchange(self, optimizers: Sequence[RowOptimizer | None], accumulate: int) -> None:
        self.by_owner = device.current().runs_python
        if self.tables and not self.by_owner:
            where = f"{self.group.size} processes on {device.current().name}"
            raise ConfigurationError(
                f"several processes train sparse tables on the CPU only; received {', '.join(self.tables)} in {where}: "
                "choose device='cpu', one process or mode='dense'"
            )
        token = Parameter(Tensor(np.zeros(1, np.float32)), name="embedding.exchange", requires_grad=False)
        hide(self, "token", token)
        hide(self, "channel", Channel(self.group))  # used by the preparing thread; not open yet

    def _planned_tables(self) -> list[Any]:
        # Admission sketches that all processes restored; from then on each process counts only its own ids.
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

    def count_changed(self, consumer: str) -> int:
        """Return how many rows all processes trained since the consumer's last state."""
        return self._total([super().count_changed(consumer)])

    def _total(self, counts: Iterable[int]) -> int:
        return int(self.group.total(np.array([sum(counts)], np.int64))[0])

    def load(self, plan: SparsePlan) -> None:
        """Load the rows of a plan; the steps of a training plan exchange them with owners."""
        for program, exchange in zip(self.programs, plan.exchanges, strict=bool(plan.exchanges)):
            program.host_rows.set_exchange(exchange)
        super().load(plan)

    # -- graph side ----------------------------------------------------------------------------------------------

    def sums_at_owners(self, work, gradients):
        """Return the gradients of this process's rows, summed over all processes.

        `gradients` ends with this process's row gradients. Call it only if `by_owner`.
        """
        sums = ()
        for program in self.programs:
            if program.trainable:
                sums += (program.sum_at_owners(work[program.work_index][1], gradients[program.gradient_index]),)
        return sums

    def squares(self, work, sums):
        """Return the sum of the squares of this process's part of `sums_at_owners`."""
        total = ops.zeros((), mstype.float32)
        for program in self.programs:
            if program.trainable:
                total += program.squares(work[program.work_index][1], sums[program.gradient_index])
        return total

    # -- snapshots -----------------------------------------------------------------------------------------------

    def take(
        self, consumer: str = "snapshot", *, folder: Path | None = None, own_rows: bool = False, **options: Any
    ) -> dict[str, Any]:
        """Return the state of whole tables on rank 0, and an empty state elsewhere.

        The state has the form of `SparseTables.take`. All processes call this method with the same arguments and wait
        until all rows are sent, block by block. Rank 0 joins large arrays in unnamed files in `folder`.

        With `own_rows` the processes exchange only counters, and each returns the arrays of its own rows, as `Frozen`.
        Concatenated in rank order, they are the arrays of whole tables, in which a sketch has a leading rank axis.
        """
        state = super().take(consumer, **options)
        json = joined_json(self.group, state["json"])
        arrays: dict[str, Any] = {}
        for name, table in self.tables.items():
            part = own_part(table, arrays_of(state["arrays"], name), self._sketches.get(name))
            part = part if own_rows else gather_table(self.group, part, folder)
            arrays |= {f"{name}/{key}": value for key, value in part.items()}
        return {"json": json if own_rows or self.group.is_main else {}, "arrays": arrays}

    def restore(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Restore this process's part of the rows of saved states."""
        super().restore(own_states(self.tables, states))
        sketches = {name: table.admission.sketch for name, table in self.tables.items()}
        hide(self, "_sketches", {name: sketch.copy() for name, sketch in sketches.items() if sketch is not None})
        return renumbered(self.group, self.tables, states)
