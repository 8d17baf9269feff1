"""Schema of a stream's records; converts and validates columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...checks import choice, number
from ...errors import ConfigurationError
from ..batch import MAX_FUTURE, far_ahead
from ..dead_letter import BadRow
from .column import MISSING, Column, absent_column, as_column, known_arguments
from .csv_format import CsvFormat
from .ragged_column import Ragged
from .times import TIME_UNITS, UNITS, seconds_of_array


@dataclass(frozen=True)
class AlignedLists:
    """Columns of lists that have equal lengths in each row."""

    name: str
    columns: Mapping[str, str | None]  # separator of each column whose lists are written as text, else None

    def misfits(self, arrays: Mapping[str, Any]) -> dict[int, str]:
        """Return a reason for each row whose lists differ in length, by row index."""
        lengths = {name: _lengths(arrays[name], separator) for name, separator in self.columns.items()}
        first, *others = lengths.values()
        differ = np.any([other != first for other in others], axis=0) if others else np.zeros(len(first), bool)
        reason = f"sequence {self.name!r} takes lists of equal length; received "
        return {
            int(row): reason + ", ".join(f"{name} {length[row]}" for name, length in lengths.items())
            for row in np.flatnonzero(differ)
        }


def _lengths(values: Any, separator: str | None) -> np.ndarray:
    """Return the number of values in each row; empty values within a text count."""
    if isinstance(values, Ragged):
        return values.lengths
    assert separator is not None  # lists written as text have a separator
    return np.where(np.char.strip(values) == "", 0, np.char.count(values, separator) + 1)


def as_aligned(value: Any, columns: Mapping[str, Column]) -> tuple[AlignedLists, ...]:
    """Parse the argument `aligned` of a schema."""
    accepted = "a mapping from names of sequences to names of their columns"
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"aligned takes {accepted}; received {value!r}")
    sequences = []
    for sequence, names in value.items():
        if isinstance(names, str) or not isinstance(names, Sequence | Mapping) or not names:
            raise ConfigurationError(f"aligned takes {accepted}; received {names!r} for {sequence!r}")
        separators = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names)
        for name, separator in separators.items():
            if name not in columns:
                absent_column(f"aligned={{{sequence!r}: ...}}: {name!r}", name, columns)
            if not columns[name].ragged and separator is None:
                raise ConfigurationError(
                    f"aligned={{{sequence!r}: ...}} takes columns of lists, shape=(None,); {name!r} holds single values"
                )
        sequences.append(AlignedLists(str(sequence), separators))
    return tuple(sequences)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Good and bad rows of a batch of messages.

    Attributes:
        columns: columns of the good rows, by name.
        event_time: event times of the good rows in seconds, float64, or None.
        message: index of the message of each good row, int64.
        row: index of each good row within its message, counting bad rows; int64.
        counts: number of rows in each message, including bad rows, int64 [messages].
        bad: the bad rows.
    """

    columns: dict[str, np.ndarray]
    event_time: np.ndarray | None
    message: np.ndarray
    row: np.ndarray
    counts: np.ndarray
    bad: list[BadRow]

    @property
    def reasons(self) -> dict[int, str]:
        """Reasons of the bad rows by row index, if there is a single message."""
        return {bad.row: bad.reason for bad in self.bad}

    def where(self, mask: np.ndarray) -> Decoded:
        """Return the good rows where `mask` is True, and all bad rows."""
        times = None if self.event_time is None else self.event_time[mask]
        columns = {name: column[mask] for name, column in self.columns.items()}
        return replace(self, columns=columns, event_time=times, message=self.message[mask], row=self.row[mask])

    def as_rows_of(
        self, message: Sequence[int], row: Sequence[int], counts: np.ndarray, bad: Sequence[BadRow] = ()
    ) -> Decoded:
        """Assign the rows of one message, good and bad, to other messages.

        Args:
            message: new message index of each row.
            row: new row index of each row.
            counts: number of rows in each of the new messages.
            bad: further bad rows to add.
        """
        moved = [replace(b, message=int(message[b.row]), row=int(row[b.row])) for b in self.bad]
        moved = sorted([*bad, *moved], key=lambda b: (b.message, b.row))
        messages, rows = np.asarray(message, np.int64), np.asarray(row, np.int64)
        if len(self.row) < len(messages):
            messages, rows = messages[self.row], rows[self.row]
        return replace(self, message=messages, row=rows, counts=counts, bad=moved)


def join_parts(parts: Sequence[Decoded]) -> Decoded:
    """Concatenate the rows of all parts and renumber them as one message."""
    if len(parts) == 1 and len(parts[0].counts) == 1:
        return parts[0]
    counts = np.concatenate([part.counts for part in parts])
    starts = np.cumsum(counts) - counts
    rows, bad = [], []
    ends = np.cumsum([len(part.counts) for part in parts])
    for part, first in zip(parts, np.split(starts, ends[:-1]), strict=True):
        rows.append(part.row + (first[0] if len(first) == 1 else first[part.message]))
        bad += [replace(b, message=0, row=int(first[b.message]) + b.row) for b in part.bad]
    row = np.concatenate(rows)
    return Decoded(
        {name: concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        None if parts[0].event_time is None else concatenate([part.event_time for part in parts]),
        np.zeros_like(row),
        row,
        counts.sum(keepdims=True),
        bad,
    )


def concatenate(arrays: Sequence[Any]) -> Any:
    """Concatenate arrays; a single array is returned unchanged."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@dataclass(frozen=True)
class Schema:
    """Names, dtypes and shapes of a stream's columns.

    Args:
        columns: mapping from name to a `Column`, a dtype, or a mapping of `Column`'s arguments. Batches keep this
            order.
        label: name of the label column, or None.
        event_time: name of the field with the time of the event, as a number, a timestamp or a text. It becomes
            `Batch.event_time`, and is a column only if `columns` contains it.
        event_time_unit: unit of event times given as numbers, "s", "ms", "us", "ns" or "yyyymmdd". None recognises the
            unit by the size of the numbers; see `trainer.streams.formats.times`.
        max_future: seconds that an event time may lie ahead of this machine's clock; rows further ahead are bad,
            because windows and times to live follow the latest event time. None disables the check.
        key: name of the column by which streams are joined, or None.
        aligned: columns of lists that describe the same sequence, as a mapping from the name of the sequence to the
            names of its columns. A row is bad if its lists differ in length. For lists that are written as text, give a
            mapping from the names of the columns to their separators instead.
        csv: format of CSV files and of numbers written as text, a mapping of the arguments of
            `trainer.streams.formats.csv_format.CsvFormat`. Its decimal and thousands separators and its words for
            missing values apply to all columns that declare none themselves.

    Raises:
        ConfigurationError: there are no columns, or a name is not among them.
    """

    columns: Mapping[str, Any]
    label: str | None = None
    event_time: str | None = None
    event_time_unit: str | None = None
    max_future: float | None = MAX_FUTURE
    key: str | None = None
    aligned: Mapping[str, Any] = field(default_factory=dict)
    csv: Any = None
    fields: dict[str, Column] = field(init=False, repr=False)
    sequences: tuple[AlignedLists, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping) or not self.columns:
            raise ConfigurationError(f"columns takes a non-empty mapping of name to dtype; received {self.columns!r}")
        columns = {str(name): as_column(value) for name, value in self.columns.items()}
        object.__setattr__(self, "columns", columns)
        for role in ("event_time", "key"):
            if getattr(self, role) in columns and columns[getattr(self, role)].ragged:
                raise ConfigurationError(f"{role} takes a column of single values; {getattr(self, role)!r} holds lists")
        for role in ("label", "key"):
            name = getattr(self, role)
            if name is not None and name not in columns:
                absent_column(f"{role}={name!r}", name, columns)
        choice("event_time_unit", self.event_time_unit, TIME_UNITS, optional=True)
        number("max_future", self.max_future, minimum=0, optional=True, what="seconds")
        fields = dict(columns)
        if self.event_time is not None and self.event_time not in fields:
            fields[self.event_time] = Column(np.float64, coerce=True, times=True, time_unit=self.event_time_unit)
        csv = CsvFormat.of(self.csv)
        if (csv.decimal, csv.thousands) != (".", None):
            separators: dict[str, Any] = {"decimal": csv.decimal, "thousands": csv.thousands}
            fields = {
                name: replace(column, **separators) if (column.decimal, column.thousands) == (".", None) else column
                for name, column in fields.items()
            }
        if csv.missing:
            fields = {name: replace(column, missing=column.missing or csv.missing) for name, column in fields.items()}
        object.__setattr__(self, "csv", csv)
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "sequences", as_aligned(self.aligned, fields))

    def convert(
        self,
        values: Mapping[str, Any],
        rows: int,
        text: bool = False,
        refuse_bools: bool = False,
        raw: Callable[[int], Any] = lambda row: None,
        read_only: bool = False,
    ) -> Decoded:
        """Convert columns of raw values to the good and bad rows of one message.

        Args:
            values: mapping from field name to a list or array of `rows` values; a field that is not in it is missing
                from every row.
            rows: number of rows.
            text: whether numbers may be given as text, as in CSV cells.
            refuse_bools: whether to reject True as a number.
            raw: function that returns the original form of a bad row by its index.
            read_only: whether the result may share read-only memory, because the caller copies it.
        """
        arrays: dict[str, np.ndarray] = {}
        reasons: dict[int, str] = {}
        for name, column in self.fields.items():
            raw_values = values.get(name)
            if raw_values is None:
                arrays[name], misfits = column.absent(rows)
            else:
                arrays[name], misfits = column.convert(self._in_unit(name, raw_values), text, refuse_bools)
            for row, reason in misfits.items():
                reasons.setdefault(row, f"column {name!r} {reason}")
        for lists in self.sequences:
            reasons = {**lists.misfits(arrays), **reasons}
        times = None
        if self.event_time is not None:
            times, unclear = self._event_times(arrays[self.event_time])
            reasons = {**far_ahead(times, self.max_future), **unclear, **reasons}
        good_rows = np.arange(rows, dtype=np.int64)
        if reasons:
            good_rows = np.delete(good_rows, list(reasons))
            arrays = {name: array[good_rows] for name, array in arrays.items()}
            times = None if times is None else times[good_rows]
        columns = {name: arrays[name] for name in self.columns}
        bad = [BadRow(0, row, reason, raw(row)) for row, reason in sorted(reasons.items())]
        decoded = Decoded(columns, times, np.zeros_like(good_rows), good_rows, np.array([rows]), bad)
        return decoded if read_only else self.writable(decoded)

    def writable(self, decoded: Decoded) -> Decoded:
        """Copy columns that are read-only or not contiguous, except lists of any length."""
        for name, column in self.columns.items():
            if not (column.ragged or decoded.columns[name].flags.carray):
                decoded.columns[name] = np.require(decoded.columns[name], None, ("C", "W"))
        return decoded

    def _in_unit(self, name: str, values: Any) -> Any:
        """Convert timestamps to numbers if the event times are declared as plain numbers."""
        if name != self.event_time or self.fields[name].times or getattr(values, "dtype", np.dtype(bool)).kind != "M":
            return values
        seconds: Any = seconds_of_array(values)
        return seconds * UNITS.get(self.event_time_unit or "s", 1.0)

    def _event_times(self, values: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
        """Return event times in seconds, float64, and the reasons of rows without one."""
        assert self.event_time is not None
        if self.fields[self.event_time].times:
            return values, {}
        column = Column(np.float64, default=float("nan"), coerce=True, times=True, time_unit=self.event_time_unit)
        times, unclear = column.convert(values)
        return times, {row: f"column {self.event_time!r} {reason}" for row, reason in unclear.items()}

    def from_rows(self, rows: Sequence[Mapping[str, Any]], refuse_bools: bool = False) -> Decoded:
        """Convert rows that are mappings from field name to value."""
        values = {name: [row.get(name, MISSING) for row in rows] for name in self.fields}
        return self.convert(values, len(rows), refuse_bools=refuse_bools, raw=rows.__getitem__)


def as_schema(value: Any) -> Schema:
    """Return `value` if it is a `Schema`, else a schema with these arguments."""
    if isinstance(value, Schema):
        return value
    accepted = ["columns", "label", "event_time", "event_time_unit", "max_future", "key", "aligned", "csv"]
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"schema takes a Schema or a mapping of {accepted}; received {value!r}")
    return Schema(**known_arguments("a schema", value, accepted, "columns"))
