"""The shape of a record: names, dtypes and row shapes of columns, and the vectorised check that data fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..checks import choice
from ..errors import ConfigurationError, did_you_mean
from .column import MISSING, Column, MisfitError, as_column, known_arguments, short

_TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True)
class Converted:
    """What `Schema.convert` makes of n rows.

    Attributes:
        columns: name -> array of the good rows.
        event_time: seconds of the good rows, float64, or None.
        good: numbers of the good rows among the n, int64, ascending.
        reasons: row number -> why the row is bad.
    """

    columns: dict[str, np.ndarray]
    event_time: np.ndarray | None
    good: np.ndarray
    reasons: dict[int, str]


@dataclass(frozen=True)
class Schema:
    """Names, dtypes and shapes of a stream's columns.

    Args:
        columns: name -> `Column`, a dtype, or a mapping of `Column`'s arguments; batches keep this order.
        label: name of the label column, or None.
        event_time: name of the field with the event's time; it becomes `Batch.event_time` and is a column
            only when `columns` lists it.
        event_time_unit: "s", "ms", "us" or "ns".
        key: name of the column by which streams are joined, or None.

    Raises:
        ConfigurationError: no columns, or a name that is not among them.
    """

    columns: Mapping[str, Column]
    label: str | None = None
    event_time: str | None = None
    event_time_unit: str = "s"
    key: str | None = None
    fields: dict[str, Column] = field(init=False, repr=False)

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
                raise ConfigurationError(
                    f"{role}={name!r} is not among the columns {list(columns)}{did_you_mean(name, columns)}"
                )
        choice("event_time_unit", self.event_time_unit, _TIME_UNITS)
        fields = dict(columns)
        if self.event_time is not None and self.event_time not in fields:
            fields[self.event_time] = Column(np.float64)
        object.__setattr__(self, "fields", fields)

    @property
    def seconds_per_unit(self) -> float:
        """Seconds in one unit of the event time field."""
        return _TIME_UNITS[self.event_time_unit]

    @property
    def probe(self) -> tuple[str, int]:
        """The field, and the depth of its lists in one row, by which many-row records are told from single rows."""
        name = min(self.fields, key=lambda name: len(self.fields[name].shape))
        return name, len(self.fields[name].shape)

    def convert(
        self, values: Mapping[str, Any], rows: int, text: bool = False, refuse_bools: bool = False
    ) -> Converted:
        """Convert columns of raw values; a row that does not fit loses only itself.

        Args:
            values: field name -> list or array of `rows` values; an absent field is missing
                from every row.
            rows: number of rows.
            text: the values are strings that spell numbers (CSV cells).
            refuse_bools: whether True is no number.
        """
        arrays: dict[str, np.ndarray] = {}
        reasons: dict[int, str] = {}
        for name, column in self.fields.items():
            raw = values.get(name)
            if raw is None:
                raw = [MISSING if column.default is None else column.default] * rows
            arrays[name], bad = _convert(column, raw, text, refuse_bools)
            for row, reason in bad.items():
                reasons.setdefault(row, f"column {name!r} {reason}")
        good = np.arange(rows, dtype=np.int64)
        if reasons:
            good = np.delete(good, list(reasons))
            arrays = {name: array[good] for name, array in arrays.items()}
        times = None
        if self.event_time is not None:
            times = arrays[self.event_time].astype(np.float64) * self.seconds_per_unit
        columns = {
            name: arrays[name] if column.ragged else np.require(arrays[name], requirements=("C", "W"))
            for name, column in self.columns.items()
        }
        return Converted(columns, times, good, reasons)

    def from_rows(self, rows: Sequence[Mapping[str, Any]], refuse_bools: bool = False) -> Converted:
        """Convert rows given as mappings of field name to value."""
        try:
            values = {name: [row[name] for row in rows] for name in self.fields}
        except KeyError:
            absent = {name: MISSING if c.default is None else c.default for name, c in self.fields.items()}
            values = {name: [row.get(name, default) for row in rows] for name, default in absent.items()}
        return self.convert(values, len(rows), refuse_bools=refuse_bools)


def as_schema(value: Any) -> Schema:
    """Return `value` as a `Schema`: itself, or a mapping of `Schema`'s arguments.

    Raises:
        ConfigurationError: neither.
    """
    if isinstance(value, Schema):
        return value
    accepted = ["columns", "label", "event_time", "event_time_unit", "key"]
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"schema takes a Schema or a mapping of {accepted}; received {value!r}")
    return Schema(**known_arguments("a schema", value, accepted, "columns"))


def _convert(column: Column, values: Any, text: bool, refuse_bools: bool) -> tuple[np.ndarray, dict[int, str]]:
    """Convert as a whole; where that fails, halve, so that k bad rows of n cost about k log n vector calls."""
    if len(values) == 0:
        return column.blank(0), {}
    try:
        array, mask = column.convert(values, text, refuse_bools)
    except MisfitError as error:
        if len(values) == 1:
            return _convert_one(column, values[0], text, str(error))
        half = len(values) // 2
        first, first_bad = _convert(column, values[:half], text, refuse_bools)
        second, second_bad = _convert(column, values[half:], text, refuse_bools)
        first_bad.update({row + half: reason for row, reason in second_bad.items()})
        return np.concatenate([first, second]), first_bad
    if mask is None:
        return array, {}
    return array, {int(row): column.reason(values[row]) for row in np.flatnonzero(mask)}


def _convert_one(column: Column, value: Any, text: bool, reason: str) -> tuple[np.ndarray, dict[int, str]]:
    absent = value is None or value is MISSING or (text and value == "")
    if absent and column.default is not None:
        return column.convert([column.default])[0], {}
    return column.blank(1), {0: "is missing" if absent else f"{reason}: {short(value)}"}
