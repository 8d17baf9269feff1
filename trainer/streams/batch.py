"""Batches of NumPy columns, the origin of each row, and positions in a stream.

A *partition* is one ordered source: a topic's partition, a Redis key, or a folder of files. An *offset* identifies a
message in its partition; it is an int, or a string for sources with string ids. A *row* is an index within the message,
counted from 0 and including bad rows. So ``(partition, offset, row)`` identifies a row permanently.

A *position* is a JSON object ``{partition: [offset, row]}`` with the next row to read of each partition (see `Cursor`).
Keys that start with ``@`` hold further state of the stream; the functions here leave them unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError, StreamError, did_you_mean

Offset = int | str
Position = dict[str, Any]
STATE = "@state"  # key under which `Stream.resolve` adds the state of a join or of a user's iterable to a position


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next row to read in a partition: row `row` of the message at `offset`."""

    offset: Offset
    row: int = 0

    @classmethod
    def of(cls, value: Any) -> Cursor:
        """Parse ``[offset, row]``, the value of a partition in a position."""
        try:
            offset, row = value
            if isinstance(offset, Offset) and isinstance(row, int):
                return cls(offset, row)
        except (TypeError, ValueError):
            pass
        raise StreamError(f"a position is {{partition: [offset, row]}}; received {value!r} for a partition")

    def to_json(self) -> list[Offset]:
        """Return ``[offset, row]``, the form used in positions."""
        return [self.offset, self.row]


class Span(NamedTuple):
    """A run of consecutive rows of one message.

    Attributes:
        partition: name of the partition.
        offset: offset of the message.
        first_row: index of the first row within the message.
        last_row: index of the last row, inclusive.
        next_offset: offset of the next message, if this message has no good row after `last_row`; None if the span ends
            in the middle of the message.
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

    @property
    def after(self) -> Cursor:
        """The cursor after the last row."""
        return Cursor(self.offset, self.last_row + 1) if self.next_offset is None else Cursor(self.next_offset)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a stream, column by column.

    Attributes:
        columns: mapping from name to array, shape [rows, ...]; all arrays have the same number of rows.
        event_time: seconds since the epoch, shape [rows], float64; None if the stream has no event time.
        spans: origin of the rows, in row order; the row counts of the spans add up to `rows`.
    """

    columns: dict[str, np.ndarray]
    event_time: np.ndarray | None
    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values()), ()))

    def split(self, n: int) -> tuple[Batch, Batch]:
        """Return the first `n` rows and the rest; the arrays of both are views.

        Raises:
            ValueError: `n` is not within 0 to `rows`.
        """
        if not 0 <= n <= self.rows:
            raise ValueError(f"split takes 0 to {self.rows} rows; received {n}")
        before, after = _split_spans(self.spans, n)
        return self._rows_at(slice(n), before), self._rows_at(slice(n, None), after)

    def keep(self, mask: np.ndarray) -> Batch:
        """Return the rows where `mask`, bool [rows], is True.

        If the batch contains the end of a message, the position after the last kept row of that message is the start of
        the next message, so that a resume does not read the dropped rows again.
        """
        spans: list[Span] = []
        start = 0
        for span in self.spans:
            rows = np.flatnonzero(mask[start : start + span.rows]) + span.first_row
            start += span.rows
            if not len(rows):
                continue
            for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
                spans.append(span._replace(first_row=int(run[0]), last_row=int(run[-1]), next_offset=None))
            spans[-1] = spans[-1]._replace(next_offset=span.next_offset)
        return self._rows_at(mask, tuple(spans))

    def _rows_at(self, rows: slice | np.ndarray, spans: tuple[Span, ...]) -> Batch:
        times = None if self.event_time is None else self.event_time[rows]
        return Batch({name: column[rows] for name, column in self.columns.items()}, times, spans)

    def origin_of(self, row: int) -> tuple[int, int]:
        """Return the index of a row's span, and the row's index within its message."""
        for index, span in enumerate(self.spans):
            if row < span.rows:
                return index, span.first_row + row
            row -= span.rows
        raise IndexError(f"the batch has {self.rows} rows")


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
    """Concatenate batches in order; a single batch is returned unchanged.

    Raises:
        DataError: there are no batches, or they differ in their columns, their row shapes or in whether they have event
            times.
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
    """Return the position after `batch`, given the position before it."""
    last = {span.partition: span for span in batch.spans}
    return {**position, **{partition: span.after.to_json() for partition, span in last.items()}}


def cursors_of(stream: object, position: Position, known: Collection[str]) -> dict[str, Cursor]:
    """Return the cursors of a position, by partition.

    Raises:
        StreamError: the position is malformed, or names a partition that is not `known`. Ignoring that partition would
            read its rows again from the start.
    """
    for name in position:
        if not name.startswith("@") and name not in known:
            raise StreamError(
                f"{type(stream).__name__} reads {sorted(known)}; the position contains {name!r}"
                f"{did_you_mean(name, known)}: it belongs to another stream"
            )
    return {name: Cursor.of(value) for name, value in position.items() if not name.startswith("@")}


_INTERFACE_METHODS = ("__arrow_c_stream__", "__arrow_c_array__", "__dataframe__")


def is_frame(data: Any) -> bool:
    """Return whether `data` is a frame: pandas, Arrow, or one of another library.

    Frames of other libraries, such as polars, are recognised by the methods of the Arrow PyCapsule interface or of the
    dataframe interchange protocol.
    """
    if hasattr(data, "columns") and (hasattr(data, "column_names") or hasattr(data, "iloc")):
        return True
    has_interface = any(hasattr(data, name) for name in _INTERFACE_METHODS)
    return has_interface and not isinstance(data, type) and not hasattr(data, "dtype")


def columns_of(frame: Any) -> dict[str, Any]:
    """Return the columns of a frame by name, as pandas series or Arrow arrays.

    Raises:
        DataError: two columns have the same name.
    """
    if not hasattr(frame, "iloc"):
        from .formats.arrow import as_table

        frame = as_table(frame)
    keys = getattr(frame, "column_names", None) or list(frame.columns)
    names = [str(key) for key in keys]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        count = names.count(duplicate)
        raise DataError(f"the data contain {count} columns named {duplicate!r}; column names must be unique")
    return {name: frame[key] for name, key in zip(names, keys, strict=True)}


MAX_FUTURE = 86_400.0  # seconds; tolerates clock skew and local times read as UTC


def far_ahead(times: np.ndarray | None, max_future: float | None) -> dict[int, str]:
    """Return the rows whose event time is too far in the future, with the reason.

    Windows, times to live and joins follow the latest event time. A single row from the far future would close windows
    too early, expire table rows, and turn waiting impressions into negatives.

    Returns:
        Mapping from row index to reason.
    """
    if times is None or max_future is None or not len(times):
        return {}
    now = time.time()
    return {
        int(row): (
            f"event time lies more than max_future={max_future:g} s ahead of this machine's clock; received "
            f"{times[row]:.15g}, {times[row] - now:.3g} s ahead of {now:.0f} (see also event_time_unit)"
        )
        for row in np.flatnonzero(times - now > max_future)
    }
