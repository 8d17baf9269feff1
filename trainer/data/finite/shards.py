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

    def __init__(self, arrays: Any, batch_size: int | None, group: Group, **options: Any) -> None:
        super().__init__(arrays, batch_size, **options)
        self.group = group
        self.step_rows = self.batch_size * group.size
        self.size = -(-self.rows // self.step_rows)
        columns = zip(self.names or (), self._columns, strict=True)
        self._lists = {name: (column, column.cut_lengths) for name, column in columns if isinstance(column, Ragged)}

    def describe(self) -> dict[str, Any]:
        """Describe the data like `ArraySource`; `batch_size` is that of all processes."""
        return {**super().describe(), "batch_size": self.step_rows, "processes": self.group.size}

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        order = self.order(epoch)
        for first in range(self.first_row(epoch, state) + start * self.step_rows, self.rows, self.step_rows):
            last = min(first + self.step_rows, self.rows)
            bounds = np.linspace(first, last, self.group.size + 1).astype(np.int64)
            begin, end = int(bounds[self.group.rank]), int(bounds[self.group.rank + 1])
            is_short = last - first < self.step_rows
            placeholder = begin == end
            if placeholder:
                begin, end = first, first + 1
            yield Item(
                self.cut(order, begin, end),
                kind="short" if is_short else None,
                placeholder=placeholder,
                step_rows=last - first,
                lengths=self._lengths(order, bounds) if self._lists else None,
            )

    def _lengths(self, order: np.ndarray | None, bounds: np.ndarray) -> dict[str, ListLengths]:
        """Return the list lengths of a step whose rows are divided at `bounds`."""
        rows = slice(bounds[0], bounds[-1]) if order is None else order[bounds[0] : bounds[-1]]
        lengths_of = {}
        for name, (column, lengths) in self._lists.items():
            row_lengths = lengths[rows]
            counts = np.diff(np.concatenate([[0], np.cumsum(row_lengths)])[bounds - bounds[0]])
            lengths_of[name] = ListLengths(int(row_lengths.max()), int(counts.max()), column.per_octave)
        return lengths_of


class EveryNth(WrappedSource):
    """Gives batches to processes in turn: each reads all batches and keeps its own."""

    def __init__(self, source: Source, group: Group) -> None:
        super().__init__(source)
        self.group = group
        self.size = None if source.size is None else -(-source.size // group.size)
        if isinstance(source, PipelineSource):
            logger.info(
                "every process reads the whole pipeline and takes one batch of %d; give its source num_shards and "
                "shard_id where reading takes long",
                group.size,
            )

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        size, rank = self.group.size, self.group.rank
        step_forms: list[Any] = []
        lengths: dict[str, ListLengths] = {}
        own_item: Item | None = None
        last_item: Item | None = None
        for item in self.source.batches(epoch, start * size, state):
            if item is None:
                continue
            last_item = item
            if len(step_forms) == rank:
                own_item = item
                if self.source.reuses_buffers:
                    own_item.columns = tuple([column.copy() for column in item.columns])
            step_forms.append(form_of(item.columns))
            for name, column in zip(self.names or (), item.columns, strict=True):
                batch_lengths = ListLengths.of(column)
                if batch_lengths is not None:
                    lengths[name] = batch_lengths.joined(lengths.get(name))
            if len(step_forms) == size and own_item is not None:
                yield self._complete(own_item, item.state, step_forms, lengths)
                step_forms, own_item, lengths = [], None, {}
        if last_item is not None and step_forms:
            if own_item is None:
                own_item, last_item.placeholder = last_item, True
            yield self._complete(own_item, last_item.state, step_forms, lengths)
        self.size = None if self.source.size is None else -(-self.source.size // size)

    def _complete(self, item: Item, state: Any, step_forms: list[Any], lengths: dict[str, ListLengths]) -> Item:
        """Set the attributes of a process's batch that depend on all batches of a step."""
        is_full = len(step_forms) == self.group.size and len(set(step_forms)) == 1
        item.state, item.kind = state, None if is_full else tuple(step_forms)
        item.step_rows, item.lengths = sum(form[0][0][0] for form in step_forms), lengths
        return item

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "processes": self.group.size}

    def checksums(self) -> dict[str, int]:
        return self.source.checksums()

    def resolve(self, position: Position) -> Position:
        return self.source.resolve(position)


class DividedSource(LockstepSource):
    """Reads this process's own part of finite data; parts may differ in length.

    Step k takes batch k of every process that has one. An epoch ends when no process has another batch. All processes
    must create the source together.

    Raises:
        ConfigurationError: some processes have the whole dataset.
    """

    def __init__(self, source: Source, group: Group, hooks: StopHooks) -> None:
        super().__init__(source, group, hooks)
        self._waits_for_all = True
        parts = group.gather_json({"data: a part for each process": True, "data: size": source.size})
        ranks = [rank for rank, part in enumerate(parts) if "data: a part for each process" not in part]
        if ranks:
            raise ConfigurationError(
                f"rank {group.rank} has its own rows (sharded=True or num_shards), but ranks {ranks} are given the "
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
        """Return only the kind and the number of parts, whose rows differ."""
        return {"kind": "separate", "parts": self.group.size}

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        steps = start
        for item in super().batches(epoch, start, state):
            steps += 1
            yield item
        if self.size is None and not self.continues_epochs:
            self.size = steps

    def joint_position(self, position: Position) -> Position:
        states = self.group.gather_json(self._own_state(self.source.resolve(position).state))
        return position.with_state(None if all(state is None for state in states) else {_RANKS: states})

    def commit(self, position: Position) -> None:
        """Acknowledge this process's rows before `position`, the joint position of all."""
        super().commit(position.with_state(self._own_state(position.state)))

    def _own_state(self, state: Any) -> Any:
        """Return this process's state; None if the snapshot has another process count."""
        if not isinstance(state, dict) or _RANKS not in state:
            return state
        states = state[_RANKS]
        return states[self.group.rank] if len(states) == self.group.size else None

    def _try_peek(self) -> tuple[Columns | None, bool]:
        self.group.wait_for_all()  # connect the processes before one of them is late
        with DATA_WAIT:
            columns = self.source.peek()
        return columns, columns is None

    def _reads_inline(self) -> bool:
        return self.source.thread_bound or self.continues_epochs

    def _open(self, epoch: int, start: int, state: Any) -> Generator[Item]:
        self._state = state = self._own_state(state)
        return self._items(epoch, start, state)

    def _items(self, epoch: int, start: int, state: Any) -> Generator[Item]:
        rows = self.source
        if rows.size is not None and start >= rows.size:
            return  # other processes have more batches
        for item in rows.batches(epoch, start, state):
            if item is not None:
                if rows.reuses_buffers:
                    item.columns = tuple([column.copy() for column in item.columns])
                yield item
