"""A stream that several processes train on together: each reads its own part, and all take the same steps.

Before every call the processes tell each other, in one message, how many batches they have at hand (`JobAgreement`).
From that all derive the same step: how many batches, whose rows count, whether to wait, whether the stream has ended.
A process without a batch takes part with made-up rows that weigh nothing.
"""

from __future__ import annotations

import logging
import queue
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..distributed.agreement import StopHooks, stop_kind
from ..distributed.group import Group
from ..distributed.packing import pack, unpack
from ..errors import DataError
from ..streams import Stream
from .agreed_lists import AgreedLists, made_up
from .as_columns import Columns
from .prefetch import Prefetch
from .ragged import Ragged
from .shards import EveryNth
from .sources import Item, Source
from .stream_source import POLL_SECONDS, StreamSource
from .summed_source import SummedSource
from .waiting import DATA_WAIT, Interrupted

logger = logging.getLogger(__name__)

_WAITING, _PASSED_OVER, _ENDED = range(3)


class Agreed(NamedTuple):
    """What all processes know of a batch of a step, the same on all.

    Attributes:
        clock: seconds by the clock of rank 0, as `time.monotonic` counts them, when the step was agreed on.
        event_time: newest event time of the step's rows in seconds since the epoch; NaN where they have none.
    """

    clock: float
    event_time: float


@dataclass(frozen=True)
class JobHooks(StopHooks):
    """What an agreement on a stream has to know of the run, and to tell it.

    Attributes:
        durable: returns how many snapshots have become durable; asked on rank 0.
        settled: called with that number on all processes.
    """

    durable: Callable[[], int] = lambda: 0
    settled: Callable[[int], None] = lambda count: None


class _Round(NamedTuple):
    """What one process tells the others; all int64."""

    stop: int
    ready: int  # complete batches at hand
    rows: int  # of each of them
    state: int  # _WAITING, ... where there is no batch at hand
    idle_ms: int  # since this process's last row
    event_time: int  # bits of a float64
    clock: int  # bits of a float64
    durable: int
    columns: int  # CRC-32 of names, dtypes and row shapes; 0 where they are not known
    content: int  # CRC-32 of the rows that all processes must have alike; 0 where each has its own
    lists: int  # `AgreedLists.seen`


class SharedStream(Source):
    """This process's share of a stream.

    Args:
        local: the stream as this process reads it.
        group: the processes.
        ahead: batches agreed on at once, those of a call.
        hooks: the run.
        idle_timeout: seconds without a row on any process after which the stream counts as ended, or None.
    """

    endless = True
    thread_bound = True  # agreements are made on the thread that runs graphs
    in_step = True

    def __init__(
        self, local: StreamSource, group: Group, ahead: int, hooks: JobHooks, idle_timeout: float | None = None
    ) -> None:
        self.rows_of = local
        self.group, self.ahead, self.hooks = group, ahead, hooks
        self.idle_timeout = idle_timeout
        self.divided = local.stream.partitioned
        self._local: Source = local if self.divided else EveryNth(SummedSource(local), group)
        if self.divided:
            local.stream.deal(group.rank, group.size)
        self._template: Columns | None = None
        self._columns_sum = 0
        self._lists = AgreedLists(group)
        self._reader: Prefetch | None = None
        self._left_behind = False
        self._held: deque[Item] = deque()
        self._waited = 0.0  # for a batch while others had one, since the last batch of this process
        self._over = False
        self._state: Any = None
        self._kind_before: tuple[int, ...] | None = None

    # -- what it passes on ---------------------------------------------------------------------------------------------

    @property
    def stream(self) -> Stream:
        """The stream that is read."""
        return self.rows_of.stream

    @property
    def names(self) -> tuple[str, ...] | None:
        """Column names."""
        return self.rows_of.names

    def describe(self) -> dict[str, Any]:
        """Return what the stream read by one process does: its positions mean the same rows."""
        return self.rows_of.describe()

    def when_slow(self) -> str:
        """See `Source.when_slow`."""
        return self.rows_of.when_slow()

    def lag(self) -> int | None:
        """Return the rows that wait upstream for all processes, or None where one cannot tell; all call it together."""
        own = self.stream.lag()
        found = self.group.gather(np.array([-1 if own is None else own], np.int64))[:, 0]
        if (found < 0).any():
            return None
        return int(found.sum() if self.divided else found[0])

    # -- positions -----------------------------------------------------------------------------------------------------

    def of_all(self, position: dict[str, Any]) -> dict[str, Any]:
        """Return the position of all processes, and which partitions are whose; called by all of them together."""
        own = self.rows_of.resolve(position)
        if not self.divided:
            return own
        states = [part or {} for part in self.group.gather_json(own.get("state"))]
        dealt = [sorted(name for name in state if not name.startswith("@")) for state in states]
        return {**position, "state": self.stream.join(states), "dealt": dealt}

    def commit(self, position: dict[str, Any]) -> None:
        """Tell the stream that everything of this process before `position`, one of all, is safe."""
        if "dealt" not in position:
            if self.group.is_main:
                self.rows_of.commit(position)
            return
        mine = position["dealt"][self.group.rank]
        self.rows_of.commit({"state": {name: position["state"][name] for name in mine}})

    # -- reading -------------------------------------------------------------------------------------------------------

    def peek(self, should_stop: Callable[[], bool] = lambda: False) -> Columns:
        """Return the columns of the first rows of any process; called by all together.

        Raises:
            Interrupted: the processes have agreed to stop. DataError: the stream of none has any rows.
        """
        while self._template is None:
            DATA_WAIT.goes_on()
            own = self.rows_of.try_peek()
            if own is not None:
                self._learn(own)
            rounds = self._exchange(ready=int(own is not None), ended=own is None and self.stream.exhausted)
            if self._stopped(rounds):
                raise Interrupted
            if any(one.ready for one in rounds):
                self._share_template(rounds)
            elif all(one.state == _ENDED for one in rounds):
                raise DataError("the stream gave no rows")
        return self._template

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        """Yield the batches of the steps that all have agreed on; None when the whole stream idles."""
        self.ended, self._state, self._over, self._waited, self._kind_before = None, None, False, 0.0, None
        self._held.clear()
        items = (item for item in self._local.batches(epoch, start, state) if item is not None)
        if not self._local.thread_bound:
            self._reader = Prefetch(items, least=2 * self.ahead, size_of=_bytes)
        told_idle = False
        try:
            while True:
                self._fill(items)
                rounds = self._exchange(len(self._leading()), self._over)
                if self._stopped(rounds):
                    return
                count = self._agreed_count(rounds)
                if count:
                    told_idle = False
                    yield from self._step(rounds, count)
                elif all(one.state == _ENDED and not one.ready for one in rounds):
                    self.ended = self.rows_of.ended or "stream_end"
                    return
                elif self._is_idle(rounds):
                    self.rows_of.finish("idle")
                elif not told_idle and all(one.state and not one.ready for one in rounds):
                    told_idle = True
                    yield None
        finally:
            self.interrupt()

    def _fill(self, items: Iterator[Item]) -> None:
        """Take what has been read; without any wait a moment for it."""
        DATA_WAIT.goes_on()
        began = time.monotonic()
        while len(self._held) < self.ahead and not self._over:
            try:
                item = self._next(items)
            except queue.Empty:
                break
            if item is None:
                self._over = True
            else:
                self._held.append(item)
                self._learn(item.columns)
        self._waited = 0.0 if self._held else self._waited + time.monotonic() - began

    def _next(self, items: Iterator[Item]) -> Item | None:
        if self._reader is not None:
            return self._reader.get(0.0 if self._held else POLL_SECONDS)
        with DATA_WAIT:  # a pipeline, read by the thread that made it
            return next(items, None)

    def _leading(self) -> list[Item]:
        """Return the batches at hand that go into one call: the first ones, as long as they have as many rows."""
        found: list[Item] = []
        for item in self._held:
            alike = not found or (len(item.columns[0]), item.kind) == (len(found[0].columns[0]), found[0].kind)
            if len(found) == self.ahead or not alike:
                break
            found.append(item)
        return found

    def _learn(self, columns: Columns) -> None:
        """Keep what made-up batches look like: the first rows, or the first full batch once there is one."""
        if self.divided:
            self._lists.note(columns)
        full = self.rows_of.batch_size
        if self._template is None or (len(columns[0]) == full != len(self._template[0])):
            self._template = columns
        if not self._columns_sum:
            names = self.names or ()
            shown = [(name, *_looks(column)) for name, column in zip(names, columns, strict=True)]
            self._columns_sum = zlib.crc32(repr(shown).encode()) or 1

    def _exchange(self, ready: int, ended: bool) -> list[_Round]:
        wish = self.hooks.wish()
        held = [item for item, _ in zip(self._held, range(ready), strict=False)]
        # a stream that is not connected yet has no position, which every step needs
        begun = self.rows_of.begun is not None
        passed = begun and self._waited >= self.rows_of.flush_after
        own = _Round(
            stop=stop_kind(wish),
            ready=ready,
            rows=len(held[0].columns[0]) if held else 0,
            state=_ENDED if ended else _PASSED_OVER if passed else _WAITING,
            idle_ms=int(1000 * (time.monotonic() - self.rows_of.last_row)) if begun else 0,
            event_time=_bits(max(map(_newest, held), default=float("nan"))),
            clock=_bits(time.monotonic()),
            durable=self.hooks.durable() if self.group.is_main else 0,
            columns=self._columns_sum,
            content=0 if self.divided or not held else held[-1].state[0],
            lists=self._lists.seen,
        )
        rounds = [_Round(*row) for row in self.group.gather(np.array(own, np.int64)).tolist()]
        self.hooks.settled(rounds[0].durable)
        self._check_alike(rounds)
        return rounds

    def _check_alike(self, rounds: list[_Round]) -> None:
        known = {one.columns: rank for rank, one in reversed(list(enumerate(rounds))) if one.columns}
        if len(known) > 1:
            raise DataError(
                f"ranks {sorted(known.values())} read columns of different names, types or row shapes; all processes "
                f"must read the same stream; here they are {list(self.names or ())}"
            )

    def _stopped(self, rounds: list[_Round]) -> bool:
        return self.hooks.decide([one.stop for one in rounds])

    def _agreed_count(self, rounds: list[_Round]) -> int:
        """Return how many batches the next step of the call has: 0 where it is too early for one."""
        ready = [one.ready for one in rounds if one.ready]
        if not ready:
            return 0
        if not self.divided:
            return self._whole_steps(rounds)
        if any(not one.ready and one.state == _WAITING for one in rounds):
            return 0
        return min(ready)

    def _whole_steps(self, rounds: list[_Round]) -> int:
        """Return the number of steps that all have read; each is the same batches everywhere."""
        if any(one.state == _ENDED and not one.ready for one in rounds):
            raise DataError(
                "the stream ended on some processes and not on others; without partitions every process must read the "
                "same rows: give a function that returns them anew, or a stream that has partitions"
            )
        count = min(one.ready for one in rounds)
        if count == max(one.ready for one in rounds) and len({one.content for one in rounds}) > 1:
            raise DataError(
                "the processes read different rows, so each would train on what it likes; without partitions every "
                "process must read the same rows in the same order (no shuffling of its own); a stream that has "
                "partitions is divided by them"
            )
        return count

    def _is_idle(self, rounds: list[_Round]) -> bool:
        if self.idle_timeout is None or any(one.ready for one in rounds):
            return False
        waiting = [one.idle_ms for one in rounds if one.state != _ENDED]
        return bool(waiting) and min(waiting) >= 1000 * self.idle_timeout

    def _step(self, rounds: list[_Round], count: int) -> Iterator[Item | None]:
        if any(one.ready and not one.columns for one in rounds):
            raise DataError("a process has rows and does not know their columns")
        if not all(one.columns for one in rounds):
            self._share_template(rounds)
        kind = tuple(one.rows for one in rounds)
        if self._kind_before not in (None, kind):
            yield None  # what is grouped has other shapes on some process: all train it before they go on
        self._kind_before = kind
        times = [time for time in (_float(one.event_time) for one in rounds) if time == time]
        agreed = Agreed(_float(rounds[0].clock), max(times, default=float("nan")))
        ready = rounds[self.group.rank].ready
        own = [item for item, _ in zip(self._held, range(count if ready else 0), strict=False)]
        lengths = self._lists.lengths(own, self.ahead, [one.lists for one in rounds], self.names or ())
        for place in range(count):
            if ready:
                item = self._held.popleft()
                if self.divided:
                    item = item._replace(kind=kind, step_rows=sum(kind), lengths=lengths[place])
                else:
                    item = item._replace(state=item.state[1])
                self._state = item.state
            else:
                columns = made_up(self._template, self.names or (), lengths[place])
                state = self._state or self.rows_of.begun
                item = Item(columns, state, None, kind, True, sum(kind), lengths=lengths[place])
            yield item._replace(agreed=agreed)

    def _share_template(self, rounds: list[_Round]) -> None:
        """Take the looks of a batch from the first process that knows them; called by all together."""
        giver = next(rank for rank, one in enumerate(rounds) if one.columns)
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

    def go_back(self, position: Mapping[str, Any], trained: int) -> None:
        """See `Source.go_back`; each process goes back in its own part."""
        if not self._left_behind:
            self.rows_of.go_back(position, trained)

    def interrupt(self) -> None:
        """Stop reading."""
        self._local.interrupt()
        if self._reader is not None:
            self._left_behind |= not self._reader.stop()
            self._reader = None

    def close(self) -> None:
        """Stop reading; the stream itself belongs to the caller and stays open."""
        self.interrupt()
        self._local.close()


def _looks(column: Any) -> tuple[Any, ...]:
    """Return what rows of every process have in common; lists that are equally long by chance come as an array."""
    kind = "text" if column.dtype.kind in "OUS" else column.dtype.str
    return kind, column.ndim, column.shape[2:]


def _bytes(item: Item) -> int:
    return sum(column.nbytes for column in item.columns)


def _newest(item: Item) -> float:
    times = (item.extras or {}).get("event_time")
    return float("nan") if times is None or not len(times) else float(times.max())


def _bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


def _float(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))


def _packed(names: tuple[str, ...], columns: Columns) -> bytes:
    """Return names and one row of each column, of lists none; nothing where a column cannot be described so."""
    if any(column.dtype == object for column in columns):
        return b""
    lists = [column.options if isinstance(column, Ragged) else None for column in columns]
    return pack([names, lists], [column.values[:0] if isinstance(column, Ragged) else column[:1] for column in columns])
