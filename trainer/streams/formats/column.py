"""A column of a schema: dtype, row shape, vectorised validation and conversion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from ...checks import choice
from ...errors import ConfigurationError, did_you_mean
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
        shape: shape of one row's value; () for a scalar, (39,) for a list of 39, (None,) for a list of any length and
            (None, 3) for one of triples.
        minimum: smallest value accepted, or None.
        maximum: largest value accepted, or None.
        default: value of a row that lacks the column, within `minimum` and `maximum` or not; None: such a row is bad.
        allow_nan: accept NaN and infinities in a float column.
        padding, max_length, per_octave: how lists of any length are padded and cut on their way to the
            network; see `trainer.data.ragged.Ragged`.
        coerce: take numbers as text, text that spells numbers, times as seconds, and None or NaN as a missing value;
            an empty text is missing.
        times: with `coerce`, in a float column: the values are times, and become seconds since the epoch; see
            `trainer.streams.formats.times.seconds_of` for the texts and numbers that are accepted.
        time_unit: unit of times given as numbers, "s", "ms", "us", "ns" or "yyyymmdd"; None: recognised by their size.
        day_first: whether the time "03/02/2024" is the third of February; None: such a row is bad.
        decimal, thousands: signs in numbers as text, see `trainer.streams.formats.csv_format.CsvFormat`.
        missing: with `coerce`, texts that stand for a missing value, see `CsvFormat`.
        accepts: the only values accepted, texts or numbers; None: all.
        as_given: in a text column, numbers and truth values that come as such stay what they are, if all rows have the
            same type; a missing one is then None, in an array of objects.

    Raises:
        ConfigurationError: a dtype that is not one of those, a shape that is not one, or an unusable default.
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
            bare = Column(self.dtype, self.shape, allow_nan=True, coerce=self.ragged or bool(self.shape))
            _, bad = bare.convert([self.default])
            if bad:
                raise ConfigurationError(f"default={self.default!r} does not fit the column: {bad[0]}")

    @property
    def ragged(self) -> bool:
        """Whether rows are lists of variable length."""
        return self.shape[:1] == (None,)

    def blank(self, rows: int) -> Any:
        """Return a column of `rows` zeros, or of empty lists."""
        if self.ragged:
            values, offsets = np.empty((0, *self.shape[1:]), self.dtype), np.zeros(rows + 1, np.int64)
            lists: dict[str, Any] = {n: getattr(self, n) for n in ("padding", "max_length", "per_octave")}
            return Ragged(values, offsets, **lists)
        return np.zeros((rows, *self.shape), self.dtype)

    def cells(self, cell: str, delimiter: str) -> Any:
        """Split a list written as text; "" is an empty list, or missing of a fixed shape."""
        if (not cell or (self.coerce and cell in self.missing)) and (self.ragged or self.coerce):
            return [] if self.ragged else MISSING
        return cell.split(delimiter)

    def convert(self, values: Any, text: bool = False, refuse_bools: bool = False) -> tuple[Any, Misfits]:
        """Convert the values of n rows; the same value gives the same bits in every form.

        Args:
            values: n values: a list of Python values, an array, masked where values are missing, or `Ragged`.
            text: text may spell numbers (CSV cells).
            refuse_bools: reject True as a number (as in JSON, which distinguishes true from 1).

        Returns:
            An array, shape [n, *shape], of the column's dtype (`Ragged` for lists of any length), and why rows do not
            fit, by row.
        """
        if self.missing and self.coerce:
            values = coercion.without_words(values, self.missing)
        if self.as_given and (given := coercion.as_given(values)) is not None:
            return given, {}
        strict = refuse_bools and not self.coerce
        if not len(values):
            return self.blank(0), {}
        convert: Any = conversion.lists if self.ragged else conversion.fixed if self.shape else conversion.single
        array, bad = convert(self, values, text, strict)
        if self.accepts is not None:
            why = f"takes {', '.join(map(repr, self.accepts))}; received "
            bad = {**dict.fromkeys(np.flatnonzero(~np.isin(array, self.accepts)).tolist(), why), **bad}
        return array, {
            row: reason + short(values[row]) if reason.endswith(" ") else reason for row, reason in bad.items()
        }

    def absent(self, rows: int) -> tuple[Any, Misfits]:
        """Return the column of rows that lack it."""
        if self.default is None:
            return self.blank(rows), dict.fromkeys(range(rows), "is missing")
        if self.ragged or self.shape:
            return self.convert([self.default] * rows)
        return np.full(rows, self.default, None if self.dtype.kind == "U" else self.dtype), {}

    @cached_property
    def element(self) -> Column:
        """The column of the values within rows; missing ones keep their place."""
        default: Any = {"U": "", "f": float("nan")}.get(self.dtype.kind, coercion.MISSING_NUMBER)
        shape = self.shape[1:] if self.ragged else ()
        if not self.coerce or shape or (self.dtype.kind == "f" and not self.allow_nan):
            default = None
        return replace(self, shape=shape, default=default, padding=None, max_length=None, per_octave=1)

    @property
    def named(self) -> str:
        """The column's accepted values, in words."""
        return "a time" if self.times else "text" if self.dtype.kind == "U" else str(self.dtype)

    def integer_range(self) -> tuple[int, int]:
        """Return the least and the greatest integer of the dtype."""
        return (0, 1) if self.dtype.kind == "b" else (int(np.iinfo(self.dtype).min), int(np.iinfo(self.dtype).max))

    @property
    def out_of_range(self) -> str:
        """Why a number outside of the range does not fit; the number follows."""
        low, high = self.minimum, self.maximum
        finite = "finite " if self.dtype.kind == "f" and not self.allow_nan else ""
        if self.dtype.kind != "f":
            minimum, maximum = self.integer_range()
            low = minimum if low is None else max(minimum, low)
            high = maximum if high is None else min(maximum, high)
        within = "" if low is None and high is None else f" from {low} to {high}"
        return f"takes {finite}{self.dtype}{within}; received "


def as_column(value: Any) -> Column:
    """Return `value` as a `Column`: itself, a dtype, or a mapping of its arguments."""
    if isinstance(value, Column):
        return value
    if isinstance(value, Mapping):
        return Column(**known_arguments("a column", value, [field.name for field in fields(Column)], "dtype"))
    return Column(value)


def absent_column(argument: str, name: Any, columns: Iterable[str]) -> NoReturn:
    """Raise ConfigurationError: the column that `argument` names is not there."""
    known = list(columns)
    raise ConfigurationError(f"{argument} is not among the columns {known}{did_you_mean(name, known)}")


def known_arguments(owner: str, value: Mapping[str, Any], accepted: list[str], needed: str) -> Mapping[str, Any]:
    """Return `value` if all its keys are `accepted` and the `needed` one is present."""
    for name in value:
        if name not in accepted:
            raise ConfigurationError(f"{owner} takes {accepted}; received {name!r}{did_you_mean(name, accepted)}")
    if needed not in value:
        raise ConfigurationError(f"{owner} needs {needed}; received {dict(value)!r}")
    return value


def short(value: Any) -> str:
    """Return the repr of a value, cut to 80 characters."""
    text = repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
    return text if len(text) <= 80 else text[:77] + "..."
