"""`SharedStream`: a stream divided among processes that take the same steps.

A partitioned stream is divided by its partitions. A stream without partitions is read by all processes, and each
process takes its share of every step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...distributed.agreement import StopHooks
from ...distributed.group import Group
from ...errors import DataError
from ...streams import Sharing, Stream
from ..as_columns import Columns
from ..finite.shards import EveryNth
from ..lockstep import LockstepSource, Round
from ..position import Position
from ..source import Item, Source
from .stream_source import StreamSource, SummedSource


class Agreed(NamedTuple):
    """Facts about a batch's step, known to all processes."""

    clock: float  # `time.monotonic()` of rank 0 when the step was agreed on
    event_time: float  # newest event time of the step's rows in seconds since the epoch; NaN if they have none


@dataclass(frozen=True)
class JobHooks(StopHooks):
    """Functions of the run that a shared stream calls when processes agree."""

    durable: Callable[[], int] = lambda: 0  # returns the number of durable snapshots; called on rank 0
    commit: Callable[[int], None] = lambda count: None  # called with the number of snapshots durable on all processes


class _StreamPart(NamedTuple):
    """The values of `Round.more` in a process's message; all int64."""

    idle_ms: int  # milliseconds since this process's last row
    event_time: int  # bits of a float64
    clock: int  # bits of a float64
    durable: int
    content: int  # CRC-32 of the rows that must be the same on all processes; 0 if each has its own


class SharedStream(LockstepSource):
    """This process's share of a stream."""

    endless = True
    whole_calls = False
    empty_message = "the stream gave no rows"
    rows_of: StreamSource
    hooks: JobHooks

    def __init__(
        self, local: StreamSource, group: Group, ahead: int, hooks: JobHooks, idle_timeout: float | None = None
    ) -> None:
        super().__init__(local, group, hooks, ahead)
        self.batch_rows = local.batch_size
        self.idle_timeout = idle_timeout  # seconds without a row on any process until the stream ends
        self.divided = local.stream.sharing is Sharing.PARTITIONED
        self._local: Source = local if self.divided else EveryNth(SummedSource(local), group)
        if self.divided:
            local.stream.deal(group.rank, group.size)
        self._waited = 0.0  # seconds since this process's last batch
        self._idle_reported = False

    @property
    def stream(self) -> Stream:
        """The stream that is read."""
        return self.rows_of.stream

    def lag(self) -> int | None:
        """Return the rows waiting upstream of all processes, or None; a collective call."""
        return self._of_all(self.stream.lag())

    def late_rows(self) -> int | None:
        """Return the late rows of all processes, or None; a collective call."""
        own = self.stream.late_rows()  # None on all processes or on none
        return None if own is None else self._of_all(own)

    def _of_all(self, own: int | None) -> int | None:
        lags = self.group.gather(np.array([-1 if own is None else own], np.int64))[:, 0]
        if (lags < 0).any():
            return None
        return int(lags.sum() if self.divided else lags[0])

    def of_all(self, position: Position) -> Position:
        own = self.rows_of.resolve(position)
        if not self.divided:
            return own
        return position.merge([part or {} for part in self.group.gather_json(own.state)], self.stream.join)

    def commit(self, position: Position) -> None:
        """Acknowledge this process's part of `position`, which covers all processes."""
        if position.dealt is not None:
            self.rows_of.commit(position.part(self.group.rank))
        elif self.group.is_main:
            self.rows_of.commit(position)

    def go_back(self, position: Position, trained: int) -> None:
        if not self._left_behind:
            self.rows_of.go_back(position, trained)

    def _try_peek(self) -> tuple[Columns | None, bool]:
        columns = self.rows_of.try_peek()
        return columns, columns is None and self.stream.exhausted

    def _open(self, epoch: int, start: int, state: Any) -> Generator[Item]:
        self.ended, self._waited, self._idle_reported = None, 0.0, False
        return (item for item in self._local.batches(epoch, start, state) if item is not None)

    def _fill(self, items: Iterator[Item]) -> None:
        began = time.monotonic()
        super()._fill(items)
        self._waited = 0.0 if self._ready else self._waited + time.monotonic() - began

    def _waits(self, ready: int) -> bool:
        # every step needs a position, which a stream has only once it is connected
        passed_over = self.rows_of.begun is not None and self._waited >= self.rows_of.flush_after
        return super()._waits(ready) and not passed_over

    def _more(self, ready: int) -> _StreamPart:
        items = [*self._ready][:ready]
        return _StreamPart(
            idle_ms=0 if self.rows_of.begun is None else int(1000 * (time.monotonic() - self.rows_of.last_row)),
            event_time=_bits(max(map(_newest, items), default=float("nan"))),
            clock=_bits(time.monotonic()),
            durable=self.hooks.durable() if self.group.is_main else 0,
            content=0 if self.divided or not items else items[-1].state[0],
        )

    def _received(self, rounds: list[Round]) -> None:
        self.hooks.commit(_part(rounds[0]).durable)

    def _agreed_count(self, rounds: list[Round]) -> int:
        if self.divided or not any(sent.ready for sent in rounds):
            return super()._agreed_count(rounds)
        if any(sent.ended and not sent.ready for sent in rounds):
            raise DataError(
                "the stream ended on some processes and not on others; without partitions every process must read the "
                "same rows: give a function that returns them, or a stream that has partitions"
            )
        count = min(sent.ready for sent in rounds)
        if count == max(sent.ready for sent in rounds) and len({_part(sent).content for sent in rounds}) > 1:
            raise DataError(
                "the processes read different rows, so their steps would differ; without partitions every "
                "process must read the same rows in the same order (without its own shuffling); a stream that has "
                "partitions is divided by them"
            )
        return count

    def _idles(self, rounds: list[Round]) -> bool:
        if any(sent.ready for sent in rounds):
            return False
        waiting = [_part(sent).idle_ms for sent in rounds if not sent.ended]
        if self.idle_timeout is not None and waiting and min(waiting) >= 1000 * self.idle_timeout:
            self.rows_of.finish("idle")
            return False
        reported = self._idle_reported
        self._idle_reported |= not any(sent.waits for sent in rounds)
        return self._idle_reported and not reported

    def _end(self) -> None:
        self.ended = self.rows_of.ended or "stream_end"

    def _step(self, rounds: list[Round], count: int) -> Iterator[Item]:
        self._idle_reported = False
        parts = [_part(sent) for sent in rounds]
        times = [time for time in (_float(part.event_time) for part in parts) if not math.isnan(time)]
        agreed = Agreed(_float(parts[0].clock), max(times, default=float("nan")))
        # without partitions, every process has read these steps and has a share of each
        items = super()._step(rounds, count) if self.divided else (self._ready.popleft() for _ in range(count))
        for item in items:
            item.state = (item.state if self.divided else item.state[1]) or self.rows_of.begun
            item.agreed = agreed
            yield item


def _part(sent: Round) -> _StreamPart:
    return _StreamPart(*sent.more)


def _newest(item: Item) -> float:
    times = (item.extras or {}).get("event_time")
    return float("nan") if times is None or not len(times) else float(times.max())


def _bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


def _float(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))
