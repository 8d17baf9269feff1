"""`StreamSource`: reads a stream in batches of one size, with their positions."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import DataError, StreamError, did_you_mean
from ...features.stream_rows import RAW, BatchTransform
from ...streams import Batch, DeadLetter, IterableStream, Stream, advance, concat
from ...streams.batch import far_ahead
from ...streams.dead_letter import BadRow
from ..as_columns import Columns, as_array, check_task_labels, non_finite_rows
from ..position import Position
from ..ragged import ListTypes, Ragged, data_arguments
from ..source import Item, Source, WrappedSource
from ..waiting import Interrupted

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
DEFAULT_BATCH_SIZE = 1024
_CALLS_AHEAD = 6  # calls being trained, queued, prepared and read, of streams that queue no more of them


CountedRows = Callable[[Sequence[np.ndarray]], Sequence["np.ndarray | None"]]


class StreamSource(Source):
    """Reads a stream in batches of one size, each with the position after it.

    The label column is `label` if given, else the label of the schema or the stream, else the column "label", else the
    last column that is not an input, the weight or the event time.
    """

    endless = True

    def __init__(
        self,
        stream: Stream,
        batch_size: int | None = None,  # None: `DEFAULT_BATCH_SIZE`, or the batches of an iterable unchanged
        *,
        inputs: Sequence[str] = (),  # columns the network takes, in order; empty: every column but the labels
        labelled: bool = True,  # whether the last columns are a label and, with `weight`, its loss weight
        label: str | None = None,
        labels: Sequence[str] = (),  # labels of several tasks, in the order of the loss; they replace `label`
        weight: str | None = None,  # column of loss weights, passed to the loss after the label
        extras: Sequence[str] = (),  # columns kept on the host with the batch (the group of a metric)
        counted_rows: CountedRows | None = None,
        list_types: ListTypes | None = None,
        transform: BatchTransform | None = None,
        flush_after: float = 1.0,  # seconds without a row after which an incomplete call is trained
        idle_timeout: float | None = None,  # seconds without a row after which the stream counts as ended
        restarts: bool = False,  # whether every call reads from the beginning; else `go_back` seeks to the trained rows
        resumed_state: Callable[[], Any] = lambda: None,  # returns the state of the position to resume from, or None
        max_seconds: float | None = None,  # limit of the call, beyond which the first rows are not waited for
    ) -> None:
        self.stream = stream
        self._transform = transform
        self.thread_bound = stream.reads_pipeline
        self.whole_items = self.any_size = batch_size is None and isinstance(stream, IterableStream)
        self.batch_size = batch_size or DEFAULT_BATCH_SIZE
        self.inputs = tuple(inputs)
        self.labelled = labelled
        declared = stream.schema
        self.label = label or (declared.label if declared is not None else None) or (stream.label if labelled else None)
        self.event_time = (declared.event_time if declared is not None else None) or stream.event_time
        self.labels = tuple(labels)
        self.weight = weight
        self.extras = tuple(extras)
        self.list_types = list_types
        self._bad_row_filter = BadRowFilter(stream, self.labels, counted_rows)
        self.flush_after = flush_after
        self.idle_timeout = idle_timeout
        self.restarts = restarts
        self.resumed_state, self._has_resumed = resumed_state, False
        self.max_seconds = max_seconds
        self.start_position: dict[str, Any] | None = None  # position at which `batches` started, once known
        self.last_row_time = time.monotonic()
        self._stopped = False
        self._finish_reason: str | None = None
        self._read_rows = 0
        self._peeked: Batch | None = None
        self._position_before_peek: Any = None  # a position, once rows were peeked at

    def lag(self) -> int | None:
        return self.stream.lag()

    def late_rows(self) -> int | None:
        return self.stream.late_rows()

    def stream_counts(self) -> dict[str, int]:
        return self.stream.counts()

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        self._stopped, self.ended, self._finish_reason, self.start_position = False, None, None, None
        if state is not None:
            self.stream.seek(state)
            self._peeked = None
        if self._transform is not None:
            self._transform.begin()
        position = self.stream.position() if self._peeked is None else self._position_before_peek
        self.start_position = position
        waiting: list[Batch] = []
        rows = 0
        self.last_row_time = time.monotonic()
        idle_reported = False
        while not self._stopped:
            batch, self._peeked = self._peeked, None
            if batch is None:
                batch = self._poll(self.batch_size - rows)
            if batch is None:
                idle = time.monotonic() - self.last_row_time
                if self.stream.exhausted:
                    self.ended = "stream_end"
                elif self._finish_reason is not None:
                    self.ended = self._finish_reason
                elif self.stream.closed:
                    raise StreamError(f"{type(self.stream).__name__} is closed: no more rows come; open a new one")
                elif self.idle_timeout is not None and idle >= self.idle_timeout:
                    self.ended = "idle"
                elif idle >= self.flush_after and not idle_reported:
                    idle_reported = True
                    yield None
                if self.ended:
                    break
                continue
            read = batch.rows
            if not read:  # all rows were bad
                continue
            self._read_rows += read
            self.last_row_time, idle_reported = time.monotonic(), False
            waiting.append(batch)
            rows += read
            if rows >= self.batch_size or self.whole_items:
                joined = concat(waiting)
                position = advance(position, joined)
                waiting, rows = [], 0
                yield self._item(joined, position)
                self.last_row_time = time.monotonic()  # time spent by the caller does not count as idle
        if waiting and not self._stopped:
            joined = concat(waiting)
            yield self._item(joined, advance(position, joined))

    def peek(self, should_stop: Callable[[], bool] = lambda: False) -> Columns:
        """Return the first rows' columns without consuming them.

        If no row comes soon, the rows at the position of the run to resume are read, which may be older.

        Raises:
            DataError: the stream has ended without a row.
            Interrupted: no row came in time, see `check_wait`.
        """
        began = time.monotonic()
        while not should_stop():
            columns = self.try_peek()
            if columns is not None:
                return columns
            if self.go_to_resumed():
                continue
            if self.stream.exhausted:
                break
            self.check_wait(time.monotonic() - began, self.idle_timeout)
        raise DataError("the stream gave no rows")

    def go_to_resumed(self) -> bool:
        """Seek to the position to resume from; return False if that was done before."""
        if self._has_resumed:
            return False
        self._has_resumed = True
        if state := self.resumed_state():
            self.stream.seek(state)
        return True

    def check_wait(self, seconds: float, idle_timeout: float | None) -> None:
        """Raise Interrupted and set `ended` after too long a wait for the first rows."""
        limits = {"idle": idle_timeout, "limit": self.max_seconds}
        self.ended = next((kind for kind, limit in limits.items() if limit is not None and seconds >= limit), None)
        if self.ended is not None:
            raise Interrupted

    def try_peek(self) -> Columns | None:
        """Return the first rows' columns without consuming them; None if none come soon."""
        if self._peeked is None:
            self._position_before_peek = self.stream.position()
            batch = self._poll(self.batch_size)
            self._peeked = batch if batch is not None and batch.rows else None
        return None if self._peeked is None else self._columns(self._peeked)

    def _poll(self, max_rows: int) -> Batch | None:
        """Return up to `max_rows` trainable rows; an empty batch if all are bad."""
        self.stream.rows_ahead = _CALLS_AHEAD * self.ahead * self.batch_size
        batch = self.stream.poll((1 << 30) if self.whole_items else max_rows, POLL_SECONDS)
        if batch is not None and self._transform is not None:
            batch = self._transform(batch)
        if batch is None:
            return None
        return self._bad_row_filter(batch, self._names_of(batch))

    def _names_of(self, batch: Batch) -> tuple[str, ...]:
        """Return the columns to read, which the first batch decides."""
        if self.names is None:
            self.names = self._choose_columns(batch.columns)
        return self.names

    def go_back(self, position: Position, trained: int) -> None:
        """Seek to `position`; warn of rows read but not trained that cannot be reread."""
        if self._transform is not None:
            self._transform.go_back()
        state = position.state
        if state is None:
            state = self._position_before_peek if self.start_position is None else self.start_position
        if state is None or self.restarts:
            return
        try:
            # A source that does not answer can still seek.
            if self.stream.retrying or state != self.stream.position():
                self.stream.seek(self.stream.resolve(state))
        except Exception as error:  # any: it would hide the one that ended the run
            self.cannot_go_back(trained, error)

    def cannot_go_back(self, trained: int, reason: object) -> None:
        unread = self._read_rows + (0 if self._peeked is None else self._peeked.rows) - trained
        if unread > 0 and not self.restarts:
            logger.warning(
                "%d rows were read ahead but not trained on, and the next call starts after them: %s", unread, reason
            )

    def finish(self, reason: str) -> None:
        """Let `batches`, on another thread, yield its remaining rows and end when idle."""
        self._finish_reason = reason

    def _item(self, batch: Batch, position: dict[str, Any]) -> Item:
        if self._transform is not None:
            self._transform.learn(batch, position)
        extras: dict[str, Any] = {name: batch.columns[name] for name in self.extras}
        if batch.event_time is not None:
            extras["event_time"] = batch.event_time
        return Item(self._columns(batch), position, extras)

    def _columns(self, batch: Batch) -> Columns:
        names = self._names_of(batch)
        columns = tuple([as_array(batch.columns[name], name) for name in names])
        return columns if self.list_types is None else self.list_types(columns, names)

    def _choose_columns(self, columns: dict[str, np.ndarray]) -> tuple[str, ...]:
        # The columns to train on are the inputs, then the labels, then the weight.
        available = [name for name in columns if not name.startswith(RAW)]
        check_task_labels(self.labels, available)
        named = filter(None, (None if self.labels else self.label, self.weight))
        for name in (*self.extras, *named):
            if name not in columns:
                raise DataError(f"the stream has no column {name!r}; it has {available}{did_you_mean(name, available)}")
        inputs = data_arguments(self.inputs, columns)
        chosen = inputs if set(inputs) <= set(available) else ()
        others = [name for name in available if name not in (*chosen, self.weight, self.event_time)]
        if not self.labelled:
            return chosen or tuple(others)
        labels = self.labels
        if labels and labels[0] not in columns:  # columns without names
            return tuple(others)
        if not labels:
            label = self.label or ("label" if "label" in others else others[-1] if others else None)
            if label is None:
                raise DataError(f"the stream has no label besides the network's columns; it has {available}")
            labels = (label,)
        last_columns = (*labels, self.weight) if self.weight else labels
        return (*(chosen or [name for name in others if name not in last_columns]), *last_columns)

    def resolve(self, position: Position) -> Position:
        return position if position.state is None else position.with_state(self.stream.resolve(position.state))

    def trained_to(self, position: Position) -> None:
        if self._transform is not None:
            self._transform.trained_to(position.state, updated=not position.micro_batches)

    def commit(self, position: Position) -> None:
        if position.state is not None:
            self.stream.commit(position.state)

    def interrupt(self) -> None:
        self._stopped = True

    def close(self) -> None:
        """Stop reading; the stream itself belongs to the caller and stays open."""
        self._stopped = True


class ChecksummedSource(WrappedSource):
    """Adds a checksum to a stream's positions: (CRC-32 of all rows so far, position).

    Processes compare the checksums to detect that they read different rows.
    """

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        total = 0
        for item in self.source.batches(epoch, start, state):
            if item is not None:
                for column in item.columns:
                    for part in _bytes_of(column):
                        total = zlib.crc32(part, total)
                item.state = (total, item.state)
            yield item


def _bytes_of(column: Any) -> list[Any]:
    if isinstance(column, Ragged):
        rows = column[:]  # a view may start in the middle of its values
        return [rows.lengths, *_bytes_of(rows.values)]
    if column.dtype.kind in "OU":  # array bytes would be addresses of objects, or depend on the width of the text
        return [repr(column.tolist()).encode()]
    return [np.ascontiguousarray(column)]


class BadRowFilter:
    """Removes a stream's rows with NaN, infinity or times missing or far ahead.

    The stream's `allow_nan` can permit NaN and infinity. Columns that a schema declares are not checked again.

    Args:
        stream: the stream, whose dead letter receives the rows. If it has none, it gets one that only counts them.
        labels: the label columns of several tasks.
        counted: function of the label columns that returns, for each task, which rows count (bool [rows], or None for
            all). The labels of other rows may have any value.
    """

    def __init__(self, stream: Stream, labels: Sequence[str] = (), counted_rows: CountedRows | None = None) -> None:
        self.stream = stream
        if stream.dead_letter is None:
            stream.dead_letter = DeadLetter()
        self._dead_letter: DeadLetter = stream.dead_letter
        self.labels = labels
        self.counted_rows = counted_rows
        schema = stream.schema
        self._declared_columns = frozenset(() if schema is None else schema.columns)
        self._names: Sequence[str] = ()
        self._checked_columns: list[str] = []  # columns of `_names` that may not hold NaN
        self._max_future = stream.max_future if schema is None else schema.max_future

    def __call__(self, batch: Batch, names: Sequence[str]) -> Batch:
        """Return the rows to train on; `names` are the columns that training reads."""
        if names is not self._names:  # a source passes the same tuple with every batch
            allowed, declared = self.stream.allow_nan, self._declared_columns
            may_hold_nan = (lambda name: allowed) if isinstance(allowed, bool) else allowed.__contains__
            self._checked_columns = [name for name in names if name not in declared and not may_hold_nan(name)]
            self._names = names
        reasons: dict[int, str] = {}
        for name in self._checked_columns:
            for row in self._bad_rows(batch, name, names):
                reasons.setdefault(int(row), f"column {name!r} holds NaN or an infinite value (see allow_nan)")
        times = batch.event_time
        if times is not None:
            absent = dict.fromkeys(np.flatnonzero(~np.isfinite(times)).tolist(), "event time is missing")
            reasons = {**absent, **far_ahead(times, self._max_future), **reasons}
        if reasons:
            rows = [
                BadRow(*batch.origin_of(row), reason, {n: _as_python(c[row]) for n, c in batch.columns.items()})
                for row, reason in sorted(reasons.items())
            ]
            self._dead_letter.record(type(self.stream).__name__, rows, batch.spans)
            mask = np.ones(batch.rows, bool)
            mask[list(reasons)] = False
            batch = batch.keep(mask)
        self._dead_letter.count(0 if self.stream.counts_rows else batch.rows, len(reasons))
        return batch

    def _bad_rows(self, batch: Batch, name: str, names: Sequence[str]) -> np.ndarray:
        column = batch.columns[name]
        if type(column) is not np.ndarray and not isinstance(column, Ragged):  # lists from a user-defined stream
            column = as_array(column, name)
        bad = non_finite_rows(column)
        if not len(bad) or self.counted_rows is None or not isinstance(column, np.ndarray):
            return bad
        labels = self.labels if set(self.labels) <= set(names) else names[len(names) - len(self.labels) :]
        if name in labels:
            counted_rows = self.counted_rows([batch.columns[label] for label in labels])
            of_column = [rows for label, rows in zip(labels, counted_rows, strict=True) if label == name]
            masks = [rows for rows in of_column if rows is not None]
            if len(masks) == len(of_column):
                bad = bad[np.any(masks, axis=0)[bad]]
        return bad


def _as_python(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
