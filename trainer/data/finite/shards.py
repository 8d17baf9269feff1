"""Divides finite data among processes.

In each step, N processes with batches of B rows train on the rows that a single process would take with batches of
N * B rows. If all processes have the whole dataset, each one computes the shapes of the whole step by itself, so that
all call the same programs without communication.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from ...distributed.agreement import StopHooks
from ...distributed.group import Group
from ...errors import ConfigurationError
from ..as_columns import Columns, form_of
from ..lockstep import LockstepSource
from ..position import Position
from ..ragged import ListLengths, Ragged
from ..source import Item, Source, WrappedSource
from ..waiting import DATA_WAIT
from .sources import ArraySource, PipelineSource

logger = logging.getLogger(__name__)

_RANKS = "@ranks"  # key in a position's state: list of the states of all processes


class ShardedArrays(ArraySource):
    """Arrays whose steps are divided among processes.

    The arrays are shuffled as a whole, by (seed, epoch). The rows of an epoch's last step are divided evenly; a process
    that gets none of them trains a placeholder row.
    """

    def __init__(self, arrays: Any, batch_size: int | None, shard: Group, **options: Any) -> None:
        super().__init__(arrays, batch_size, **options)
        self.shard = shard
        self.step_rows = self.batch_size * shard.size
        self.size = -(-self.rows // self.step_rows)
        columns = zip(self.names or (), self._columns, strict=True)
        self._lists = {name: (column, column.cut_lengths) for name, column in columns if isinstance(column, Ragged)}

    def describe(self) -> dict[str, Any]:
        """Describe the data like `ArraySource`; `batch_size` is that of all processes."""
        return {**super().describe(), "batch_size": self.step_rows, "processes": self.shard.size}

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        order = self.order(epoch)
        for first in range(self.first_row(epoch, state) + start * self.step_rows, self.rows, self.step_rows):
            last = min(first + self.step_rows, self.rows)
            bounds = np.linspace(first, last, self.shard.size + 1).astype(np.int64)
            begin, end = int(bounds[self.shard.rank]), int(bounds[self.shard.rank + 1])
            short = last - first < self.step_rows
            placeholder = begin == end
            if placeholder:
                begin, end = first, first + 1
            yield Item(
                self.cut(order, begin, end),
                kind="short" if short else None,
                placeholder=placeholder,
                step_rows=last - first,
                lengths=self._lengths(order, bounds) if self._lists else None,
            )

    def _lengths(self, order: np.ndarray | None, bounds: np.ndarray) -> dict[str, ListLengths]:
        """Return the list lengths of a step whose rows are divided at `bounds`."""
        rows = slice(bounds[0], bounds[-1]) if order is None else order[bounds[0] : bounds[-1]]
        lengths_of = {}
        for name, (column, lengths) in self._lists.items():
            of_step = lengths[rows]
            counts = np.diff(np.concatenate([[0], np.cumsum(of_step)])[bounds - bounds[0]])
            lengths_of[name] = ListLengths(int(of_step.max()), int(counts.max()), column.per_octave)
        return lengths_of


class EveryNth(WrappedSource):
    """Gives batches to processes in turn: each reads all batches and keeps its own."""

    def __init__(self, source: Source, shard: Group) -> None:
        super().__init__(source)
        self.shard = shard
        self.size = None if source.size is None else -(-source.size // shard.size)
        if isinstance(source, PipelineSource):
            logger.info(
                "every process reads the whole pipeline and takes one batch of %d; give its source num_shards and "
                "shard_id where reading takes long",
                shard.size,
            )

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        size, rank = self.shard.size, self.shard.rank
        step: list[Any] = []
        lengths: dict[str, ListLengths] = {}
        own: Item | None = None
        item = None
        for item in self.rows_of.batches(epoch, start * size, state):
            if item is None:
                continue
            if len(step) == rank:
                own = item
                if self.rows_of.reuses_buffers:
                    own.columns = tuple([column.copy() for column in item.columns])
            step.append(form_of(item.columns))
            for name, column in zip(self.names or (), item.columns, strict=True):
                of_batch = ListLengths.of(column)
                if of_batch is not None:
                    lengths[name] = of_batch.joined(lengths.get(name))
            if len(step) == size:
                yield self._complete(own, item.state, step, lengths)
                step, own, lengths = [], None, {}
        if step:
            state = item.state
            if own is None:
                own, item.placeholder = item, True
            yield self._complete(own, state, step, lengths)
        self.size = None if self.rows_of.size is None else -(-self.rows_of.size // size)

    def _complete(self, own: Item, state: Any, step: list[Any], lengths: dict[str, ListLengths]) -> Item:
        """Set the attributes of a process's batch that depend on all batches of a step."""
        full = len(step) == self.shard.size and len(set(step)) == 1
        own.state, own.kind = state, None if full else tuple(step)
        own.step_rows, own.lengths = sum(form[0][0][0] for form in step), lengths
        return own

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "processes": self.shard.size}

    def checksums(self) -> dict[str, int]:
        return self.rows_of.checksums()

    def resolve(self, position: Position) -> Position:
        return self.rows_of.resolve(position)


class DividedSource(LockstepSource):
    """Reads this process's own part of finite data; parts may differ in length.

    Step k takes batch k of every process that has one. An epoch ends when no process has another batch. All processes
    must create the source together.

    Raises:
        ConfigurationError: some processes have the whole dataset.
    """

    def __init__(self, rows_of: Source, group: Group, hooks: StopHooks) -> None:
        super().__init__(rows_of, group, hooks)
        self._meets = True
        parts = group.gather_json({"data: a part for each process": True, "data: size": rows_of.size})
        whole = [rank for rank, part in enumerate(parts) if "data: a part for each process" not in part]
        if whole:
            raise ConfigurationError(
                f"rank {group.rank} has its own rows (sharded=True or num_shards), but ranks {whole} are given the "
                "whole dataset; divide it for all processes or for none"
            )
        sizes = [part["data: size"] for part in parts]
        self.size = None if None in sizes else max(sizes)

    @property
    def ahead(self) -> int:  # type: ignore[override]
        """Batches agreed on at once; 1 if each epoch continues where the last one ended.

        In that case, batches read beyond the end of an epoch would be lost.
        """
        return 1 if self.continues_epochs else self._ahead

    @ahead.setter
    def ahead(self, value: int) -> None:
        self._ahead = value

    def describe(self) -> dict[str, Any]:
        """Return only a fixed kind, because each process has different rows."""
        return {"kind": "separate"}

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        steps = start
        for item in super().batches(epoch, start, state):
            steps += 1
            yield item
        if self.size is None and not self.continues_epochs:
            self.size = steps

    def of_all(self, position: Position) -> Position:
        states = self.group.gather_json(self._own(self.rows_of.resolve(position).state))
        return position.with_state(None if all(state is None for state in states) else {_RANKS: states})

    def commit(self, position: Position) -> None:
        """Acknowledge this process's rows before `position`, the joint position of all."""
        super().commit(position.with_state(self._own(position.state)))

    def _own(self, state: Any) -> Any:
        """Return this process's state; None if the snapshot has another process count."""
        if not isinstance(state, dict) or _RANKS not in state:
            return state
        states = state[_RANKS]
        return states[self.group.rank] if len(states) == self.group.size else None

    def _try_peek(self) -> tuple[Columns | None, bool]:
        self.group.wait_for_all()  # connect the processes before one of them is late
        with DATA_WAIT:
            columns = self.rows_of.peek()
        return columns, columns is None

    def _reads_inline(self) -> bool:
        return self.rows_of.thread_bound or self.continues_epochs

    def _open(self, epoch: int, start: int, state: Any) -> Generator[Item]:
        self._state = state = self._own(state)
        return self._items(epoch, start, state)

    def _items(self, epoch: int, start: int, state: Any) -> Generator[Item]:
        rows = self.rows_of
        if rows.size is not None and start >= rows.size:
            return  # other processes have more batches
        for item in rows.batches(epoch, start, state):
            if item is not None:
                if rows.reuses_buffers:
                    item.columns = tuple([column.copy() for column in item.columns])
                yield item
