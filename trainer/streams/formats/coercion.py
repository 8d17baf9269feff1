"""Converts values from any source to text, numbers and times.

A value gives the same result whether it comes from a dict, a frame of any dtype, an Arrow table or a file. So the exact
value is read before it is converted, and an integer never passes through a float. Truth values become the texts "true"
or "false", because pandas writes True, databases write TRUE and JSON writes true.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import re
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from .times import UnclearTimeError, seconds_of, seconds_of_datetime, seconds_of_number, text_of

MISSING_NUMBER = int(np.iinfo(np.int64).min)  # marks a missing integer id; no id column accepts it as a value
EXACT = 2**53  # below it, float64 represents every integer exactly


class MisfitError(Exception):
    """A value does not fit its column; the message says what was received."""


class Missing:
    """Type of `MISSING`, which stands for a value that a record lacks."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = Missing()


def is_missing(value: Any) -> bool:
    """Return whether a Python value is None, NaN, NA, NaT or `MISSING`."""
    return (
        value is None
        or value is MISSING
        or (isinstance(value, float | np.floating | decimal.Decimal) and value != value)
        or (isinstance(value, np.datetime64) and np.isnat(value))
        or type(value).__name__ in ("NAType", "NaTType", "MaskedConstant")
    )


def without_words(values: Any, words: tuple[str, ...]) -> Any:
    """Return `values` with every text in `words` replaced by a missing value.

    Args:
        values: a list of Python values, or an array [n], masked where values are missing.
        words: texts that stand for a missing value.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        is_word = np.isin(np.ma.getdata(values), words) if values.dtype.kind == "U" and values.ndim == 1 else None
        if is_word is None or not is_word.any():
            return values
        return np.ma.MaskedArray(values, is_word | np.ma.getmaskarray(values))
    if not isinstance(values, list | np.ndarray):  # `Ragged`
        return values
    items = values.tolist() if isinstance(values, np.ndarray) else values
    return [MISSING if isinstance(value, str) and value in words else value for value in items]


def plain(value: Any) -> Any:
    """Convert a NumPy scalar to the Python type; return other values unchanged."""
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[D]" if np.datetime_data(value)[0] in "YMWD" else "datetime64[us]").item()
    return value.item() if isinstance(value, np.generic) and not isinstance(value, np.timedelta64) else value


def as_given(values: Any) -> np.ndarray | None:
    """Return an array if all values are numbers or bools of one type, else None.

    Missing values are None in the array.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind not in "biufO":
        return None
    items = values.tolist() if isinstance(values, np.ndarray) else values  # None where masked
    rows: list[Any] = [None if is_missing(value) else plain(value) for value in items]
    types = {type(value) for value in rows} - {type(None)}
    if types not in ({int}, {float}, {bool}):
        return None
    array = np.array(rows)
    if types == {int} and array.dtype.kind == "f":  # NumPy turns integers below and above 2**63 into floats
        return np.array(rows, np.uint64 if min(rows) >= 0 and max(rows) < 1 << 64 else object)
    return array


TRUTH_WORDS = {
    "".join(letters): word
    for word in ("true", "false")
    for letters in itertools.product(*zip(word, word.upper(), strict=True))
}
_MIN_LETTERS = 4  # letters of "true"


def lower_truth(texts: np.ndarray) -> np.ndarray:
    """Return `texts` with every spelling of "true" and "false" in lower case."""
    width = texts.dtype.itemsize // 4
    if not texts.size or width < _MIN_LETTERS:
        return texts
    codes = np.ascontiguousarray(texts).view(np.uint32).reshape(-1, width)
    first, last = codes[:, 0] | 32, codes[:, _MIN_LETTERS - 1] | 32  # ASCII letters in lower case
    candidates = np.flatnonzero(((first == ord("t")) & (last == ord("e"))) | ((first == ord("f")) & (last == ord("s"))))
    words = texts.reshape(-1)[candidates].tolist()
    if not any(TRUTH_WORDS.get(text, text) != text for text in set(words)):
        return texts
    lowered = texts.copy()
    lowered.reshape(-1)[candidates] = [TRUTH_WORDS.get(text, text) for text in words]
    return lowered


def as_text(value: Any) -> str:
    """Return a value as a category's text; raise MisfitError for lists and such."""
    value = plain(value)
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError:
            raise MisfitError("received bytes that are not UTF-8 text") from None
    if isinstance(value, str):
        return TRUTH_WORDS.get(value, value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, decimal.Decimal) and not value.is_finite():
        value = float(value)
    if isinstance(value, float):
        return str(_exact_integer(value)) if value.is_integer() else repr(value)
    if isinstance(value, decimal.Decimal):
        return str(int(value)) if value == value.to_integral_value() else format(value.normalize(), "f")
    if isinstance(value, datetime.date | datetime.time):
        return text_of(value)
    if isinstance(value, int | uuid.UUID):
        return str(value)
    raise MisfitError(received(value))


def as_float(value: Any) -> Any:
    """Convert a number, a number as text, or a time to a float or MISSING."""
    value = plain(value)
    if isinstance(value, str):
        return _number_from_text(value, float)
    if isinstance(value, datetime.date):
        return seconds_of_datetime(value)
    if not isinstance(value, bool | int | float | decimal.Decimal):
        raise MisfitError(received(value))
    try:
        return float(value)
    except OverflowError:
        raise MisfitError("received an integer that no float can hold") from None


def as_integer(value: Any) -> Any:
    """Convert a whole number, or one as text, to an int or MISSING."""
    value = plain(value)
    if isinstance(value, str):
        value = _number_from_text(value, _integer_or_float)
        if value is MISSING:
            return value
    if isinstance(value, float):
        return _exact_integer(value)
    if isinstance(value, decimal.Decimal) and value.is_finite() and value == value.to_integral_value():
        return int(value)
    if isinstance(value, bool | int):
        return int(value)
    raise MisfitError(received(value))


def as_seconds(value: Any, unit: str | None = None, day_first: bool | None = None) -> Any:
    """Convert a time to seconds since the epoch or MISSING; see `seconds_of`."""
    value = plain(value)
    try:
        if isinstance(value, str):
            seconds = seconds_of(value, unit, day_first) if value.strip() else MISSING
            if seconds is None:
                raise MisfitError("received text that is not a time")
            return seconds
        if isinstance(value, datetime.date):
            return seconds_of_datetime(value)
        if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
            raise MisfitError(received(value))
        return seconds_of_number(float(value) if isinstance(value, decimal.Decimal) else value, unit)
    except UnclearTimeError as error:
        raise MisfitError(f"received {error}") from None
    except OverflowError:
        raise MisfitError("received a number too large for a time") from None


def in_plain_notation(text: str, decimal: str, thousands: str | None) -> str:
    """Rewrite a number with "." as its decimal sign and without thousands signs.

    A text that is not a number at all is returned unchanged.

    Raises:
        MisfitError: the number has other signs than declared.
    """
    text = text.strip(" \t\r\n").replace("\xa0", " ").replace("\u202f", " ")
    if thousands is not None and thousands in text:
        if not re.fullmatch(rf"[+-]?\d{{1,3}}(?:\{thousands}\d{{3}})+(?:\{decimal}\d*)?", text):
            raise MisfitError(f"received text that is not a number with groups of three digits between {thousands!r}")
        text = text.replace(thousands, "")
    if decimal == ".":
        if _COMMA.fullmatch(text):
            raise MisfitError("received a number with a comma, and csv: {decimal: ','} is not declared")
        return text
    if "." in text and _DOT.fullmatch(text):
        raise MisfitError(f"received a number with '.', and its decimal sign is declared as {decimal!r}")
    return text.replace(decimal, ".")


def whole_numbers(values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Convert floats [n] to int64, with a mask of NaN; None unless all are whole."""
    absent = np.isnan(values)
    numbers = np.where(absent, 0, values)
    if (np.abs(numbers) < EXACT).all() and (np.floor(numbers) == numbers).all():
        return numbers.astype(np.int64), absent
    return None


def received(value: Any) -> str:
    """Return "received" and the kind of a value, for an error message."""
    names = {str: "text", bool: "true or false", list: "a list", tuple: "a list", np.ndarray: "a list", dict: "a map"}
    return f"received {names.get(type(value), type(value).__name__)}"


def plain_numbers(texts: np.ndarray, real: bool, decimal: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read plain numbers from texts, with the results of `as_float` and `as_integer`.

    Plain numbers consist of digits, sign, decimal point and exponent. Integers of more than 18 digits are not read, nor
    any text if the dtype of `texts` has 32 characters or more.

    Args:
        texts: array of texts, shape [n].
        real: whether to return float64 instead of int64.
        decimal: the decimal sign; texts with a point are read only if it is ".".

    Returns:
        The numbers, a mask of the empty texts, and a mask of the texts that were read or are empty; each of shape [n].
    """
    dtype = np.float64 if real else np.int64
    numbers, no_texts = np.zeros(len(texts), dtype), np.zeros(len(texts), bool)
    width = texts.dtype.itemsize // 4
    if not 0 < width < _MAX_WIDTH:
        return numbers, texts == "", texts == ""
    codes = np.ascontiguousarray(texts).view(np.uint32).reshape(-1, width)
    classes = _CLASSES[np.minimum(codes, len(_CLASSES) - 1)].max(axis=1)
    is_empty = codes[:, 0] == 0
    is_integer = (classes == 1) & ~is_empty & (codes[:, _MAX_DIGITS:] == 0).all(axis=1)
    is_float = (classes <= 2) & ~is_empty & ~is_integer if decimal == "." else no_texts
    try:
        numbers[is_integer] = texts[is_integer].astype(dtype)
        if is_float.any():
            floats = texts[is_float].astype(np.float64)
            if not real:
                is_whole = (np.abs(floats) < EXACT) & (np.floor(floats) == floats)
                is_float[is_float] = is_whole
                floats = floats[is_whole]
            numbers[is_float] = floats
    except ValueError:  # a text is not a number, for example "1-2" or a date
        return numbers, is_empty, is_empty.copy()
    return numbers, is_empty, is_empty | is_integer | is_float


# Width of a text dtype from which texts are not read; maximum characters of an integer, so that it fits int64.
_MAX_WIDTH, _MAX_DIGITS = 32, 18
# Class of each character code: 0 padding, 1 in integers and floats, 2 in floats only, 3 in neither.
_CLASSES = np.full(129, 3, np.uint8)
_CLASSES[0] = 0
_CLASSES[[*b"0123456789+-"]] = 1
_CLASSES[[*b".eE"]] = 2


def _exact_integer(value: float) -> int:
    if abs(value) >= EXACT:
        raise MisfitError("received a float too large to be an exact integer")
    if not value.is_integer():
        raise MisfitError("received a number with a fraction")
    return int(value)


# Python would also accept 1_0 and the digits and spaces of other scripts.
_PLAIN_CHARACTERS = re.compile(r"[\t -^`-~]*")
_COMMA = re.compile(r"[+-]?\d*,\d+")
_DOT = re.compile(r"[+-]?\d*\.\d*([eE][+-]?\d+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")


def _number_from_text(text: str, convert: Callable[[str], Any]) -> Any:
    text = text.strip(" \t\r\n")
    if not text:
        return MISSING
    word = TRUTH_WORDS.get(text)
    try:
        if _PLAIN_CHARACTERS.fullmatch(text):
            return convert(text if word is None else str(int(word == "true")))
    except ValueError:
        pass
    raise MisfitError("received text that is not a number")


def _integer_or_float(text: str) -> int | float:
    return int(text) if _INTEGER.fullmatch(text) else float(text)
