"""Summarize a column: the kind, counts and range of its values."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...streams.formats.coercion import MisfitError, as_text, in_plain_notation, is_missing
from ...streams.formats.csv_format import CsvFormat
from ...streams.formats.number_signs import problem_of, words_among_numbers
from ...streams.formats.times import DATE_UNIT, UNITS, UnclearTimeError, seconds_of, seconds_of_number

_SEPARATORS = ("|", ";", ",")
_SECONDS = (3e8, 5e9)  # epoch seconds of 1979 and 2128; a column is a time only between them
_TIME_NAME = re.compile(r"(^|_)(ts|time|timestamp|unixtime|date|datetime|at)$|time$|timestamp$", re.IGNORECASE)


@dataclass(frozen=True)
class ColumnSummary:
    """Summary of a column."""

    name: str
    kind: str  # "number", "integer", "bool", "time", "text", "list", "vector", "map" or "empty"
    rows: int  # number of rows examined
    missing: int = 0
    distinct: int = 0  # number of distinct values; for lists, of distinct elements
    values: Mapping[str, int] = field(default_factory=dict, repr=False)  # counts by value or list element, as text
    minimum: float = 0.0  # lowest number, time in epoch seconds, or list length
    maximum: float = 0.0  # highest number, time in epoch seconds, or list length
    median: float = 0.0
    mean: float = 0.0
    deviation: float = 1.0
    width: float = 0.0  # length of a vector; mean number of words of texts; mean length of lists
    separator: str | None = None  # separator of a list written as text, or None
    whole: bool = False  # whether the elements of a list are integers that an int64 holds
    unit: str | None = None  # unit of times given as numbers
    day_first: bool | None = None  # order in dates such as 03/02/2024; None if they are unambiguous
    problem: str | None = None  # why apparent numbers or dates cannot be read, and the remedy

    @property
    def missing_share(self) -> float:
        """Share of missing rows."""
        return self.missing / max(1, self.rows)

    @property
    def is_binary(self) -> bool:
        """Whether the values are 0 and 1, or false and true."""
        return self.kind == "bool" or (
            self.kind in ("number", "integer") and self.distinct == 2 and (self.minimum, self.maximum) == (0, 1)
        )

    @property
    def fits_int64(self) -> bool:
        """Whether an int64 holds all numbers."""
        return self.minimum > -(2.0**63) and self.maximum < 2.0**63

    def describe(self) -> str:
        """Return the summary in a few words."""
        words = [f"{self.missing_share:.1%} missing"] if self.missing else []
        if self.kind in ("number", "integer"):
            words += [f"{self.minimum:g} to {self.maximum:g}", f"{self.distinct:,} distinct"]
        elif self.kind == "time":
            first, last = (
                datetime.datetime.fromtimestamp(t, datetime.timezone.utc) for t in (self.minimum, self.maximum)
            )
            words.append(f"{first:%Y-%m-%d} to {last:%Y-%m-%d}")
        elif self.kind == "list":
            words += [f"{self.minimum:.0f} to {self.maximum:.0f} values of {self.distinct:,}"]
        elif self.kind == "vector":
            words += [f"{self.width:.0f} numbers"]
        else:
            words += [f"{self.distinct:,} distinct"]
            words += filter(None, [words_among_numbers(self.values)])
        return ", ".join(words)


def summary_of(name: str, values: Sequence[Any], csv_format: CsvFormat, day_first: bool | None) -> ColumnSummary:
    """Summarize the values of a column.

    Args:
        csv_format: how numbers are written.
        day_first: whether dates such as 03/02/2024 start with the day; None: detected from the column.
    """
    present = [value for value in values if not (is_missing(value) or value == "")]
    rows, missing = len(values), len(values) - len(present)
    if not present:
        return ColumnSummary(name, "empty", rows, missing)
    facts = _numbers(name, present, csv_format) or _times(present, day_first) or _lists(present)
    if facts is None:
        texts = [_text(value) for value in present]  # the same text as in a learned vocabulary
        problem = problem_of(present, csv_format)
        facts = _texts(texts) if problem is None else {"kind": "text", **_value_counts(texts), "problem": problem}
    return ColumnSummary(name, rows=rows, missing=missing, **facts)


def _text(value: Any) -> str:
    try:
        return as_text(value)
    except MisfitError:
        return str(value)


def _value_counts(texts: Iterable[str]) -> dict[str, Any]:
    counts = Counter(texts)
    return {"distinct": len(counts), "values": counts}


def _numbers(name: str, present: list[Any], csv_format: CsvFormat) -> dict[str, Any] | None:
    if all(isinstance(value, bool) or (isinstance(value, str) and value.lower() in _BOOLS) for value in present):
        return {"kind": "bool", **_value_counts(str(value).lower() for value in present), "maximum": 1.0}
    try:
        present = [_number(value, csv_format) for value in present]
        if not all(map(_is_plain_number, present)):
            return None
        numbers = np.array([float(value) for value in present])
    except (MisfitError, ValueError, OverflowError):
        return None
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return None
    stats = {"minimum": float(finite.min()), "maximum": float(finite.max()), "median": float(np.median(finite))}
    stats |= {"mean": float(finite.mean()), "deviation": float(finite.std()) or 1.0}
    if _TIME_NAME.search(name):
        for unit, per_second in UNITS.items():
            seconds = {name: stats[name] / per_second for name in ("minimum", "maximum")}
            if _SECONDS[0] <= seconds["minimum"] and seconds["maximum"] <= _SECONDS[1]:
                return {"kind": "time", **seconds, "distinct": len(np.unique(finite)), "unit": unit}
        if (dates := _packed_dates(finite)) is not None:
            return {"kind": "time", **dates, "distinct": len(np.unique(finite)), "unit": DATE_UNIT}
    is_whole = bool((finite == np.floor(finite)).all()) and all("." not in str(value) for value in present[:1000])
    texts = (str(value) for value in present) if is_whole else map(repr, finite.tolist())
    return {"kind": "integer" if is_whole else "number", **_value_counts(texts), **stats}


_BOOLS = ("true", "false")
_DAY_MONTH = re.compile(r"\s*\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")
_LEADING_ZERO = re.compile(r"\s*[+-]?0[0-9]")
_NUMBER = re.compile(r"\s*([+-]?\d{1,7}|[+-]\d+|\d{9,}|[+-]?\d*\.\d+)\s*")  # numbers; 8 digits may be a date


def _number(value: Any, csv_format: CsvFormat) -> Any:
    """Convert text to Python's notation of numbers; return other values unchanged."""
    if not isinstance(value, str):
        return value
    return in_plain_notation(value, csv_format.decimal, csv_format.thousands)


def _is_plain_number(value: Any) -> bool:
    if isinstance(value, str):
        is_code = _LEADING_ZERO.match(value) is not None  # "0301" may be a post code, which is not the number 301
        return value.isascii() and "_" not in value and not value.strip()[:1].isalpha() and not is_code
    return isinstance(value, int | float) or type(value).__name__ == "Decimal"


def _packed_dates(numbers: np.ndarray) -> dict[str, float] | None:
    """Return the range of dates written as 20240203, or None for other numbers."""
    try:
        seconds = [seconds_of_number(number, DATE_UNIT) for number in np.unique(numbers).tolist()]
    except UnclearTimeError:
        return None
    return {"minimum": min(seconds), "maximum": max(seconds)}


def _times(present: list[Any], day_first: bool | None) -> dict[str, Any] | None:
    """Summarize a column of times; return None if it holds other values.

    If only one order of day and month gives a valid date in every row, that order is used.
    """
    texts = [value.isoformat() if isinstance(value, datetime.date) else value for value in present]
    if not all(isinstance(text, str) and not _NUMBER.fullmatch(text) for text in texts):
        return None
    if not any(map(_DAY_MONTH.match, texts)):
        by_order: dict[bool | None, list[float] | str | None] = {None: _seconds(texts, None)}
    else:
        by_order = {order: _seconds(texts, order) for order in (True, False) if day_first in (None, order)}
    fitting = {order: seconds for order, seconds in by_order.items() if isinstance(seconds, list)}
    unclear = None if len(fitting) == 1 else _seconds(texts, None)
    if len(fitting) == 1 or isinstance(unclear, list):
        order, seconds = next(iter(fitting.items())) if unclear is None else (None, unclear)
        stats = {"minimum": min(seconds), "maximum": max(seconds), "distinct": len(set(seconds))}
        return {"kind": "time", **stats, "day_first": order}
    if unclear is None:
        return None
    remedy = "give --day-first or --month-first" if fitting else "other rows have another order; write one in all"
    return {"kind": "text", **_value_counts(texts), "problem": f"{unclear}; {remedy}"}


def _seconds(texts: list[str], day_first: bool | None) -> list[float] | str | None:
    """Return epoch seconds, a message about an ambiguous text, or None if not times."""
    seconds, unclear = [], None
    for text in texts:
        try:
            value = seconds_of(text, None, day_first)
        except UnclearTimeError as error:
            readings = str(error).partition(": ")[0].removeprefix("a date that is ")
            value, unclear = 0.0, unclear or f"{text.strip()} is {readings}"
        if value is None:
            return None
        seconds.append(value)
    return unclear or seconds


def _lists(present: list[Any]) -> dict[str, Any] | None:
    if all(isinstance(value, dict) for value in present):
        return {"kind": "map", "distinct": len({key for value in present for key in value})}
    if not all(isinstance(value, list | tuple) for value in present):
        return None
    if any(isinstance(part, list | tuple | dict) for value in present for part in value):
        return {"kind": "map"}
    parts = [part for value in present for part in value if part is not None]
    lengths = [len(value) for value in present]
    numbers = bool(parts) and all(isinstance(part, int | float) and not isinstance(part, bool) for part in parts)
    is_whole = numbers and all(isinstance(part, int) for part in parts)
    fits = all(abs(part) < 2**63 for part in parts) if is_whole else False
    if numbers and not is_whole and len(set(lengths)) == 1:
        return {"kind": "vector", "width": float(lengths[0])}
    facts = _list_statistics([[_text(part) for part in value] for value in present])
    return {"kind": "list", **facts, "whole": fits}


def _list_statistics(lists: list[list[str]]) -> dict[str, Any]:
    lengths = [len(parts) for parts in lists]
    stats = {"minimum": float(min(lengths)), "maximum": float(max(lengths)), "width": float(np.mean(lengths))}
    return {**_value_counts(part for parts in lists for part in parts), **stats}


def _is_whole(text: str) -> bool:
    """Return whether a list element is an int64, and no code such as "0301"."""
    is_digits = text.isascii() and text.removeprefix("-").isdigit() and not _LEADING_ZERO.match(text)
    return is_digits and abs(int(text)) < 2**63


def _texts(texts: list[str]) -> dict[str, Any]:
    distinct = set(texts)
    for separator in _SEPARATORS:
        share = sum(separator in text for text in texts) / len(texts)
        split = {text: [part.strip() for part in text.split(separator) if part.strip()] for text in distinct}
        parts = {part for parts_of_text in split.values() for part in parts_of_text}
        if share >= 0.1 and len(parts) < len(distinct) and all(len(part) <= 40 for part in parts):
            facts = _list_statistics([split[text] for text in texts])
            return {"kind": "list", **facts, "separator": separator, "whole": all(map(_is_whole, parts))}
    words = float(np.mean([len(text.split()) for text in texts]))
    parts = {word for text in distinct for word in text.split()}
    if words < 3 and 3 * len(parts) < len(distinct):  # many combinations of few words, such as genres, are lists
        return {"kind": "list", **_list_statistics([text.split() for text in texts]), "separator": " "}
    return {"kind": "text", **_value_counts(texts), "width": words}
