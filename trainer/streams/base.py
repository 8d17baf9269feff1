"""The base classes of streams; `batch` defines what they return and where they are."""

from __future__ import annotations

import contextlib
import enum
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from .batch import Batch, Position, advance, concat
from .dead_letter import DeadLetter

if TYPE_CHECKING:
    from .formats.schema import Schema


class Sharing(enum.Enum):
    """How several processes that train together divide a stream.

    Attributes:
        ALONE: not at all; such a stream is for a single process.
        PARTITIONED: each reads its own partitions, which `Stream.deal` chooses.
        REPEATABLE: each reads the same rows in the same order and takes every n-th batch.
    """

    ALONE = "alone"
    PARTITIONED = "partitioned"
    REPEATABLE = "repeatable"

    @property
    def by_partition(self) -> bool:
        """Whether each process reads rows that no other one reads."""
        return self is Sharing.PARTITIONED

    @property
    def possible(self) -> bool:
        """Whether several processes can read the stream."""
        return self is not Sharing.ALONE


class Stream:
    """A source of rows with exact positions. A subclass implements `poll`, `position` and `seek`; the rest may stay.

    One thread calls `poll`; `commit`, `resolve`, `lag` and `close` may come from another.

    Attributes:
        schema: declared columns; gives a run the label and the event time. None: no declaration.
        event_time: name of the column that holds the event time, where no schema names it.
        reads_pipeline: whether `poll` reads a `mindspore.dataset` pipeline, which stays on the thread that created it.
        sharing: how several processes divide the stream.
        dead_letter: keeps rows that cannot be trained on; None: they are counted and the first is logged.
        allow_nan: names of the columns that may hold NaN and infinite values, or True for all, beside those whose
            schema allows it; elsewhere a row with one is bad.
    """

    schema: Schema | None = None
    dead_letter: DeadLetter | None = None
    allow_nan: Collection[str] | bool = ()
    event_time: str | None = None
    reads_pipeline: bool = False
    sharing: Sharing = Sharing.ALONE

    def declare(self, schema: Schema) -> None:
        """Take what the columns are to be, where the stream was given no schema; called before anything is read."""
        if self.schema is None:
            self.schema = schema

    def deal(self, rank: int, world: int) -> None:
        """Read only the partitions of process `rank` of `world`; called before the first row is read.

        Called again with the same numbers, before a further training on the stream, it changes nothing.

        All processes divide by one rule that follows from the partitions' names alone: none is read twice or left out,
        those that appear later included. `seek` is given a position of all partitions and keeps those read here.
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
        """Return `position` in the form that goes into a checkpoint, which another process can go on from.

        A stream that keeps state beside its offsets (a join's pending rows, the state of a user's iterable) adds it
        here; for all others the position stands for itself.
        """
        return position

    def commit(self, position: Position) -> None:
        """Tell the source that everything before `position` is safe; a hint that no resume relies on."""

    def lag(self) -> int | None:
        """Return how many rows (where rows are not known: messages) wait upstream, or None if unknown."""
        return None

    def close(self) -> None:
        """Release files and connections; a `poll` under way returns soon."""


class BufferedStream(Stream):
    """Common part of the streams here: fetched batches wait in a queue and are returned in pieces.

    A subclass implements `_fetch`, which pushes batches, and sets `_position` when it seeks. After a `_fetch` that
    raised, the next `poll` seeks to the position after the last row returned, so rows fetched since are read again.
    """

    def __init__(self) -> None:
        self._ready: deque[Batch] = deque()
        self._ready_rows = 0
        self._position: Position = {}
        self._closed = False
        self._fetch_failed = False

    def poll(self, max_rows: int, timeout: float = 0.0) -> Batch | None:
        """Return 1 to `max_rows` rows as soon as there are any, or None when `timeout` seconds brought none.

        Raises:
            ValueError: `max_rows` is not positive.
            StreamError: the source has failed for good, or bad rows could not be set aside. The position stays after
                the last row returned.
        """
        if max_rows < 1:
            raise ValueError(f"poll takes max_rows >= 1; received {max_rows}")
        deadline = monotonic() + timeout
        if self._fetch_failed and not self._closed:
            self._go_back()
            self._fetch_failed = False
        while not self._ready and not self._closed:
            left = deadline - monotonic()
            try:
                self._fetch(max_rows, max(0.0, left))
            except BaseException:
                self._fetch_failed = True
                raise
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

    @contextlib.contextmanager
    def _seeking(self, position: Position) -> Iterator[None]:
        """Surround the steps of a seek; where they fail, the next `poll` seeks to `position` again."""
        self._position, self._fetch_failed = dict(position), True
        yield
        self._fetch_failed = False

    def _go_back(self) -> None:
        """Return to the position after the last row returned, after a `_fetch` that failed."""
        self.seek(self.resolve(self._position))

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
