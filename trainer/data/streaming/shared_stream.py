"""A stream divided among processes that take the same steps.

Before every call each process sends one message, a `_Round`, with the number of batches that it has ready. From these
all derive the same step: how many batches, whose rows count, whether to wait, whether the stream has ended. A process
without a batch takes part with placeholder rows that weigh nothing.
"""

from __future__ import annotations

import math
import queue
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ...distributed.agreement import StopHooks, stop_kind
from ...distributed.group import Group
from ...distributed.packing import pack, unpack
from ...errors import DataError
from ...streams import Stream
from ..as_columns import Columns
from ..finite.shards import EveryNth
from ..position import Position
from ..ragged import Ragged
from ..source import Item, ReadMode, Source
from ..waiting import DATA_WAIT, Interrupted, Prefetch
from .agreed_lists import AgreedLists, placeholder_columns
from .stream_source import POLL_SECONDS, StreamSource, SummedSource

_WAITING, _PASSED_OVER, _ENDED = range(3)


class Agreed(NamedTuple):
    """Knowledge of a batch's step that all processes share.

    Attributes:
        clock: seconds by the clock of rank 0, as `time.monotonic` counts them, when the step was agreed on.
        event_time: newest event time of the step's rows in seconds since the epoch; NaN where they have none.
    """

    clock: float
    event_time: float


@dataclass(frozen=True)
class JobHooks(StopHooks):
    """The run, as an agreement on a stream sees it.

    Attributes:
        durable: returns the number of durable snapshots; asked on rank 0.
        commit: called on all processes with the number of snapshots that are durable on all of them.
    """

    durable: Callable[[], int] = lambda: 0
    commit: Callable[[int], None] = lambda count: None


class _Round(NamedTuple):
    """The message of one process to the others; all int64."""

    stop: int
    ready: int  # complete batches
    rows: int  # of each of them
    state: int  # _WAITING, ... without a complete batch
    idle_ms: int  # since this process's last row
    event_time: int  # bits of a float64
    clock: int  # bits of a float64
    durable: int
    columns: int  # CRC-32 of names, dtypes and row shapes; 0 where they are not known
    content: int  # CRC-32 of the rows that must be the same on all processes; 0 if each has its own
    lists: int  # `AgreedLists.seen`


class SharedStream(Source):
    """This process's share of a stream.

    Args:
        ahead: batches agreed on at once, those of a call.
        idle_timeout: seconds without a row on any process after which the stream counts as ended, or None.
    """

    endless = True
    thread_bound = True  # agreements are made on the thread that runs graphs
    read_mode = ReadMode.LOCKSTEP

    def __init__(
        self, local: StreamSource, group: Group, ahead: int, hooks: JobHooks, idle_timeout: float | None = None
    ) -> None:
        self.rows_of = local
        self.group, self.ahead, self.hooks = group, ahead, hooks
        self.idle_timeout = idle_timeout
        self.divided = local.stream.sharing.by_partition
        self._local: Source = local if self.divided else EveryNth(SummedSource(local), group)
        if self.divided:
            local.stream.deal(group.rank, group.size)
        self._template: Any = None  # columns, once they are known
        self._columns_sum = 0
        self._lists = AgreedLists(group)
        self._reader: Prefetch | None = None
        self._left_behind = False
        self._ready: deque[Item] = deque()
        self._waited = 0.0  # seconds without a batch, since the last one of this process
        self._over = False
        self._state: Any = None
        self._kind_before: tuple[int, ...] | None = None

    @property
    def stream(self) -> Stream:
        """The stream that is read."""
        return self.rows_of.stream

    @property
    def names(self) -> tuple[str, ...] | None:  # type: ignore[override]
        return self.rows_of.names

    def describe(self) -> dict[str, Any]:
        """Return what a single process's source does: positions mean the same rows."""
        return self.rows_of.describe()

    def when_slow(self) -> str:
        return self.rows_of.when_slow()

    def lag(self) -> int | None:
        """Return the rows that wait upstream of all processes, or None; called by all."""
        own = self.stream.lag()
        lags = self.group.gather(np.array([-1 if own is None else own], np.int64))[:, 0]
        if (lags < 0).any():
            return None
        return int(lags.sum() if self.divided else lags[0])

    def of_all(self, position: Position) -> Position:
        """Return the position of all processes with their partitions; called by all."""
        own = self.rows_of.resolve(position)
        if not self.divided:
            return own
        return position.merge([part or {} for part in self.group.gather_json(own.state)], self.stream.join)

    def trained_to(self, position: Position) -> None:
        self.rows_of.trained_to(position)

    def commit(self, position: Position) -> None:
        """Acknowledge this process's part of `position`, that of all processes."""
        if position.dealt is not None:
            self.rows_of.commit(position.part(self.group.rank))
        elif self.group.is_main:
            self.rows_of.commit(position)

    def peek(self, should_stop: Callable[[], bool] = lambda: False) -> Columns:
        """Return the columns of the first rows of any process; called by all together.

        Raises:
            Interrupted: the processes have agreed to stop. DataError: the stream of none has any rows.
        """
        while self._template is None:
            DATA_WAIT.still_waiting()
            own = self.rows_of.try_peek()
            if own is not None:
                self._learn(own)
            rounds = self._exchange(ready=int(own is not None), ended=own is None and self.stream.exhausted)
            if self.hooks.decide([sent.stop for sent in rounds]):
                raise Interrupted
            if any(sent.ready for sent in rounds):
                self._share_template(rounds)
            elif all(sent.state == _ENDED for sent in rounds):
                raise DataError("the stream gave no rows")
        return self._template

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        """Yield the batches of the agreed steps; None while the whole stream idles."""
        self.ended, self._state, self._over, self._waited, self._kind_before = None, None, False, 0.0, None
        self._ready.clear()
        items = (item for item in self._local.batches(epoch, start, state) if item is not None)
        if not self._local.thread_bound:
            self._reader = Prefetch(items, least=2 * self.ahead)
        idle_reported = False
        try:
            while True:
                self._fill(items)
                rounds = self._exchange(len(self._leading()), self._over)
                if self.hooks.decide([sent.stop for sent in rounds]):
                    return
                count = self._agreed_count(rounds)
                if count:
                    idle_reported = False
                    yield from self._step(rounds, count)
                elif all(sent.state == _ENDED and not sent.ready for sent in rounds):
                    self.ended = self.rows_of.ended or "stream_end"
                    return
                elif self._is_idle(rounds):
                    self.rows_of.finish("idle")
                elif not idle_reported and all(sent.state and not sent.ready for sent in rounds):
                    idle_reported = True
                    yield None
        finally:
            self.interrupt()

    def _fill(self, items: Iterator[Item]) -> None:
        """Take batches that have been read; wait a moment for the first."""
        DATA_WAIT.still_waiting()
        began = time.monotonic()
        while len(self._ready) < self.ahead and not self._over:
            try:
                item = self._next(items)
            except queue.Empty:
                break
            if item is None:
                self._over = True
            else:
                self._ready.append(item)
                self._learn(item.columns)
        self._waited = 0.0 if self._ready else self._waited + time.monotonic() - began

    def _next(self, items: Iterator[Item]) -> Item | None:
        if self._reader is not None:
            return self._reader.get(0.0 if self._ready else POLL_SECONDS)
        with DATA_WAIT:  # a pipeline, read by the thread that made it
            return next(items, None)

    def _leading(self) -> list[Item]:
        """Return the first batches, of equal numbers of rows, that can go into one call."""
        leading: list[Item] = []
        for item in self._ready:
            alike = not leading or (len(item.columns[0]), item.kind) == (len(leading[0].columns[0]), leading[0].kind)
            if len(leading) == self.ahead or not alike:
                break
            leading.append(item)
        return leading

    def _learn(self, columns: Columns) -> None:
        """Keep a template of placeholder batches: the first rows, or the first full batch."""
        if self.divided:
            self._lists.note(columns)
        full = self.rows_of.batch_size
        if self._template is None or (len(columns[0]) == full != len(self._template[0])):
            self._template = columns
        if not self._columns_sum:
            names = self.names or ()
            described = [(name, *_row_type(column)) for name, column in zip(names, columns, strict=True)]
            self._columns_sum = zlib.crc32(repr(described).encode()) or 1

    def _exchange(self, ready: int, ended: bool) -> list[_Round]:
        requested = self.hooks.requested_stop()
        items = list(islice(self._ready, ready))
        # a stream that is not connected yet has no position, which every step needs
        begun = self.rows_of.begun is not None
        passed = begun and self._waited >= self.rows_of.flush_after
        own = _Round(
            stop=stop_kind(requested),
            ready=ready,
            rows=len(items[0].columns[0]) if items else 0,
            state=_ENDED if ended else _PASSED_OVER if passed else _WAITING,
            idle_ms=int(1000 * (time.monotonic() - self.rows_of.last_row)) if begun else 0,
            event_time=_bits(max(map(_newest, items), default=float("nan"))),
            clock=_bits(time.monotonic()),
            durable=self.hooks.durable() if self.group.is_main else 0,
            columns=self._columns_sum,
            content=0 if self.divided or not items else items[-1].state[0],
            lists=self._lists.seen,
        )
        rounds = [_Round(*row) for row in self.group.gather(np.array(own, np.int64)).tolist()]
        self.hooks.commit(rounds[0].durable)
        self._check_alike(rounds)
        return rounds

    def _check_alike(self, rounds: list[_Round]) -> None:
        known = {sent.columns: rank for rank, sent in reversed(list(enumerate(rounds))) if sent.columns}
        if len(known) > 1:
            raise DataError(
                f"ranks {sorted(known.values())} read columns of different names, types or row shapes; all processes "
                f"must read the same stream; here they are {list(self.names or ())}"
            )

    def _agreed_count(self, rounds: list[_Round]) -> int:
        """Return the number of batches of the next steps; 0 to wait."""
        ready = [sent.ready for sent in rounds if sent.ready]
        if not ready:
            return 0
        if not self.divided:
            return self._whole_steps(rounds)
        if any(not sent.ready and sent.state == _WAITING for sent in rounds):
            return 0
        return min(ready)

    def _whole_steps(self, rounds: list[_Round]) -> int:
        """Return the number of steps read by all; each is the same batches everywhere."""
        if any(sent.state == _ENDED and not sent.ready for sent in rounds):
            raise DataError(
                "the stream ended on some processes and not on others; without partitions every process must read the "
                "same rows: give a function that returns them, or a stream that has partitions"
            )
        count = min(sent.ready for sent in rounds)
        if count == max(sent.ready for sent in rounds) and len({sent.content for sent in rounds}) > 1:
            raise DataError(
                "the processes read different rows, so their steps would differ; without partitions every "
                "process must read the same rows in the same order (no shuffling of its own); a stream that has "
                "partitions is divided by them"
            )
        return count

    def _is_idle(self, rounds: list[_Round]) -> bool:
        if self.idle_timeout is None or any(sent.ready for sent in rounds):
            return False
        waiting = [sent.idle_ms for sent in rounds if sent.state != _ENDED]
        return bool(waiting) and min(waiting) >= 1000 * self.idle_timeout

    def _step(self, rounds: list[_Round], count: int) -> Iterator[Item | None]:
        if not all(sent.columns for sent in rounds):
            self._share_template(rounds)
        kind = tuple(sent.rows for sent in rounds)
        if self._kind_before not in (None, kind):
            yield None  # shapes change on some process: all train their groups first
        self._kind_before = kind
        times = [time for time in (_float(sent.event_time) for sent in rounds) if not math.isnan(time)]
        agreed = Agreed(_float(rounds[0].clock), max(times, default=float("nan")))
        ready = rounds[self.group.rank].ready
        own = list(islice(self._ready, count if ready else 0))
        lengths = self._lists.lengths(own, self.ahead, [sent.lists for sent in rounds], self.names or ())
        for of_step in lengths[:count]:
            if not ready:
                columns = placeholder_columns(self._template, self.names or (), of_step)
                item = Item(columns, self._state or self.rows_of.begun, placeholder=True)
            else:
                item = self._ready.popleft()
                if not self.divided:
                    item.state = item.state[1]
                self._state = item.state
            if self.divided:
                item.kind, item.step_rows, item.lengths = kind, sum(kind), of_step
            item.agreed = agreed
            yield item

    def _share_template(self, rounds: list[_Round]) -> None:
        """Take the template from the first process that has one; all call this together."""
        giver = next(rank for rank, sent in enumerate(rounds) if sent.columns)
        message = b"" if self.group.rank != giver else _packed(self.names or (), self._template)
        message = self.group.gather_bytes(message)[giver]
        if not message:
            raise DataError(
                "a process has no rows of its own, and rows of objects cannot be made up for it; give every process a "
                "partition"
            )
        if self._template is None:
            (names, lists), arrays = unpack(message)
            rows = [
                np.repeat(array, self.rows_of.batch_size, axis=0)
                if options is None
                else Ragged(array, np.zeros(self.rows_of.batch_size + 1, np.int64), **options)
                for array, options in zip(arrays, lists, strict=True)
            ]
            self.rows_of.names = tuple(names)
            self._learn(tuple(rows))

    def go_back(self, position: Position, trained: int) -> None:
        if not self._left_behind:
            self.rows_of.go_back(position, trained)

    def interrupt(self) -> None:
        self._local.interrupt()
        if self._reader is not None:
            self._left_behind |= not self._reader.stop()
            self._reader = None

    def close(self) -> None:
        """Stop reading; the stream itself belongs to the caller and stays open."""
        self.interrupt()
        self._local.close()


def _row_type(column: Any) -> tuple[Any, ...]:
    """Return what rows of all processes share; equally long lists come as an array."""
    kind = "text" if column.dtype.kind in "OUS" else column.dtype.str
    return kind, column.ndim, column.shape[2:]


def _newest(item: Item) -> float:
    times = (item.extras or {}).get("event_time")
    return float("nan") if times is None or not len(times) else float(times.max())


def _bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


def _float(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))


def _packed(names: tuple[str, ...], columns: Columns) -> bytes:
    """Return names and one row of each column as bytes; empty if one holds objects."""
    if any(column.dtype == object for column in columns):
        return b""
    lists = [column.options if isinstance(column, Ragged) else None for column in columns]
    return pack([names, lists], [column.values[:0] if isinstance(column, Ragged) else column[:1] for column in columns])
