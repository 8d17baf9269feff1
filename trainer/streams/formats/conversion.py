"""Converts a column in two steps: read exact values, then fit dtype and range.

All data are converted here: dicts, frames, Arrow data, files and requests, one row or many.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import coercion
from .coercion import MISSING, TRUTH_WORDS, MisfitError, is_missing, lower_truth
from .ragged_column import Ragged
from .times import seconds_of_array

if TYPE_CHECKING:
    from .column import Column

Misfits = dict[int, str]  # reason by row index; `Column.convert` appends the value to a reason that ends with a space

# Python types that NumPy converts without changing a value.
_PLAIN: dict[str, set[type]] = {"f": {float, int}, "i": {int}, "u": {int}, "U": {str}, "b": {bool}}
_EXACT_DTYPES: dict[str, Any] = {"f": np.float64, "i": np.int64, "u": np.int64, "U": np.str_, "b": np.bool_}


class RangeError(Exception):
    """A number that the column's dtype cannot represent."""


def single(column: Column, values: Any, text: bool, strict: bool) -> tuple[np.ndarray, Misfits]:
    """Convert rows of one value each."""
    masked = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    exact = None
    if isinstance(values, np.ndarray) and values.ndim == 1:
        array = values if masked is None else np.asarray(values)
        exact = _exact_array(column, array, strict)
        number = column.dtype.kind != "U" and not column.times
        if exact is None and array.dtype.kind == "U" and number and (text or column.coerce):
            texts = array if masked is None else np.where(masked, "", array)
            return _fit(column, *_exact_texts(column, texts, strict))
        if exact is None:
            values = list(array) if array.dtype.kind in "mM" else array.tolist()
            if masked is not None:
                values = [MISSING if absent else value for value, absent in zip(values, masked, strict=True)]
        elif masked is not None:
            exact = (exact[0], masked if exact[1] is None else masked | exact[1])
    if exact is not None:
        return _fit(column, *exact, {})
    return _fit(column, *_exact_list(column, values, text, strict))


def _exact_array(column: Column, array: np.ndarray, strict: bool) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Return exact values and a mask of the missing ones, or None.

    None means that the values must be read one by one.
    """
    kind, source = column.dtype.kind, array.dtype.kind
    if kind == "U":
        if source == "U":
            return lower_truth(array) if column.coerce else array, _absent_texts(column, array)
        if not column.coerce:
            return None
        if source == "b":
            return np.where(array, "true", "false"), None
        if source in "iu":
            return array.astype(np.str_), None
        whole = coercion.whole_numbers(array) if source == "f" else None
        return None if whole is None else (whole[0].astype(np.str_), whole[1])
    if column.times:
        return _exact_times(column, array)
    if source == "b" and strict and kind != "b":
        return None
    if kind == "f":
        if source == "M" and column.coerce:
            seconds = np.asarray(seconds_of_array(array))
            return seconds, np.isnan(seconds)
        if source not in "biuf":
            return None
        array = array.astype(np.float64) if source != "f" else array
        return array, np.isnan(array) if column.coerce and source == "f" else None
    if source == "f":
        whole = coercion.whole_numbers(array)
        return whole if whole is not None and (column.coerce or not whole[1].any()) else None
    return (array, None) if source in "biu" else None


def _absent_texts(column: Column, texts: np.ndarray) -> np.ndarray | None:
    return None if not column.coerce or column.default == "" else texts == ""


def _exact_times(column: Column, array: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    if array.dtype.kind == "U":
        try:
            numbers = array.astype(np.float64)
        except ValueError:
            return None
        # Integers that float64 cannot hold exactly, and texts such as "1_000", are read one by one.
        if not (np.abs(numbers) < coercion.EXACT).all() or (np.char.find(array, "_") >= 0).any():
            return None
        array = numbers
    seconds = seconds_of_array(array, column.time_unit) if array.dtype.kind in "iufM" else None
    return None if seconds is None else (seconds, np.isnan(seconds))


def _exact_list(column: Column, values: Any, text: bool, strict: bool) -> tuple[np.ndarray, np.ndarray | None, Misfits]:
    """Read Python values with one NumPy call if all are plain, else one by one."""
    kind, types = column.dtype.kind, set(map(type, values))
    if kind == "U" and column.coerce and int in types and types <= {int, str}:
        values, types = list(map(str, values)), {str}  # as `coercion.as_text` writes integers
    if not column.times and types <= _PLAIN[kind]:
        try:
            if kind == "U":
                if column.coerce and not TRUTH_WORDS.keys().isdisjoint(values):
                    values = [TRUTH_WORDS.get(value, value) for value in values]
                texts = np.array(values, np.str_)
                return texts, _absent_texts(column, texts), {}
            array = np.array(values, _EXACT_DTYPES[kind])
            return array, np.isnan(array) if kind == "f" and column.coerce else None, {}
        except OverflowError:
            pass  # reading one by one finds the integer that is too large
    exact: list[Any] = [column.dtype.type()] * len(values)
    absent = np.zeros(len(values), bool)
    bad: Misfits = {}
    for row, value in enumerate(values):
        try:
            exact_value = _read_value(column, value, text, strict)
            if exact_value is MISSING:
                absent[row] = True
            else:
                exact[row] = exact_value
        except MisfitError as misfit:
            bad[row] = f"takes {column.type_name}; {misfit}: "
        except RangeError:
            bad[row] = column.out_of_range
    return np.array(exact, column.dtype if kind in "iu" else _EXACT_DTYPES[kind]), absent, bad


def _exact_texts(column: Column, texts: np.ndarray, strict: bool) -> tuple[np.ndarray, np.ndarray, Misfits]:
    """Read texts as numbers: plain decimals in vectorised form, others one by one."""
    numbers, absent, plain = coercion.plain_numbers(texts, column.dtype.kind == "f", column.decimal)
    if column.dtype.kind != "f":
        low, high = column.integer_range()
        plain &= absent | ((numbers >= low) & (numbers <= high))
    others = np.flatnonzero(~plain)
    if not len(others):
        return numbers, absent, {}
    exact_others, missing, bad = _exact_list(column, texts[others].tolist(), True, strict)
    exact = numbers.astype(column.dtype if column.dtype.kind in "iu" else _EXACT_DTYPES[column.dtype.kind])
    exact[others], absent[others] = exact_others, missing
    return exact, absent, {int(others[row]): reason for row, reason in bad.items()}


def _read_value(column: Column, value: Any, text: bool, strict: bool) -> Any:
    """Return the exact value of one row, or MISSING; raise MisfitError or RangeError."""
    kind = column.dtype.kind
    if is_missing(value) and (column.coerce or not isinstance(value, float | np.floating)):
        return MISSING
    if kind == "U":
        if not column.coerce:
            if isinstance(value, str):
                return value
            raise MisfitError(coercion.received(value))
        return coercion.as_text(value) or MISSING
    if not column.coerce:
        if isinstance(value, str) and not text:
            raise MisfitError(coercion.received(value))
        if isinstance(value, datetime.date | np.datetime64) or (
            strict and kind != "b" and isinstance(value, bool | np.bool_)
        ):
            raise MisfitError(coercion.received(value))
    if column.times:
        return coercion.as_seconds(value, column.time_unit, column.day_first)
    if isinstance(value, str):
        value = coercion.in_plain_notation(value, column.decimal, column.thousands)
    if kind == "f":
        return coercion.as_float(value)
    if isinstance(value, float | np.floating) and not float(value).is_integer():
        raise RangeError
    number = coercion.as_integer(value)
    low, high = column.integer_range()
    if number is not MISSING and not low <= number <= high:
        raise RangeError
    return number


def _fit(column: Column, exact: np.ndarray, absent: np.ndarray | None, bad: Misfits) -> tuple[np.ndarray, Misfits]:
    """Convert exact values to the column's dtype; missing ones get the default."""
    array = exact
    if column.dtype.kind != "U":
        if exact.dtype != column.dtype:
            with np.errstate(over="ignore", invalid="ignore"):
                array = exact.astype(column.dtype)
        is_wrong = None
        if column.dtype.kind != "f":
            is_wrong = _outside(exact, *column.integer_range())
        elif not column.allow_nan:
            is_wrong = None if (finite := np.isfinite(array)).all() else ~finite
        is_wrong = _either(is_wrong, _outside(exact, column.minimum, column.maximum))
        if is_wrong is not None:
            is_wrong = is_wrong if absent is None else is_wrong & ~absent
            for row in np.flatnonzero(is_wrong):
                bad.setdefault(int(row), column.out_of_range)
    if absent is not None and absent.any():
        if column.default is not None:
            array = np.where(
                absent, np.asarray(column.default, None if column.dtype.kind == "U" else column.dtype), array
            )
        else:
            bad = {**bad, **dict.fromkeys(np.flatnonzero(absent).tolist(), "is missing")}
    return array, bad


def fixed(column: Column, values: Any, text: bool, strict: bool) -> tuple[np.ndarray, Misfits]:
    """Convert rows of a fixed shape; a row of another shape is a misfit."""
    size = math.prod(n for n in column.shape if n is not None)
    blank = ["" if column.dtype.kind == "U" else 0] * size
    flat: list[Any] = []
    bad: Misfits = {}
    is_array = isinstance(values, np.ndarray) and values.shape[1:] == column.shape and values.dtype != object
    for row, value in enumerate(() if is_array else values):
        if is_missing(value) and column.default is None:
            bad[row] = "is missing"
        try:
            flat += blank if row in bad else _flatten(column.default if is_missing(value) else value, column.shape)
        except MisfitError as misfit:
            bad[row] = f"takes rows of shape {list(column.shape)}; {misfit}: "
            flat += blank
    array, inner = _convert_inner(column.element, values.reshape(-1) if is_array else flat, text, strict)
    misfits = _first_per_row(inner, np.repeat(np.arange(len(values)), size))
    return array.reshape(len(values), *column.shape), {**misfits, **bad}


def lists(column: Column, values: Any, text: bool, strict: bool) -> tuple[Ragged, Misfits]:
    """Convert rows that are lists of any length."""
    bad: Misfits = {}
    flat: Any
    if isinstance(values, Ragged):
        lengths, flat = values.lengths, values[:].values
    elif isinstance(values, np.ndarray) and values.ndim > 1 and values.dtype != object:
        lengths, flat = np.full(len(values), values.shape[1]), values.reshape(-1, *values.shape[2:])
    elif _are_arrays(values):
        lengths, flat = np.array([len(row) for row in values]), np.concatenate(values)
    else:
        flat, counts = [], []
        for row, value in enumerate(values):
            if is_missing(value):
                if column.default is None:
                    bad[row] = "is missing"
                value = column.default or ()
            if not isinstance(value, list | tuple | np.ndarray) or (isinstance(value, np.ndarray) and not value.ndim):
                bad[row] = f"takes lists of {column.type_name}; {coercion.received(value)}: "
                value = ()
            counts.append(len(value))
            flat.extend(value)
        lengths = np.array(counts, np.int64)
    array, inner = _convert_inner(column.element, flat, text, strict)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    misfits = _first_per_row(inner, np.repeat(np.arange(len(lengths)), lengths))
    return Ragged(array, offsets, **column.blank(0).options), {**misfits, **bad}


def _are_arrays(rows: Any) -> bool:
    """Return whether rows are one-dimensional arrays of one dtype."""
    if not all(isinstance(row, np.ndarray) and row.ndim == 1 and row.dtype.kind != "O" for row in rows):
        return False
    return len({row.dtype for row in rows}) == 1


def _convert_inner(column: Column, values: Any, text: bool, strict: bool) -> tuple[Any, Misfits]:
    """Convert the values within rows; misfits are keyed by the index of the value."""
    if not len(values):
        return column.blank(0), {}
    if column.missing and column.coerce:
        values = coercion.without_words(values, column.missing)
    array, bad = fixed(column, values, text, strict) if column.shape else single(column, values, text, strict)
    return array, {row: "holds a missing value: " if why == "is missing" else why for row, why in bad.items()}


def _flatten(value: Any, shape: Sequence[Any]) -> list[Any]:
    """Return the values of a row as a flat list; raise MisfitError for another shape."""
    if not isinstance(value, list | tuple | np.ndarray):
        raise MisfitError(coercion.received(value))
    if len(value) != shape[0]:
        raise MisfitError(f"received {len(value)} values instead of {shape[0]}")
    if len(shape) == 1:
        return list(value)
    return [inner for part in value for inner in _flatten(part, shape[1:])]


def _first_per_row(inner: Misfits, row_of: np.ndarray) -> Misfits:
    """Return the first misfit of each row; `row_of[i]` is the row of value i."""
    misfits: Misfits = {}
    for number, reason in inner.items():
        misfits.setdefault(int(row_of[number]), reason)
    return misfits


def _either(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    if first is None or second is None:
        return second if first is None else first
    return first | second


def _outside(array: np.ndarray, low: float | None, high: float | None) -> np.ndarray | None:
    if array.size == 0 or array.dtype.kind == "b":
        return None
    if array.dtype.kind == "u":  # NumPy 1 would compare uint64 with other integers as floats
        array, low, high = array.astype(np.uint64), _unsigned(low), _unsigned(high)
    bad = None
    if low is not None and not array.min() >= low:
        bad = ~(array >= low)
    if high is not None and not array.max() <= high:
        bad = _either(bad, ~(array <= high))
    return bad


def _unsigned(bound: float | None) -> Any:
    return bound if bound is None or not float(bound).is_integer() else np.uint64(min(max(int(bound), 0), 2**64 - 1))
