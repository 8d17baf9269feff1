"""Base classes of streams; see `batch` for batches and positions."""

from __future__ import annotations

import contextlib
import enum
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from .batch import MAX_FUTURE, Batch, Position, advance, concat
from .dead_letter import DeadLetter

if TYPE_CHECKING:
    from .formats.schema import Schema


class Sharing(enum.Enum):
    """Ways to divide a stream among the ranks of a group.

    Attributes:
        ALONE: the stream cannot be divided; only a single process can read it.
        PARTITIONED: each rank reads its own partitions, assigned by `Stream.assign_partitions`.
        REPEATABLE: every rank reads the same rows in the same order. Each of n ranks keeps every n-th batch.
    """

    ALONE = "alone"
    PARTITIONED = "partitioned"
    REPEATABLE = "repeatable"


class Stream:
    """A source of rows with exact positions.

    A subclass must implement `poll`, `position` and `seek`; the other methods are optional.

    One thread calls `poll`; another thread may call `commit`, `resolve`, `lag` and `close`.

    Attributes:
        schema: declared columns, including the label and the event time; None if nothing is declared.
        label: name of the label column; used if no schema names one.
        event_time: name of the column that holds the event time; used if no schema names one.
        max_future: seconds that an event time may lie ahead of this machine's clock; rows further ahead are bad. None
            disables the check. Used if the stream has no schema of its own.
        reads_pipeline: whether `poll` reads a `mindspore.dataset` pipeline, which stays on the thread that created it.
        sharing: how several processes divide the stream.
        dead_letter: records rows that cannot be trained on. If it is None, bad rows are only counted, and the first one
            is logged.
        allow_nan: names of the columns that may hold NaN and infinite values, or True for all columns. Columns whose
            schema allows such values may hold them, too. In other columns, NaN or infinity makes a row bad.
        counts_rows: whether `poll` checks rows against the schema and counts them with `dead_letter`.
        closed: whether `close` was called, after which no rows come.
        rows_ahead: most rows that the reader takes beyond the position that it passes to `resolve`; set by the reader.
    """

    schema: Schema | None = None
    dead_letter: DeadLetter | None = None
    allow_nan: Collection[str] | bool = ()
    label: str | None = None
    event_time: str | None = None
    max_future: float | None = MAX_FUTURE
    reads_pipeline: bool = False
    sharing: Sharing = Sharing.ALONE
    counts_rows: bool = False
    closed: bool = False
    rows_ahead: int = 0

    @property
    def decoded(self) -> Schema | None:
        """Schema with which `poll` decodes rows, or None if it returns raw rows."""
        return self.schema if self.counts_rows else None

    def declare(self, schema: Schema) -> None:
        """Set the schema if the stream has none; called before the first read."""
        if self.schema is None:
            self.schema = schema

    def assign_partitions(self, rank: int, world: int) -> None:
        """Read only the partitions of one rank; called before the first read.

        The assignment depends only on partition names, so exactly one rank reads each partition, including partitions
        added later. A second call with the same arguments, for another training run on the stream, has no effect.
        `seek` receives the positions of all partitions, and uses those of this rank.

        Args:
            rank: index of this process.
            world: number of processes.
        """
        raise NotImplementedError(f"{type(self).__name__} is PARTITIONED: it needs assign_partitions(rank, world)")

    def join(self, positions: Sequence[Position]) -> Position:
        """Merge the positions of all ranks, in rank order, into one for the whole stream."""
        return {name: value for position in positions for name, value in position.items()}

    @property
    def exhausted(self) -> bool:
        """Whether a bounded stream has returned its last row."""
        return False

    @property
    def retrying(self) -> bool:
        """Whether the source has failed and is being retried; rows may wait there."""
        return False

    def poll(self, max_rows: int, timeout: float = 0.0) -> Batch | None:
        """Return 1 to `max_rows` rows when available, or None after `timeout` seconds."""
        raise NotImplementedError

    def position(self) -> Position:
        """Return the position after the last returned row; it may be inside a message."""
        raise NotImplementedError

    def seek(self, position: Position) -> None:
        """Continue reading at `position`, or at the configured start if it is empty."""
        raise NotImplementedError

    def resolve(self, position: Position) -> Position:
        """Return `position` in the form that a checkpoint stores.

        A stream with state besides its offsets (a join's pending rows, the state of a user's iterable) adds it here, so
        that another process can resume.
        """
        return position

    def commit(self, position: Position) -> None:
        """Tell the source that all rows before `position` are checkpointed; only a hint."""

    def lag(self) -> int | None:
        """Return the number of rows or messages waiting upstream, or None if unknown."""
        return None

    def late_rows(self) -> int | None:
        """Return the number of rows that came too late, or None if rows cannot be late."""
        return None

    def counts(self) -> dict[str, int]:
        """Return further counts to report, besides lag and late rows.

        Every call returns the same names. The metrics of a window show them with the prefix ``stream_``.
        """
        return {}

    def close(self) -> None:
        """Release files and connections; a running `poll` returns soon."""


class BufferedStream(Stream):
    """A stream that queues fetched batches and returns them in pieces.

    A subclass implements `_fetch`, which pushes batches, and sets `_position` in `seek`. If `_fetch` raises, the next
    `poll` seeks back to the position after the last returned row and reads the queued rows again.
    """

    def __init__(self) -> None:
        self._ready: deque[Batch] = deque()
        self._ready_rows = 0
        self._position: Position = {}
        self._closed = False
        self._fetch_failed = False
        self._ended = False  # whether a bounded source has no rows besides the queued ones; set by a subclass

    def poll(self, max_rows: int, timeout: float = 0.0) -> Batch | None:
        """Return 1 to `max_rows` rows when available, or None after `timeout` seconds.

        Raises:
            StreamError: the source failed permanently, or bad rows could not be written to the dead-letter file. The
                position stays after the last returned row.
        """
        if max_rows < 1:
            raise ValueError(f"poll takes max_rows >= 1; received {max_rows}")
        deadline = monotonic() + timeout
        if self._fetch_failed and not self._closed:
            self._go_back()
            self._fetch_failed = False
        while not self._ready and not self._closed:
            remaining = deadline - monotonic()
            try:
                self._fetch(max_rows, max(0.0, remaining))
            except BaseException:
                self._fetch_failed = True
                raise
            if not self._ready and (remaining <= 0 or self.exhausted):
                return None
        if self._closed:
            return None
        batch = concat(self._take(max_rows))
        self._position = advance(self._position, batch)
        return batch

    @property
    def closed(self) -> bool:  # type: ignore[override]
        return self._closed

    @property
    def exhausted(self) -> bool:
        return self._ended and not self._ready

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

    @contextlib.contextmanager
    def _seeking(self, position: Position) -> Iterator[None]:
        """Run the steps of a seek; if they fail, the next `poll` seeks again."""
        self._position, self._fetch_failed = dict(position), True
        yield
        self._fetch_failed = False

    def _go_back(self) -> None:
        """Seek back to the position after the last returned row, after a failed `_fetch`."""
        self.seek(self.resolve(self._position))

    def _use_schema(self, schema: Schema) -> None:
        """Use a schema; rows that were decoded with another one are read again."""
        self._fetch_failed = self._fetch_failed or self.schema not in (None, schema)
        self.schema = schema

    def _push(self, batch: Batch | None) -> None:
        if batch is not None and batch.rows:
            self._ready.append(batch)
            self._ready_rows += batch.rows

    def _clear(self) -> None:
        self._ready.clear()
        self._ready_rows = 0

    def _fetch(self, max_rows: int, timeout: float) -> None:
        """Push any batches that arrive within `timeout` seconds; may return early."""
        raise NotImplementedError

    def position(self) -> Position:
        return dict(self._position)

    def lag(self) -> int | None:
        """Return the number of fetched rows not yet returned."""
        return self._ready_rows

    def close(self) -> None:
        self._closed = True
