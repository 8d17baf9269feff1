"""The network's sparse tables within a run: which columns feed them, and what is done to a chunk before the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mindspore import nn

from ..distributed.group import SINGLE, Group
from ..embedding import open_rows
from ..embedding.delta_policy import DeltaPolicy
from ..embedding.saved_tables import check_states
from ..embedding.sharded_tables import ShardedTables
from ..embedding.tables import SparseTables
from ..state import Stateful
from .as_columns import Columns
from .chunk import BatchGroup, ChunkTransform


class TableReader(ChunkTransform):
    """Turns ids that are only read into positions; unknown ones get the default row.

    Args:
        tables: the tables as the programs see them.
    """

    def __init__(self, tables: SparseTables) -> None:
        self.tables = tables

    def prepare(self, group: BatchGroup) -> tuple[Columns, Any]:
        """Return the columns with positions in place of ids, and the plan of the rows to read."""
        columns, stacked, batches, *_, now = group
        columns, plan = self.tables.planner.plan(columns, stacked, batches, train=False, now=now)
        return (*columns, *plan.inputs), plan


class ShardedReader(TableReader):
    """The same where the rows are divided among processes: all of them read a batch, or stand by, at the same time."""

    on_graph_thread = True

    def stand_by(self) -> None:
        """Take part in what the others read."""
        self.tables.planner.stand_by()


class TableFeed(ChunkTransform, Stateful):
    """Prepares chunks for sparse tables to be trained.

    Attributes:
        tables: the tables as the programs see them.
        reading: the transform for programs that only read them.
    """

    def __init__(self, tables: SparseTables) -> None:
        self.tables = tables
        self.reading = (TableReader if tables.group.size == 1 else ShardedReader)(tables)
        self.delta_policy = DeltaPolicy(tables)

    @classmethod
    def find(
        cls,
        network: nn.Cell,
        sample: Columns,
        names: tuple[str, ...],
        optimizer: nn.Cell | None,
        accumulate: int,
        group: Group = SINGLE,
    ) -> TableFeed | None:
        """Return the feed of the network's tables, or None when there is nothing to translate or to check.

        Args:
            network: network with embedding cells.
            sample: one batch of the columns that the network takes.
            names: their names.
            optimizer: decides the row optimizer of tables that have none of their own.
            accumulate: batches of one optimizer update.
            group: the processes that divide the rows of the tables among them.

        Raises:
            ConfigurationError: a cell's ids do not come unchanged from a column.
        """
        kind = SparseTables if group.size == 1 else ShardedTables
        tables = kind.find(network, sample, names, optimizer, accumulate, group)
        used = tables is not None and (tables.input_count or tables.planner.fields.dense)
        return cls(tables) if used else None

    def prepare(self, group: BatchGroup) -> tuple[Columns, Any]:
        """Return the columns with positions in place of ids, and the plan of the rows to bring before the graph."""
        columns, stacked, batches, fill, flush, now = group
        columns, plan = self.tables.planner.plan(columns, stacked, batches, fill=fill, flush=flush, now=now)
        return (*columns, *plan.inputs), plan

    def release(self) -> None:
        """Forget what was prepared for training and not trained."""
        self.tables.rollback()

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": ...}``: ids, rows, slots, counters and sketches.

        All of them, or what changed since the snapshot before, as `delta_policy` has decided; and what an accumulation
        window that is open has gathered. Of many processes rank 0 returns it, of all; all have to call this.
        """
        policy = self.delta_policy
        state = self.tables.take(DeltaPolicy.CONSUMER, full=not policy.delta, folder=policy.folder)
        state["arrays"] |= open_rows.take(self.tables)
        return state

    def give(self, path: Path) -> None:
        """Give rank 0, which writes a snapshot to `path`, the rows that this process keeps."""
        self.delta_policy.base_of(path)
        self.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore one full state that `state_dict` returned."""
        self.load_states([state])

    def check_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Check that such states can be restored; nothing is changed. Errors of `saved_tables.check_states`."""
        check_states(self.tables.tables, states)
        for state in states[-1:]:
            open_rows.check(self.tables, state)

    def load_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore a full state and the deltas that build on it, in order; a full state starts over."""
        self.delta_policy.broken()
        newest = self.tables.restore_all(states)
        if states:
            open_rows.restore(self.tables, newest)

    def rewind(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Put all rows back to the values of such states in the middle of a run; ids keep their rows."""
        self.delta_policy.broken()
        self.tables.rewind(states)
