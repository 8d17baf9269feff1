"""A stream that replays a table in time order, at full speed or at a fixed rate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import numpy as np

from ...checks import number, whole
from ...errors import ConfigurationError, DataError, StreamError
from ..base import Sharing, Stream
from ..batch import Batch, Cursor, Position, Span, columns_of, cursors_of, is_frame
from ..dead_letter import DeadLetter
from ..formats.column import absent_column, event_times
from ..formats.ragged_column import Ragged, rows_of

PARTITION = "table"


class ReplayStream(Stream):
    """A stream of the rows of a table; its position is ``{"table": [pass, row]}``.

    Args:
        table: a frame, or a mapping from name to an array or to lists of different lengths. All columns have the same
            number of rows.
        event_time: name of the column with the event time, in seconds or as times, by which rows are sorted (stable
            sort); None to keep the order of the table.
        repeat: number of passes over the table; None to repeat forever. Event times are the same in every pass.
        rows_per_second: rate at which rows become available; None to make all rows available at once. The time counts
            from the first `poll`, also after a `seek`.
        clock: function that returns the time in seconds. With any other clock than the default, `poll` returns None
            immediately instead of waiting for a row.
        dead_letter: file for rows that cannot be trained on, or a `DeadLetter`.
        max_bad_share: largest share of such rows. None uses the share of `dead_letter`, which is 0.01 by default.
        allow_nan: names of columns that may hold NaN and infinite values, or True for all columns.

    Raises:
        ConfigurationError: the table is empty, a column is missing, or `repeat` or `rows_per_second` is not positive.
        DataError: the columns differ in length.
    """

    sharing = Sharing.REPEATABLE

    def __init__(
        self,
        table: Mapping[str, Any],
        event_time: str | None = None,
        repeat: int | None = 1,
        rows_per_second: float | None = None,
        clock: Callable[[], float] = monotonic,
        dead_letter: DeadLetter | str | Path | None = None,
        max_bad_share: float | None = None,
        allow_nan: Collection[str] | bool = (),
    ) -> None:
        self.dead_letter = DeadLetter.of(dead_letter, max_bad_share)
        self.allow_nan = allow_nan if isinstance(allow_nan, bool) else tuple(allow_nan)
        columns = columns_of(table) if is_frame(table) else table
        self._table = {str(name): _as_column(column) for name, column in columns.items()}
        lengths = {name: len(column) for name, column in self._table.items()}
        if not lengths or not max(lengths.values()):
            raise ConfigurationError("ReplayStream takes a table with at least one column and one row; received none")
        if len(set(lengths.values())) > 1:
            raise DataError(f"the columns of a table have one length; received {lengths}")
        if event_time is not None and event_time not in self._table:
            absent_column(f"event_time={event_time!r}", event_time, lengths)
        whole("repeat", repeat, optional=True)
        number("rows_per_second", rows_per_second, above=0, optional=True)
        self.rows = next(iter(lengths.values()))
        self.repeat, self.rows_per_second = repeat, rows_per_second
        self.event_time = event_time
        self._times = None if event_time is None else event_times(self._table[event_time], event_time)
        self._order: np.ndarray | None = None  # row indexes in time order; None if the table is sorted already
        if self._times is not None and not (np.diff(self._times) >= 0).all():
            self._order = np.argsort(self._times, kind="stable")
        self._clock = clock
        self._pass = self._row = 0
        self._started: float | None = None
        self._returned = 0
        self._stop = Event()

    @property
    def exhausted(self) -> bool:
        return self.repeat is not None and self._pass >= self.repeat

    @property
    def closed(self) -> bool:  # type: ignore[override]
        return self._stop.is_set()

    def poll(self, max_rows: int, timeout: float = 0.0) -> Batch | None:
        """Return 1 to `max_rows` rows of one pass, or None if none is due in time.

        Raises:
            ValueError: `max_rows` is not positive.
        """
        if max_rows < 1:
            raise ValueError(f"poll takes max_rows >= 1; received {max_rows}")
        if self.exhausted or self._stop.is_set():
            return None
        rows = min(max_rows, self.rows - self._row)
        if self.rows_per_second is not None:
            rows = min(rows, self._wait_until_due(self.rows_per_second, timeout))
            if rows < 1:
                return None
            self._returned += rows
        first, last = self._row, self._row + rows
        index = slice(first, last) if self._order is None else self._order[first:last]
        # Copy the rows, so that changes to the batch do not affect the caller's table.
        columns = {name: column[index].copy() for name, column in self._table.items()}
        ends_pass = last == self.rows
        span = Span(PARTITION, self._pass, first, last - 1, self._pass + 1 if ends_pass else None)
        self._pass, self._row = (self._pass + 1, 0) if ends_pass else (self._pass, last)
        return Batch(columns, None if self._times is None else np.array(self._times[index]), (span,))

    def _wait_until_due(self, rate: float, timeout: float) -> int:
        """Return the number of rows that are due; wait up to `timeout` for the first one."""
        if self._started is None:
            self._started, self._returned = self._clock(), 0
        due = self._due_rows(self._started, rate)
        if due < 1 and timeout > 0 and self._clock is monotonic:
            due_time = self._started + (self._returned + 1) / rate
            self._stop.wait(min(timeout, max(0.0, due_time - monotonic())))
            due = self._due_rows(self._started, rate)
        return due

    def _due_rows(self, started: float, rate: float) -> int:
        # The small term keeps rounding errors from delaying a row that is due exactly now.
        return int((self._clock() - started) * rate + 1e-9) - self._returned

    def position(self) -> Position:
        return {PARTITION: Cursor(self._pass, self._row).to_json()}

    def seek(self, position: Position) -> None:
        """Continue at `position`.

        Raises:
            StreamError: the position is not within the table.
        """
        cursor = cursors_of(self, position, (PARTITION,)).get(PARTITION, Cursor(0))
        number, row = cursor.offset, cursor.row
        if not isinstance(number, int) or number < 0 or not 0 <= row <= self.rows:
            raise StreamError(f"a position is [pass, row] with row from 0 to {self.rows}; received {cursor.to_json()}")
        self._pass, self._row = (number + 1, 0) if row == self.rows else (number, row)
        self._started = None

    def lag(self) -> int | None:
        """Return the number of rows that are due.

        Without a rate, return the number of all rows left, or None if the table repeats forever.
        """
        if self.rows_per_second is not None:
            return 0 if self._started is None else max(0, self._due_rows(self._started, self.rows_per_second))
        return None if self.repeat is None else (self.repeat - self._pass) * self.rows - self._row

    def close(self) -> None:
        self._stop.set()


def _as_column(values: Any) -> Any:
    column = rows_of(values)
    return column.as_array() if isinstance(column, Ragged) and not isinstance(values, Ragged) else column
