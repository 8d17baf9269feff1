"""A column of a schema: its dtype, row shape and limits, and its conversion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from ...checks import choice
from ...errors import ConfigurationError, DataError, did_you_mean
from . import coercion, conversion
from .coercion import MISSING as MISSING
from .conversion import Misfits
from .csv_format import check_signs, checked_missing
from .ragged_column import Ragged
from .times import TIME_UNITS


@dataclass(frozen=True)
class Column:
    """One column of a schema.

    Args:
        dtype: "bool", an integer or float dtype, or "str".
        shape: shape of the value of one row: () for a scalar, (39,) for a list of 39 values, (None,) for a list of any
            length, (None, 3) for a list of triples.
        minimum: smallest value accepted, or None.
        maximum: largest value accepted, or None.
        default: value of rows that lack the column; it may lie outside of `minimum` and `maximum`. If None, such rows
            are bad.
        allow_nan: whether a float column accepts NaN and infinities.
        padding, max_length, per_octave: how lists of any length are padded and cut before they reach the network; see
            `trainer.data.ragged.Ragged`.
        coerce: whether to convert numbers to text, text to numbers, and times to seconds. None, NaN and an empty text
            are then missing values.
        times: whether the values of a float column are times, which become seconds since the epoch; needs `coerce`. See
            `trainer.streams.formats.times.seconds_of` for the texts and numbers that are accepted.
        time_unit: unit of times given as numbers, "s", "ms", "us", "ns" or "yyyymmdd". None recognises the unit by the
            size of the numbers.
        day_first: whether the time "03/02/2024" is the third of February; if None, such a row is bad.
        decimal, thousands: signs in numbers as text; see `trainer.streams.formats.csv_format.CsvFormat`.
        missing: texts that stand for a missing value, with `coerce`; see `CsvFormat`.
        accepts: the only values accepted, texts or numbers; None accepts all.
        as_given: whether a text column keeps numbers and truth values unconverted if all rows have the same type. The
            array then has dtype object and None for missing values, if there are any.

    Raises:
        ConfigurationError: the dtype, the shape or the default is invalid.
    """

    dtype: Any
    shape: tuple[int | None, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    default: Any = None
    allow_nan: bool = False
    padding: float | str | None = None
    max_length: int | None = None
    per_octave: int = 1
    coerce: bool = False
    times: bool = False
    time_unit: Any = None
    day_first: bool | None = None
    decimal: str = "."
    thousands: str | None = None
    missing: tuple[str, ...] = ()
    accepts: tuple[Any, ...] | None = None
    as_given: bool = False

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            names = ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64", "str")
            raise ConfigurationError(
                f"dtype {self.dtype!r} is not a NumPy dtype{did_you_mean(str(self.dtype), names)}"
            ) from error
        if dtype.kind not in "biufU":
            raise ConfigurationError(f"a column is of bool, integer, float or str dtype; received {self.dtype!r}")
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        if not all(isinstance(n, int) and n > 0 for n in shape[shape[:1] == (None,) :]):
            raise ConfigurationError(
                "a row shape is a tuple of whole numbers > 0, the first None for lists of any length; "
                f"received {self.shape!r}"
            )
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)
        choice("time_unit", self.time_unit, TIME_UNITS, optional=True)
        check_signs(self.decimal, self.thousands)
        object.__setattr__(self, "missing", checked_missing(self.missing))
        self.blank(0)
        if not self.ragged and (self.max_length is not None or self.per_octave != 1 or self.padding is not None):
            raise ConfigurationError(
                "padding, max_length and per_octave need lists of any length, shape=(None,); received "
                f"shape={self.shape!r}"
            )
        if self.default is not None:
            unlimited = Column(self.dtype, self.shape, allow_nan=True, coerce=self.ragged or bool(self.shape))
            _, bad = unlimited.convert([self.default])
            if bad:
                raise ConfigurationError(f"default={self.default!r} does not fit the column: {bad[0]}")

    @property
    def ragged(self) -> bool:
        """Whether rows are lists of variable length."""
        return self.shape[:1] == (None,)

    def blank(self, rows: int) -> Any:
        """Return a column of `rows` zeros, or of empty lists."""
        sizes = [size for size in self.shape if size is not None]
        if self.ragged:
            values, offsets = np.empty((0, *sizes), self.dtype), np.zeros(rows + 1, np.int64)
            lists: dict[str, Any] = {n: getattr(self, n) for n in ("padding", "max_length", "per_octave")}
            return Ragged(values, offsets, **lists)
        return np.zeros((rows, *sizes), self.dtype)

    def split_list(self, cell: str, delimiter: str) -> Any:
        """Split a list written as text.

        An empty text is an empty list, or a missing value if the shape is fixed or the list may not be missing.
        """
        if (not cell or (self.coerce and cell in self.missing)) and (self.ragged or self.coerce):
            return [] if self.ragged and not (self.coerce and self.default is None) else MISSING
        return cell.split(delimiter)

    def convert(self, values: Any, text: bool = False, refuse_bools: bool = False) -> tuple[Any, Misfits]:
        """Convert the values of n rows; equal values in any form give equal results.

        Args:
            values: n values as a list of Python values, an array, masked where values are missing, or `Ragged`.
            text: whether numbers may be given as text, as in CSV cells.
            refuse_bools: whether to reject True as a number, as for JSON, which distinguishes true from 1.

        Returns:
            An array [n, *shape] in the column's dtype, or `Ragged` for lists of any length; and a mapping from each row
            that does not fit to the reason.
        """
        if self.missing and self.coerce:
            values = coercion.without_words(values, self.missing)
        if self.as_given and (given := coercion.as_given(values)) is not None:
            return given, {}
        strict = refuse_bools and not self.coerce
        if not len(values):
            return self.blank(0), {}
        if isinstance(values, Ragged) and not self.ragged:  # an empty list stands for a missing value
            lists: Any = values
            values = [row if len(row) else MISSING for row in lists]
        convert: Any = conversion.lists if self.ragged else conversion.fixed if self.shape else conversion.single
        array, bad = convert(self, values, text, strict)
        if self.accepts is not None:
            why = f"takes {', '.join(map(repr, self.accepts))}; received "
            bad = {**dict.fromkeys(np.flatnonzero(~np.isin(array, self.accepts)).tolist(), why), **bad}
        return array, {
            row: reason + short_repr(values[row]) if reason.endswith(" ") else reason for row, reason in bad.items()
        }

    def absent(self, rows: int) -> tuple[Any, Misfits]:
        """Return the converted column for rows that lack it."""
        if self.default is None:
            return self.blank(rows), dict.fromkeys(range(rows), "is missing")
        if self.ragged or self.shape:
            return self.convert([self.default] * rows)
        return np.full(rows, self.default, None if self.dtype.kind == "U" else self.dtype), {}

    @cached_property
    def element(self) -> Column:
        """Column of the single values within rows.

        Its default keeps missing values at their index in the row.
        """
        default: Any = {"U": "", "f": float("nan")}.get(self.dtype.kind, coercion.MISSING_NUMBER)
        shape = self.shape[1:] if self.ragged else ()
        if not self.coerce or shape or (self.dtype.kind == "f" and not self.allow_nan):
            default = None
        return replace(self, shape=shape, default=default, padding=None, max_length=None, per_octave=1)

    @property
    def type_name(self) -> str:
        """Accepted values in words, for messages."""
        return "a time" if self.times else "text" if self.dtype.kind == "U" else str(self.dtype)

    def integer_range(self) -> tuple[int, int]:
        """Return the smallest and the largest integer of the dtype."""
        return (0, 1) if self.dtype.kind == "b" else (int(np.iinfo(self.dtype).min), int(np.iinfo(self.dtype).max))

    @property
    def out_of_range(self) -> str:
        """Reason for a number out of range; the number is appended to it."""
        low, high = self.minimum, self.maximum
        finite = "finite " if self.dtype.kind == "f" and not self.allow_nan else ""
        if self.dtype.kind != "f":
            minimum, maximum = self.integer_range()
            low = minimum if low is None else max(minimum, low)
            high = maximum if high is None else min(maximum, high)
        limits = ("" if low is None else f" from {low}") + ("" if high is None else f" to {high}")
        return f"takes {finite}{self.dtype}{limits}; received "


def as_column(value: Any) -> Column:
    """Return `value` if it is a `Column`, else create one from a dtype or arguments."""
    if isinstance(value, Column):
        return value
    if isinstance(value, Mapping):
        return Column(**known_arguments("a column", value, [field.name for field in fields(Column)], "dtype"))
    return Column(value)


def absent_column(argument: str, name: Any, columns: Iterable[str]) -> NoReturn:
    """Raise a ConfigurationError that the column named by `argument` does not exist."""
    names = list(columns)
    raise ConfigurationError(f"{argument} is not among the columns {names}{did_you_mean(name, names)}")


def known_arguments(owner: str, value: Mapping[str, Any], accepted: list[str], needed: str) -> Mapping[str, Any]:
    """Return `value` after checking that its keys are `accepted` and include `needed`."""
    for name in value:
        if name not in accepted:
            raise ConfigurationError(f"{owner} takes {accepted}; received {name!r}{did_you_mean(name, accepted)}")
    if needed not in value:
        raise ConfigurationError(f"{owner} needs {needed}; received {dict(value)!r}")
    return value


def short_repr(value: Any) -> str:
    """Return the repr of a value, cut to 80 characters."""
    text = repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
    return text if len(text) <= 80 else text[:77] + "..."


_EVENT_TIMES = Column(np.float64, default=float("nan"), allow_nan=True, coerce=True, times=True, time_unit="s")


def event_times(values: np.ndarray, name: str) -> np.ndarray:
    """Convert event times, numbers in seconds or times, to seconds, float64.

    Missing ones become NaN. `name` is the name of their column.

    Raises:
        DataError: a value is no time.
    """
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    seconds, misfits = _EVENT_TIMES.convert(values)
    for row, reason in misfits.items():
        raise DataError(f"event time: row {row} of column {name!r} {reason}")
    return seconds
