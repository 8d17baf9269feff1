"""Prepares chunks for a network's sparse tables; saves and restores the tables.

With several processes, each one plans the ids of its own batches and exchanges rows with the processes that own them;
see `trainer.embedding.layers.sharded_tables`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from ..distributed.group import SINGLE, Group
from ..embedding.layers import open_accumulation
from ..embedding.layers.network_tables import SparseTables
from ..embedding.tables.table_state import check_states
from ..errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError
from ..state import Stateful
from .as_columns import Columns
from .chunk import Chunk, ChunkTransform


class TableReader(ChunkTransform):
    """Translates ids to row positions for inference; unknown ids get the default row.

    If the rows are divided among processes, all processes must prepare a chunk or call `join_exchange` at the same
    time.
    """

    def __init__(self, tables: SparseTables) -> None:
        self.tables = tables
        self.on_graph_thread = tables.group.size > 1
        self._took_part = False

    def prepare(self, columns: Columns, chunk: Chunk, now: float | None) -> tuple[Columns, Any]:
        columns, plan = self.tables.planner.plan(columns, chunk.stacked, chunk.num_batches, train=False, now=now)
        self._took_part = True
        return (*columns, *plan.inputs), plan

    def join_exchange(self, problem: str = "") -> None:
        """Join the other processes' reads, unless `prepare` did since the last call."""
        has_joined, self._took_part = self._took_part, False
        if not has_joined:
            self.tables.planner.join_exchange(problem)


class DeltaPolicy:
    """Decides whether a snapshot holds the tables in full or only their changes.

    A delta builds on the previous snapshot in the same folder and is written only while the changes are few. The number
    of deltas between full snapshots is limited, which bounds the time to restore.
    """

    CONSUMER = "snapshot"
    MAX_DELTAS, MAX_ROWS = 8, 0.5  # limits between full snapshots; MAX_ROWS is a share of all rows

    def __init__(self, tables: SparseTables) -> None:
        self.tables = tables
        self._latest_snapshot: Path | None = None  # latest snapshot
        self._delta_count = 0  # deltas since the latest full snapshot
        self._delta_rows = 0  # rows in these deltas
        self._changed_rows = 0  # rows changed since the latest snapshot
        self.delta = False  # whether the next snapshot is a delta
        self.folder: Path | None = None  # folder of the next snapshot

    def base_of(self, path: Path) -> str | None:
        """Return the base of the next snapshot, at `path`; None if it will be full.

        All processes call it. Rank 0 decides, because it writes the snapshot.
        """
        latest, self.folder = self._latest_snapshot, path.parent
        self._changed_rows, rows = self.tables.count_changed(self.CONSUMER), self.tables.rows
        self.delta = self.tables.group.from_main(lambda: self._allows_delta(latest, path, rows))
        return latest.name if self.delta and latest is not None else None

    def _allows_delta(self, newest: Path | None, path: Path, rows: int) -> bool:
        return (
            newest is not None
            and bool(self.tables.tables)
            and newest.parent == path.parent
            and newest.name != path.name
            and newest.is_dir()
            and self._delta_count < self.MAX_DELTAS
            and self._delta_rows + self._changed_rows <= self.MAX_ROWS * rows
        )

    def written(self, path: Path) -> None:
        """Record that the snapshot of the latest `base_of` is being written to `path`."""
        self._latest_snapshot = path
        self._delta_count = self._delta_count + 1 if self.delta else 0
        self._delta_rows = self._delta_rows + self._changed_rows if self.delta else 0

    def broken(self) -> None:
        """Make the next snapshot full, after a failed write or a restore."""
        self._latest_snapshot = None


class TableFeed(ChunkTransform, Stateful):
    """Prepares chunks for training sparse tables; `reader` prepares for inference."""

    def __init__(self, tables: SparseTables) -> None:
        self.tables = tables
        self.reader = TableReader(tables)
        self.delta_policy = DeltaPolicy(tables)

    @classmethod
    def find(
        cls,
        network: nn.Cell,
        sample: Columns,  # one batch of the columns that the network takes
        names: tuple[str, ...],
        optimizer: nn.Cell | None,  # determines the row optimizer of tables without one
        accumulate: int,
        group: Group = SINGLE,
    ) -> TableFeed | None:
        """Return the table feed of a network; None without ids to translate or check.

        Raises:
            ConfigurationError: the ids of a cell are not an unchanged column of the batch.
        """
        from ..embedding.layers.sharded_tables import ShardedTables  # imports Numba

        kind = SparseTables if group.size == 1 else ShardedTables
        tables = kind(network, sample, names, optimizer, accumulate, group)
        return cls(tables) if tables.input_count or tables.planner.fields.dense else None

    def prepare(self, columns: Columns, chunk: Chunk, now: float | None, **options: Any) -> tuple[Columns, Any]:
        """Return the graph's columns and the plan; `options` are those of `Planner.plan`."""
        options |= {"fill": chunk.start.micro_batches, "flush": chunk.flush, "now": now}
        columns, plan = self.tables.planner.plan(columns, chunk.stacked, chunk.num_batches, **options)
        return (*columns, *plan.inputs), plan

    def release(self) -> None:
        self.tables.rollback()

    @property
    def is_divided(self) -> bool:
        """Whether there are tables whose rows are divided among processes."""
        return self.tables.group.size > 1 and bool(self.tables.tables)

    def state_dict(self, *, own_rows: bool = False) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": ...}``: ids, rows, slots, counters, sketches.

        `delta_policy` decides whether the state is full or has only the changes since the last snapshot. The state
        includes the gradients of an open accumulation. All processes call it; rank 0 returns the state of all.

        Args:
            own_rows: every process returns the arrays of its own rows instead, to be joined in the order of ranks;
                only rank 0 returns the accumulation.
        """
        policy = self.delta_policy
        options: dict[str, Any] = {"own_rows": True} if own_rows else {"folder": policy.folder}
        state = self.tables.take(DeltaPolicy.CONSUMER, full=not policy.delta, **options)
        accumulated = open_accumulation.take(self.tables)
        if self.tables.group.is_main:
            state["arrays"] |= accumulated
        return state

    def check_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Check that states can be restored (`table_state.check_states`); change nothing.

        All processes call it. A process without an error of its own raises that of the first rank that has one.
        """
        problem: CheckpointError | None = None
        try:
            check_states(self.tables.tables, states)
            for state in states[-1:]:
                open_accumulation.check(self.tables, state)
        except CheckpointError as error:
            problem = error
        damaged = not isinstance(problem, CheckpointMismatchError)
        own_problem = None if problem is None else [damaged, str(problem)]
        for rank, other_problem in enumerate(self.tables.group.gather_json(own_problem)):
            if problem is not None:
                raise problem
            if other_problem is not None:
                kind = CheckpointDamagedError if other_problem[0] else CheckpointMismatchError
                raise kind(f"rank {rank}: {other_problem[1]}")

    def load_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore a full state of `state_dict` and the deltas that build on it, in order."""
        self.delta_policy.broken()
        newest = self.tables.restore(states)
        if states:
            open_accumulation.restore(self.tables, newest)

    def rewind(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Reset all rows to saved states during a run; ids keep their row numbers."""
        self.delta_policy.broken()
        self.tables.rewind(states)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class DividedTables(ChunkTransform):
    """Prepares chunks whose table rows are divided among processes.

    Each process plans the ids of its own batches; the process that owns a row trains it. The exchange of ids runs on
    the thread that reads ahead, over separate connections, while earlier calls are trained. If any process reads on
    the graph thread or has a single core, all exchange on the graph thread instead: with a single core the threads
    would only delay each other, at different times on each process.
    """

    on_graph_thread = True

    def __init__(self, tables: TableFeed, group: Group) -> None:
        self.tables, self.group = tables, group

    def connect(self, inline: bool) -> None:
        """Choose the thread on which all processes prepare; open its connections."""
        channel = self.tables.tables.channel
        inline = inline or usable_cores() < 2
        states = self.group.gather(np.array([inline, not channel.is_open], np.int64))
        any_inline, any_closed = states.any(axis=0).tolist()
        self.on_graph_thread = any_inline
        if any_closed and not any_inline:
            channel.open()
        self.tables.tables.planner.begin(self.group if any_inline else channel)

    def prepare(self, columns: Columns, chunk: Chunk, now: float | None) -> tuple[Columns, Any]:
        channel = self.tables.tables.channel
        before = channel.seconds
        prepared = self.tables.prepare(columns, chunk, now, placeholder=not chunk.num_samples, last=chunk.ends_epoch)
        chunk.exchange_seconds = channel.seconds - before
        return prepared

    def release(self) -> None:
        self.tables.release()

    def finish(self) -> None:
        self.tables.tables.planner.finish()

    def interrupt(self) -> None:
        if not self.on_graph_thread:
            self.tables.tables.channel.interrupt()
