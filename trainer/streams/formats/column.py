"""A column of a schema: dtype, row shape, vectorised validation and conversion."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn

import numpy as np

from ...errors import ConfigurationError, did_you_mean
from .coercion import MISSING as MISSING
from .coercion import coerced, is_missing
from .ragged_column import Ragged

# Above this float64 cannot represent every integer.
_EXACT = float(2**53)


class MisfitError(Exception):
    """Values do not fit their column; the message says why."""


@dataclass(frozen=True)
class Column:
    """One column of a schema.

    Args:
        dtype: "bool", an integer or float dtype, or "str".
        shape: shape of one row's value; () for a scalar, (39,) for a list of 39, (None,) for a list of any length and
            (None, 3) for one of triples.
        minimum: smallest value accepted, or None.
        maximum: largest value accepted, or None.
        default: value of a row that lacks the column; None: such a row is bad.
        allow_nan: accept NaN and infinities in a float column.
        padding, max_length, per_octave: of lists of any length, how they are filled up and cut on their way to the
            network; see `trainer.data.ragged.Ragged`.
        coerce: take numbers as text, text that spells numbers, times as seconds, and None or NaN as a missing value;
            an empty text is missing.
        times: with `coerce`, in a float column: take text as a time too, "2024-05-01", "2024-05-01 09:30" or ISO 8601
            with a zone (UTC without one), as seconds since the epoch.

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
        self.blank(0)
        if not self.ragged and (self.max_length is not None or self.per_octave != 1 or self.padding is not None):
            raise ConfigurationError(
                "padding, max_length and per_octave go with lists of any length, shape=(None,); received "
                f"shape={self.shape!r}"
            )
        if self.default is not None:
            try:
                _, bad = self.convert([self.default])
            except MisfitError as error:
                raise ConfigurationError(f"default={self.default!r} does not fit the column: {error}") from None
            if bad is not None:
                raise ConfigurationError(f"default={self.default!r}: {self.reason(self.default)}")

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
        if not cell and (self.ragged or self.coerce):
            return [] if self.ragged else MISSING
        return cell.split(delimiter)

    def convert(self, values: Any, text: bool = False, refuse_bools: bool = False) -> tuple[Any, np.ndarray | None]:
        """Convert the values of n rows.

        Args:
            values: a list or array of n values.
            text: the values are numeric strings, or lists of them (CSV cells).
            refuse_bools: reject True as a number (as in JSON, which distinguishes true from 1).

        Returns:
            An array, shape [n, *shape], of the column's dtype (`Ragged` for lists of any length), and a mask of bad
            rows, shape [n], or None if all are good.

        Raises:
            MisfitError: a value has the wrong type or shape.
        """
        if self.coerce:
            values = coerced(self, values, text, MISSING if self.default is None else self.default)
            refuse_bools = False
        if self.ragged:
            return self._convert_lists(values, text, refuse_bools)
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

    def _convert_lists(self, rows: Any, text: bool, refuse_bools: bool) -> tuple[Ragged, np.ndarray | None]:
        if isinstance(rows, Ragged):
            lengths, values = rows.lengths, rows[:].values
        else:
            for row in rows:
                # np.ndim raises for nested lists of unequal length
                if not isinstance(row, list | tuple | np.ndarray) or (isinstance(row, np.ndarray) and not row.ndim):
                    raise MisfitError(f"takes lists of {self.dtype}; received {_kind(np.asarray(row))}")
            lengths = np.array([len(row) for row in rows], np.int64)
            values = [value for row in rows for value in row]
        blank = self.blank(len(lengths))
        if len(values) == 0:
            return blank, None
        element = Column(self.dtype, self.shape[1:], self.minimum, self.maximum, allow_nan=self.allow_nan)
        array, bad = element.convert(values, text, refuse_bools)
        if bad is not None:
            bad = np.bincount(np.repeat(np.arange(len(lengths)), lengths)[bad], minlength=len(lengths)) > 0
        return Ragged(array, np.concatenate([[0], np.cumsum(lengths)]), **blank.options), bad

    def _parse(self, array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "U":
            raise MisfitError(f"takes {self.dtype}; received {_kind(array)}")
        plain = _is_plain_number_text(array)
        if plain and self.dtype.kind == "b":
            lowered = np.char.lower(array)
            array = np.where(lowered == "true", "1", np.where(lowered == "false", "0", array))
        dtypes = (np.float64,) if self.dtype.kind == "f" else (np.int64, np.float64)
        for dtype in dtypes if plain else ():
            with contextlib.suppress(ValueError, OverflowError):
                return array.astype(dtype)
        raise MisfitError(f"takes {self.dtype}; received text that is no number")

    def _cast(self, array: np.ndarray, values: Any) -> tuple[np.ndarray, np.ndarray | None]:
        kind = array.dtype.kind
        if self.dtype.kind == "U":
            if kind != "U":
                raise MisfitError(f"takes text; received {_kind(array)}")
            # NumPy converts numbers among strings to strings.
            if isinstance(values, list) and not all(isinstance(v, str) for v in np.array(values, dtype=object).flat):
                raise MisfitError("takes text; received text among other values")
            return array, _unless(array != "") if self.coerce and self.default is None else None
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
            bad = _or(bad, _outside(array, *self._integer_range()))
            with np.errstate(invalid="ignore"):
                result = array.astype(self.dtype, copy=False)
        bad = _or(bad, _outside(array, self.minimum, self.maximum))
        if bad is not None and bad.ndim > 1:
            bad = bad.reshape(len(bad), -1).any(axis=1)
        return result, bad

    def _integer_range(self) -> tuple[int, int]:
        return (0, 1) if self.dtype.kind == "b" else (int(np.iinfo(self.dtype).min), int(np.iinfo(self.dtype).max))

    def reason(self, value: Any) -> str:
        """Return why `value`, masked by `convert`, does not fit."""
        if self.coerce and (value == "" if isinstance(value, str) else is_missing(value)):
            return "is missing"
        low, high = self.minimum, self.maximum
        finite = "finite " if self.dtype.kind == "f" and not self.allow_nan else ""
        if self.dtype.kind != "f":
            minimum, maximum = self._integer_range()
            low = minimum if low is None else max(minimum, low)
            high = maximum if high is None else min(maximum, high)
        within = "" if low is None and high is None else f" from {low} to {high}"
        return f"takes {finite}{self.dtype}{within}; received {short(value)}"


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


def _is_plain_number_text(array: np.ndarray) -> bool:
    """Return whether text lacks number forms of Python: 1_0, non-ASCII digits."""
    codes = np.ascontiguousarray(array).view(np.uint32)
    return not ((codes == ord("_")) | (codes > ord("~")) | ((codes < ord(" ")) & (codes != 0) & (codes != 9))).any()


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


def short(value: Any) -> str:
    """Return the repr of a value, cut to 80 characters."""
    text = repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
    return text if len(text) <= 80 else text[:77] + "..."
