"""The shape of a record: names, dtypes and row shapes of columns, and the vectorised check that data fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..checks import choice
from ..errors import ConfigurationError, did_you_mean

_TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# Above this a float64 no longer tells neighbouring integers apart.
_EXACT = float(2**53)


class Missing:
    """Stands for a value that a record does not have."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = Missing()


class MisfitError(Exception):
    """Values that are not what their column takes; the message says why."""


@dataclass(frozen=True)
class Column:
    """One column of a schema.

    Args:
        dtype: "bool", an integer or float dtype, or "str".
        shape: shape of one row's value; () for a scalar, (39,) for a list of 39.
        minimum: smallest value accepted, or None.
        maximum: largest value accepted, or None.
        default: value of a row that lacks the column; None: such a row is bad.
        allow_nan: accept NaN and infinities in a float column.

    Raises:
        ConfigurationError: a dtype that is not one of those, a shape that is not one, or an unusable default.
    """

    dtype: Any
    shape: tuple[int, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    default: Any = None
    allow_nan: bool = False

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
        if not all(isinstance(n, int) and n > 0 for n in shape):
            raise ConfigurationError(f"a row shape is a tuple of whole numbers > 0; received {self.shape!r}")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)
        if self.default is not None:
            try:
                _, bad = self.convert([self.default])
            except MisfitError as error:
                raise ConfigurationError(f"default={self.default!r} does not fit the column: {error}") from None
            if bad is not None:
                raise ConfigurationError(f"default={self.default!r}: {self.reason(self.default)}")

    def convert(
        self, values: Any, text: bool = False, refuse_bools: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Convert the values of n rows.

        Args:
            values: a list or array of n values.
            text: the values are strings that spell numbers, or lists of such (CSV cells).
            refuse_bools: whether True is no number (as in JSON, where 1 would have been written).

        Returns:
            An array, shape [n, *shape] and the column's dtype, and a mask of bad rows, shape [n], or None when all
            are good.

        Raises:
            MisfitError: something among the values has another type or shape.
        """
        try:
            array = np.asarray(values)
        except ValueError:
            raise MisfitError(f"takes rows of shape {list(self.shape)}; received lists of other lengths") from None
        if array.shape[1:] != self.shape:
            raise MisfitError(f"takes rows of shape {list(self.shape)}; received {_kind(array)}")
        if text and self.dtype.kind != "U":
            array = self._parse(array)
        if refuse_bools and self.dtype.kind in "iuf" and _holds_bool(values):
            raise MisfitError(f"takes {self.dtype}; received true or false")
        return self._cast(array, values)

    def _parse(self, array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "U":
            raise MisfitError(f"takes {self.dtype}; received {_kind(array)}")
        if self.dtype.kind == "b":
            lowered = np.char.lower(array)
            array = np.where(lowered == "true", "1", np.where(lowered == "false", "0", array))
        try:
            return array.astype(np.int64 if self.dtype.kind in "iub" else np.float64)
        except (ValueError, OverflowError):
            try:
                return array.astype(np.float64)
            except ValueError:
                raise MisfitError(f"takes {self.dtype}; received text that is no number") from None

    def _cast(self, array: np.ndarray, values: Any) -> tuple[np.ndarray, np.ndarray | None]:
        kind = array.dtype.kind
        if self.dtype.kind == "U":
            if kind != "U":
                raise MisfitError(f"takes text; received {_kind(array)}")
            # NumPy turns numbers among text into text.
            if isinstance(values, list) and not all(isinstance(v, str) for v in np.array(values, dtype=object).flat):
                raise MisfitError("takes text; received text among other values")
            return array, None
        if kind not in "biuf":
            raise MisfitError(f"takes {self.dtype}; received {_kind(array)}")
        if self.dtype.kind == "f":
            with np.errstate(over="ignore"):
                result = array.astype(self.dtype, copy=False)
            bad = None if self.allow_nan else _unless(np.isfinite(result))
        else:
            if kind == "f" and array.size and np.abs(array).max() >= _EXACT:
                raise MisfitError(f"takes {self.dtype}; received a float too large to be an exact integer")
            bad = None if kind != "f" else _unless(np.floor(array) == array)
            low, high = (0, 1) if self.dtype.kind == "b" else (np.iinfo(self.dtype).min, np.iinfo(self.dtype).max)
            bad = _or(bad, _outside(array, low, high))
            with np.errstate(invalid="ignore"):
                result = array.astype(self.dtype, copy=False)
        bad = _or(bad, _outside(array, self.minimum, self.maximum))
        if bad is not None and bad.ndim > 1:
            bad = bad.reshape(len(bad), -1).any(axis=1)
        return result, bad

    def reason(self, value: Any) -> str:
        """Say why `value`, for which `convert` set the mask, does not fit."""
        shown = _short(value)
        if self.dtype.kind == "f":
            low, high = self.minimum, self.maximum
            finite = "" if self.allow_nan else "finite "
        else:
            info = (0, 1) if self.dtype.kind == "b" else (np.iinfo(self.dtype).min, np.iinfo(self.dtype).max)
            low = info[0] if self.minimum is None else max(info[0], self.minimum)
            high = info[1] if self.maximum is None else min(info[1], self.maximum)
            finite = ""
        within = "" if low is None and high is None else f" from {low} to {high}"
        return f"takes {finite}{self.dtype}{within}; received {shown}"


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
        columns = {name: np.require(arrays[name], requirements=("C", "W")) for name in self.columns}
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
    accepted = ("columns", "label", "event_time", "event_time_unit", "key")
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"schema takes a Schema or a mapping of {list(accepted)}; received {value!r}")
    for name in value:
        if name not in accepted:
            raise ConfigurationError(
                f"a schema takes {list(accepted)}; received {name!r}{did_you_mean(name, accepted)}"
            )
    if "columns" not in value:
        raise ConfigurationError(f"a schema needs columns; received {dict(value)!r}")
    return Schema(**value)


def as_column(value: Any) -> Column:
    """Return `value` as a `Column`: itself, a dtype, or a mapping of `Column`'s arguments.

    Raises:
        ConfigurationError: none of these.
    """
    if isinstance(value, Column):
        return value
    if isinstance(value, Mapping):
        accepted = ("dtype", "shape", "minimum", "maximum", "default", "allow_nan")
        for name in value:
            if name not in accepted:
                raise ConfigurationError(
                    f"a column takes {list(accepted)}; received {name!r}{did_you_mean(name, accepted)}"
                )
        if "dtype" not in value:
            raise ConfigurationError(f"a column needs a dtype; received {dict(value)!r}")
        return Column(**value)
    return Column(value)


def _convert(column: Column, values: Any, text: bool, refuse_bools: bool) -> tuple[np.ndarray, dict[int, str]]:
    """Convert as a whole; where that fails, halve, so that k bad rows of n cost about k log n vector calls."""
    if len(values) == 0:
        return np.empty((0, *column.shape), column.dtype), {}
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
    blank = np.zeros((1, *column.shape), column.dtype)
    return blank, {0: "is missing" if absent else f"{reason}: {_short(value)}"}


def _holds_bool(values: Any) -> bool:
    return any(type(value) is bool or (type(value) is list and _holds_bool(value)) for value in values)


def _unless(good: np.ndarray) -> np.ndarray | None:
    return None if good.all() else ~good


def _or(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    if first is None or second is None:
        return second if first is None else first
    return first | second


def _outside(array: np.ndarray, low: float | None, high: float | None) -> np.ndarray | None:
    if array.size == 0 or array.dtype.kind == "b":
        return None
    bad = None
    if low is not None and not array.min() >= low:
        bad = ~(array >= low)
    if high is not None and not array.max() <= high:
        bad = _or(bad, ~(array <= high))
    return bad


def _kind(array: np.ndarray) -> str:
    if array.dtype.kind == "O":
        return "mixed or nested values"
    name = {"U": "text", "b": "bool"}.get(array.dtype.kind, str(array.dtype))
    return f"{name} of shape {list(array.shape[1:])}" if array.ndim > 1 else name


def _short(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
    return text if len(text) <= 80 else text[:77] + "..."
