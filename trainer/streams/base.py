"""What every stream is: batches of NumPy columns that know exactly which upstream rows they hold.

A *partition* is one ordered source (a topic's partition, a Redis key, a folder of files); an *offset* is the place of
a message in it (an int, or a string where the source counts in strings); a *row* is the place within the message,
counted from 0, rows that were set aside as bad included. So ``(partition, offset, row)`` names a row for ever.

A *position* is JSON: ``{partition: [offset, row]}``, the next row to read. Keys that start with ``@`` belong to the
stream and are carried along as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import DataError, StreamError, did_you_mean

if TYPE_CHECKING:
    from .schema import Schema

Offset = int | str
Position = dict[str, Any]


class Span(NamedTuple):
    """A run of consecutive rows of one message.

    Attributes:
        partition: name of the ordered source.
        offset: place of the message in it.
        first_row: number of the first row within the message.
        last_row: number of the last row, itself included.
        next_offset: offset at which to go on when the message holds no good row after `last_row`; None when the span
            ends in the middle of its message.
    """

    partition: str
    offset: Offset
    first_row: int
    last_row: int
    next_offset: Offset | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.last_row - self.first_row + 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a stream, column by column.

    Attributes:
        columns: name -> array, shape [rows, ...], all with the same number of rows.
        event_time: seconds since the epoch, shape [rows], float64; None when the stream has no event time.
        spans: where the rows come from, in row order; their row counts add up to `rows`.
    """

    columns: dict[str, np.ndarray]
    event_time: np.ndarray | None
    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        for column in self.columns.values():
            return len(column)
        return 0

    def split(self, n: int) -> tuple[Batch, Batch]:
        """Return the first `n` rows and the rest; the arrays of both are views.

        Raises:
            ValueError: `n` is not within 0 to `rows`.
        """
        if not 0 <= n <= self.rows:
            raise ValueError(f"split takes 0 to {self.rows} rows; received {n}")
        times = self.event_time
        head = {name: column[:n] for name, column in self.columns.items()}
        tail = {name: column[n:] for name, column in self.columns.items()}
        before, after = _split_spans(self.spans, n)
        return (
            Batch(head, None if times is None else times[:n], before),
            Batch(tail, None if times is None else times[n:], after),
        )


def _split_spans(spans: tuple[Span, ...], n: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    for index, span in enumerate(spans):
        if n < span.rows:
            if n == 0:
                return spans[:index], spans[index:]
            first = span._replace(last_row=span.first_row + n - 1, next_offset=None)
            second = span._replace(first_row=span.first_row + n)
            return (*spans[:index], first), (second, *spans[index + 1 :])
        n -= span.rows
    return spans, ()


def concat(batches: Sequence[Batch]) -> Batch:
    """Join batches in order; one batch is returned as it is.

    Raises:
        DataError: none was given, or they differ in columns, row shapes or in having an event time.
    """
    if not batches:
        raise DataError("concat takes at least one batch; received none")
    first = batches[0]
    if len(batches) == 1:
        return first
    for batch in batches:
        if batch.columns.keys() != first.columns.keys() or (batch.event_time is None) != (first.event_time is None):
            raise DataError(
                f"batches of one stream have the same columns; received {sorted(first.columns)} and "
                f"{sorted(batch.columns)}, event time {first.event_time is not None} and {batch.event_time is not None}"
            )
    columns = {}
    for name in first.columns:
        try:
            columns[name] = np.concatenate([batch.columns[name] for batch in batches])
        except ValueError as error:
            shapes = sorted({batch.columns[name].shape[1:] for batch in batches})
            raise DataError(f"column {name!r} changed its row shape within the stream: {shapes}") from error
    times = None if first.event_time is None else np.concatenate([batch.event_time for batch in batches])
    return Batch(columns, times, tuple(span for batch in batches for span in batch.spans))


def advance(position: Position, batch: Batch) -> Position:
    """Return the position after the last row of `batch`, given that before its first row. Changes neither."""
    last = {span.partition: span for span in batch.spans}
    moved = dict(position)
    for partition, span in last.items():
        done = span.next_offset is not None
        moved[partition] = [span.next_offset, 0] if done else [span.offset, span.last_row + 1]
    return moved


def require_partitions(stream: object, position: Position, known: Collection[str]) -> None:
    """Check that a position is about these partitions.

    Raises:
        StreamError: it names others; starting over in silence would train on rows a second time.
    """
    for name in position:
        if not name.startswith("@") and name not in known:
            raise StreamError(
                f"{type(stream).__name__} reads {sorted(known)}; the position is about {name!r}"
                f"{did_you_mean(name, known)}: it is another stream's"
            )


class Stream:
    """A source of rows with exact positions. A subclass implements `poll`, `position` and `seek`; the rest may stay.

    One thread calls `poll`; `commit`, `resolve`, `lag` and `close` may come from another.

    Attributes:
        schema: what is declared of the columns; gives a run the label and the event time. None: nothing is.
        event_time: name of the column that holds the event time, where no schema tells.
        reads_pipeline: whether `poll` reads a `mindspore.dataset` pipeline and so must stay on the thread that made it.
        partitioned: whether several processes can divide the stream's partitions among them (`deal`).
        repeatable: whether every process that makes the stream reads the same rows in the same order, so that each may
            take every n-th batch.
    """

    schema: Schema | None = None
    event_time: str | None = None
    reads_pipeline: bool = False
    partitioned: bool = False
    repeatable: bool = False

    def deal(self, rank: int, world: int) -> None:
        """Read only the partitions of process `rank` of `world`; called before anything is read, if `partitioned`.

        Called again with the same numbers, before a further training on the stream, it changes nothing: that goes on.

        All processes divide by one rule that follows from the partitions' names alone: none is read twice or left out,
        those that appear later included. `seek` is given a position of all partitions and takes what is read here.
        """
        raise NotImplementedError

    def join(self, positions: Sequence[Position]) -> Position:
        """Return the position of the whole stream from those of all processes, in the order of ranks."""
        return {name: value for position in positions for name, value in position.items()}

    @property
    def exhausted(self) -> bool:
        """Whether a bounded stream has ended: every row has been returned and none will follow."""
        return False

    def poll(self, max_rows: int, timeout: float = 0.0) -> Batch | None:
        """Return 1 to `max_rows` rows as soon as there are any, or None when `timeout` seconds brought none."""
        raise NotImplementedError

    def position(self) -> Position:
        """Return the position after the rows returned so far, in the middle of a message where that is so."""
        raise NotImplementedError

    def seek(self, position: Position) -> None:
        """Go on reading at `position`; an empty one means the stream's configured start."""
        raise NotImplementedError

    def resolve(self, position: Position) -> Position:
        """Return `position` in the form that goes into a checkpoint: one that needs nothing the process remembers.

        A stream that keeps state beside its offsets (a join's pending rows, the state of a user's iterable) adds it
        here; for all others the position stands for itself.
        """
        return position

    def commit(self, position: Position) -> None:
        """Tell the source that everything before `position` is safe; a hint, never what a resume relies on."""

    def lag(self) -> int | None:
        """Return how many rows (where rows are not known: messages) wait upstream, or None when it cannot be told."""
        return None

    def close(self) -> None:
        """Release files and connections; a `poll` under way returns soon."""


class BufferedStream(Stream):
    """Common part of the streams here: fetched batches wait in a queue and are handed out in pieces.

    A subclass implements `_fetch`, which appends to `_ready`, and sets `_position` when it seeks.
    """

    def __init__(self) -> None:
        self._ready: deque[Batch] = deque()
        self._ready_rows = 0
        self._position: Position = {}
        self._closed = False

    def poll(self, max_rows: int, timeout: float = 0.0) -> Batch | None:
        """Return 1 to `max_rows` rows as soon as there are any, or None when `timeout` seconds brought none.

        Raises:
            ValueError: `max_rows` is not positive.
            StreamError: the source has failed for good.
        """
        if max_rows < 1:
            raise ValueError(f"poll takes max_rows >= 1; received {max_rows}")
        deadline = monotonic() + timeout
        while not self._ready and not self._closed:
            left = deadline - monotonic()
            self._fetch(max_rows, max(0.0, left))
            if not self._ready and (left <= 0 or self.exhausted):
                return None
        if self._closed:
            return None
        batch = concat(self._take(max_rows))
        self._position = advance(self._position, batch)
        return batch

    def _take(self, max_rows: int) -> list[Batch]:
        taken: list[Batch] = []
        while self._ready and max_rows:
            batch = self._ready.popleft()
            if batch.rows > max_rows:
                batch, rest = batch.split(max_rows)
                self._ready.appendleft(rest)
            taken.append(batch)
            max_rows -= batch.rows
            self._ready_rows -= batch.rows
        return taken

    def _push(self, batch: Batch | None) -> None:
        if batch is not None and batch.rows:
            self._ready.append(batch)
            self._ready_rows += batch.rows

    def _clear(self) -> None:
        self._ready.clear()
        self._ready_rows = 0

    def _fetch(self, max_rows: int, timeout: float) -> None:
        """Push at least one batch if any arrives within `timeout` seconds; may return early with none."""
        raise NotImplementedError

    def position(self) -> Position:
        """Return the position after the rows returned so far."""
        return dict(self._position)

    def lag(self) -> int | None:
        """Return the number of rows fetched and not yet returned."""
        return self._ready_rows

    def close(self) -> None:
        """Release what the stream holds."""
        self._closed = True
