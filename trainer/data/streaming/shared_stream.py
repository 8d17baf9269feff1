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
from ..lockstep import LockstepSource, StepMessage
from ..position import Position
from ..source import Item, Source
from .stream_source import ChecksummedSource, StreamSource


class Agreed(NamedTuple):
    """Facts about a batch's step, known to all processes."""

    clock: float  # `time.monotonic()` of rank 0 when the step was agreed on
    event_time: float  # newest event time of the step's rows in seconds since the epoch; NaN if they have none


@dataclass(frozen=True)
class JobHooks(StopHooks):
    """Functions of the run that a shared stream calls when processes agree."""

    durable: Callable[[], int] = lambda: 0  # returns the number of durable snapshots; called on rank 0
    commit: Callable[[int], None] = lambda count: None  # called with the number of snapshots durable on all processes


class _StreamValues(NamedTuple):
    """The values of `StepMessage.extra` in a process's message; all int64."""

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
    source: StreamSource
    hooks: JobHooks

    def __init__(
        self, source: StreamSource, group: Group, ahead: int, hooks: JobHooks, idle_timeout: float | None = None
    ) -> None:
        super().__init__(source, group, hooks, ahead)
        self.batch_rows = source.batch_size
        self.idle_timeout = idle_timeout  # seconds without a row on any process until the stream ends
        self.divided = source.stream.sharing is Sharing.PARTITIONED
        self._batch_source: Source = source if self.divided else EveryNth(ChecksummedSource(source), group)
        if self.divided:
            source.stream.assign_partitions(group.rank, group.size)
        self._idle_seconds = 0.0  # seconds since this process's last batch
        self._idle_reported = False
        self._peek_began: float | None = None  # when the wait for the first rows began, during that wait

    @property
    def stream(self) -> Stream:
        """The stream that is read."""
        return self.source.stream

    def lag(self) -> int | None:
        """Return the rows waiting upstream of all processes, or None; a collective call."""
        return self._total(self.stream.lag())

    def late_rows(self) -> int | None:
        """Return the late rows of all processes, or None; a collective call."""
        own = self.stream.late_rows()  # None on all processes or on none
        return None if own is None else self._total(own)

    def _total(self, own: int | None) -> int | None:
        lags = self.group.gather(np.array([-1 if own is None else own], np.int64))[:, 0]
        if (lags < 0).any():
            return None
        return int(lags.sum() if self.divided else lags[0])

    def joint_position(self, position: Position) -> Position:
        own = self.source.resolve(position)
        if not self.divided:
            return own
        return position.merge([part or {} for part in self.group.gather_json(own.state)], self.stream.join)

    def commit(self, position: Position) -> None:
        """Acknowledge this process's part of `position`, which covers all processes."""
        if position.dealt is not None:
            self.source.commit(position.part(self.group.rank))
        elif self.group.is_main:
            self.source.commit(position)

    def go_back(self, position: Position, trained: int) -> None:
        if self.divided:
            trained //= self.group.size  # these are the rows of all processes, and each has read its own
        if self._left_behind:
            self.cannot_go_back(trained, "the thread that reads the stream still waits for it")
        else:
            self.source.go_back(position, trained)

    def cannot_go_back(self, trained: int, reason: object) -> None:
        self.source.cannot_go_back(trained, reason)

    def peek(self, should_stop: Callable[[], bool] = lambda: False) -> Columns:
        self._peek_began = time.monotonic()
        try:
            return super().peek(should_stop)
        finally:
            self._peek_began = None

    def _try_peek(self) -> tuple[Columns | None, bool]:
        columns = self.source.try_peek()
        if columns is None and self.source.go_to_resumed():
            return None, False
        return columns, columns is None and self.stream.exhausted

    def _open(self, epoch: int, start: int, state: Any) -> Generator[Item]:
        self.ended, self._idle_seconds, self._idle_reported = None, 0.0, False
        return (item for item in self._batch_source.batches(epoch, start, state) if item is not None)

    def _collect(self, items: Iterator[Item]) -> None:
        began = time.monotonic()
        super()._collect(items)
        self._idle_seconds = 0.0 if self._collected else self._idle_seconds + time.monotonic() - began

    def _is_late(self, ready: int) -> bool:
        # Other processes wait for the first position, because every step needs one.
        is_skipped = self.source.start_position is not None and self._idle_seconds >= self.source.flush_after
        return super()._is_late(ready) and not is_skipped

    def _extra_values(self, ready: int) -> _StreamValues:
        source, items, since = self.source, [*self._collected][:ready], self._peek_began
        if source.start_position is not None:
            since = source.last_row_time
        return _StreamValues(
            idle_ms=0 if since is None else int(1000 * (time.monotonic() - since)),
            event_time=_float_to_bits(max(map(_newest_event_time, items), default=float("nan"))),
            clock=_float_to_bits(time.monotonic()),
            durable=self.hooks.durable() if self.group.is_main else 0,
            content=0 if self.divided or not items else items[-1].state[0],
        )

    def _handle_messages(self, messages: list[StepMessage]) -> None:
        self.hooks.commit(_stream_values(messages[0]).durable)
        if self._peek_began is not None and not any(message.ready for message in messages):
            waiting = [_stream_values(message).idle_ms for message in messages if not message.ended]
            self.source.check_wait(min(waiting, default=0) / 1000, self.idle_timeout)

    def _agreed_count(self, messages: list[StepMessage]) -> int:
        if self.divided or not any(message.ready for message in messages):
            return super()._agreed_count(messages)
        if any(message.ended and not message.ready for message in messages):
            raise DataError(
                "the stream ended on some processes and not on others; without partitions every process must read the "
                "same rows: give a function that returns them, or a stream that has partitions"
            )
        counts = [message.ready for message in messages]
        contents = {_stream_values(message).content for message in messages}
        if min(counts) == max(counts) and len(contents) > 1:
            raise DataError(
                "the processes read different rows, so their steps would differ; without partitions every "
                "process must read the same rows in the same order (without its own shuffling); a stream that has "
                "partitions is divided by them"
            )
        return min(counts)

    def _is_idle(self, messages: list[StepMessage]) -> bool:
        if any(message.ready for message in messages):
            return False
        waiting = [_stream_values(message).idle_ms for message in messages if not message.ended]
        if self.idle_timeout is not None and waiting and min(waiting) >= 1000 * self.idle_timeout:
            self.source.finish("idle")
            return False
        reported = self._idle_reported
        self._idle_reported |= not any(message.is_late for message in messages)
        return self._idle_reported and not reported

    def _end(self) -> None:
        self.ended = self.source.ended or "stream_end"

    def _step(self, messages: list[StepMessage], count: int) -> Iterator[Item]:
        self._idle_reported = False
        values = [_stream_values(message) for message in messages]
        times = [time for time in (_float_from_bits(part.event_time) for part in values) if not math.isnan(time)]
        agreed = Agreed(_float_from_bits(values[0].clock), max(times, default=float("nan")))
        # Without partitions, every process has read the rows of these steps and keeps its share of them.
        items = super()._step(messages, count) if self.divided else (self._collected.popleft() for _ in range(count))
        for item in items:
            item.state = (item.state if self.divided else item.state[1]) or self.source.start_position
            item.agreed = agreed
            yield item


def _stream_values(message: StepMessage) -> _StreamValues:
    return _StreamValues(*message.extra)


def _newest_event_time(item: Item) -> float:
    times = (item.extras or {}).get("event_time")
    return float("nan") if times is None or not len(times) else float(times.max())


def _float_to_bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


def _float_from_bits(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))
