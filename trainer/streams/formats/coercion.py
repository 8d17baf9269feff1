"""Coerces values to a column's type: fills gaps, converts numbers and text.

A JSON number, an integer column of a frame and a CSV cell give the same text; times become seconds. A truth value is
the text "true" or "false" in every format, however a text spells it: pandas writes True, databases TRUE, JSON true.
"""

from __future__ import annotations

import datetime
import itertools
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from .ragged_column import Ragged

if TYPE_CHECKING:
    from .column import Column

MISSING_NUMBER = int(np.iinfo(np.int64).min)  # marks a missing integer in a list


class Missing:
    """Marks a value missing from a record."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = Missing()


def is_missing(value: Any) -> bool:
    """Return whether a Python value is missing: None, NaN, NA, NaT."""
    return (
        value is None
        or (isinstance(value, float) and value != value)
        or value is MISSING
        or type(value).__name__ in ("NAType", "NaTType")
    )


def coerced(column: Column, values: Any, text: bool, missing: Any) -> Any:
    """Convert values to the type of `column` if possible; return others unchanged."""
    if isinstance(values, Ragged) and not column.ragged:
        rows: Any = values
        values = [row if len(row) else MISSING for row in rows]
    if isinstance(values, Ragged):
        if values.dtype.kind == column.dtype.kind:
            words = lower_truth(values.values) if values.dtype.kind == "U" else values.values
            return values if words is values.values else Ragged(words, values.offsets, **values.options)
        element = _element_missing(column.dtype.kind)
        return Ragged(np.asarray(_scalars(column.dtype.kind, values.values, element)), values.offsets)
    if column.shape:
        if isinstance(values, np.ndarray) and values.dtype != object:
            return lower_truth(values) if values.dtype.kind == "U" else values
        return [missing if is_missing(row) else _row(row, column, text) for row in values]
    if column.times:
        values = _read_times(values, text)
    if text and column.dtype.kind != "U":
        filler = str(missing)
        blank = column.default is not None
        cells = [filler if blank and (cell == "" or cell is MISSING) else cell for cell in values]
        return [_BOOLS.get(cell, cell) for cell in cells]
    return _scalars(column.dtype.kind, values, missing)


TRUTH_WORDS = {
    "".join(letters): word
    for word in ("true", "false")
    for letters in itertools.product(*zip(word, word.upper(), strict=True))
}
_BOOLS = {spelling: "1" if word == "true" else "0" for spelling, word in TRUTH_WORDS.items()}
_SHORTEST = 4  # letters of "true"


def lower_truth(texts: np.ndarray) -> np.ndarray:
    """Return texts with any "True", "FALSE", ... in lower case; without, themselves."""
    width = texts.dtype.itemsize // 4
    if not texts.size or width < _SHORTEST:
        return texts
    codes = np.ascontiguousarray(texts).view(np.uint32).reshape(-1, width)
    first, last = codes[:, 0] | 32, codes[:, _SHORTEST - 1] | 32  # ASCII letters in lower case
    likely = np.flatnonzero(((first == ord("t")) & (last == ord("e"))) | ((first == ord("f")) & (last == ord("s"))))
    found = texts.reshape(-1)[likely].tolist()
    if not any(TRUTH_WORDS.get(text, text) != text for text in set(found)):
        return texts
    lowered = texts.copy()
    lowered.reshape(-1)[likely] = [TRUTH_WORDS.get(text, text) for text in found]
    return lowered


def _element_missing(kind: str) -> Any:
    return {"U": "", "f": float("nan")}.get(kind, MISSING_NUMBER)


def _row(row: Any, column: Column, text: bool) -> Any:
    """Convert the values of one list; anything else is returned unchanged."""
    if not isinstance(row, list | tuple | np.ndarray) or (text and column.dtype.kind != "U") or len(column.shape) > 1:
        return row
    return _scalars(column.dtype.kind, row, _element_missing(column.dtype.kind))


def _scalars(kind: str, values: Any, missing: Any) -> Any:
    if isinstance(values, np.ndarray) and values.dtype != object:
        whole = _array(kind, values, missing)
        if whole is not None:
            return whole
    if isinstance(values, np.ndarray):
        values = values.tolist() if values.dtype.kind != "M" else list(values)
    convert = {"U": as_text, "f": _as_float}.get(kind, _as_integer)
    if kind == "U" and all(type(value) is str for value in values):
        return values if TRUTH_WORDS.keys().isdisjoint(values) else [TRUTH_WORDS.get(value, value) for value in values]
    return [missing if is_missing(value) else convert(value, missing) for value in values]


def _array(kind: str, values: np.ndarray, missing: Any) -> np.ndarray | None:
    """Convert an array as a whole; None if values must be converted one by one."""
    source_kind = values.dtype.kind
    if source_kind == "M":
        seconds = times_in_seconds(values)
        return seconds if kind == "f" else None
    if kind == "U" and source_kind in "Ub":
        return lower_truth(values) if source_kind == "U" else np.where(values, "true", "false")
    if source_kind == kind or (kind == "f" and source_kind in "iub") or (kind in "iu" and source_kind in "iub"):
        return values
    if source_kind in "iu" and kind == "U":
        return values.astype(np.str_)
    if source_kind == "f" and kind in "iuU":
        absent = np.isnan(values)
        numbers = np.where(absent, 0, values)
        if isinstance(missing, int | str) and (np.abs(numbers) < 2**53).all() and (np.floor(numbers) == numbers).all():
            numbers = numbers.astype(np.int64)
            return np.where(absent, missing, numbers.astype(np.str_) if kind == "U" else numbers)
    return None


def times_in_seconds(values: np.ndarray) -> np.ndarray:
    """Return datetime64 as seconds since the epoch, float64; NaT is NaN."""
    seconds = values.astype("datetime64[us]").astype(np.int64) / 1e6
    return np.where(np.isnat(values), np.nan, seconds)


def _read_times(values: Any, text: bool) -> Any:
    """Convert time strings to seconds since the epoch; as text if `text`."""
    if isinstance(values, np.ndarray) and values.dtype.kind not in "OU":
        return values
    parsed: dict[str, Any] = {}
    for value in values:
        if isinstance(value, str) and value not in parsed:
            seconds = seconds_of(value)
            parsed[value] = value if seconds is None else repr(seconds) if text else seconds
    return [parsed[value] if isinstance(value, str) else value for value in values]


def seconds_of(text: str) -> float | None:
    """Convert an ISO 8601 time (UTC by default) to seconds since the epoch, or None."""
    if not _DATE.match(text):
        return None
    try:
        text = _FRACTION.sub(lambda digits: digits[0][:7].ljust(7, "0"), text.strip())  # Python 3.10 needs 3 or 6
        time = datetime.datetime.fromisoformat(_ZULU.sub("+00:00", text))
    except ValueError:
        return None
    zone = time if time.tzinfo is not None else time.replace(tzinfo=datetime.timezone.utc)
    return (zone - _EPOCH) // datetime.timedelta(microseconds=1) / 1e6


_DATE = re.compile(r"\s*\d{4}-\d\d-\d\d")
_ZULU = re.compile("[zZ]$")
_FRACTION = re.compile(r"\.\d+")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def as_text(value: Any, missing: Any = None) -> Any:
    """Return a value as a text column's text; unchanged if it has none, as a list."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return TRUTH_WORDS.get(value, value)
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value) if isinstance(value, int | np.integer | np.datetime64) else value


def _as_float(value: Any, missing: Any) -> Any:
    if isinstance(value, str):
        if not value.strip():
            return missing
        value = _BOOLS.get(value, value)
        try:
            return value if "_" in value or not value.isascii() else float(value)
        except ValueError:
            return value
    if isinstance(value, np.datetime64):
        return float(times_in_seconds(np.array([value]))[0])
    if isinstance(value, datetime.datetime):
        zone = value if value.tzinfo is not None else value.replace(tzinfo=datetime.timezone.utc)
        return zone.timestamp()
    if isinstance(value, datetime.date):
        return float(times_in_seconds(np.array([value.isoformat()], "datetime64[D]"))[0])
    if type(value).__name__ == "Decimal":
        return float(value)
    return value


def _as_integer(value: Any, missing: Any) -> Any:
    if isinstance(value, str):
        digits = _BOOLS.get(value, value).strip()
        if not digits:
            return missing
        unsigned = digits.removeprefix("-")
        return int(digits) if unsigned.isascii() and unsigned.isdigit() and len(unsigned) < 19 else value
    if isinstance(value, float | np.floating) and float(value).is_integer() and abs(float(value)) < 2**53:
        return int(value)
    return value
