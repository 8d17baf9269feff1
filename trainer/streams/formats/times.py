"""Converts times given as numbers or texts to seconds.

The unit of a number is declared, or recognised by its magnitude: times between 2001 and 2286 have 10 digits in seconds,
13 in milliseconds, 16 in microseconds and 19 in nanoseconds. Numbers whose unit is unclear are rejected, as are dates
whose day and month could be swapped. Each value is read independently, so a value is the same time in every row.
"""

from __future__ import annotations

import calendar
import datetime
import re
from typing import Any

import numpy as np

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # units per second
DATE_UNIT = "yyyymmdd"
TIME_UNITS = (*UNITS, DATE_UNIT)
_ARGUMENTS = "Time(unit=...), event_time_unit of Features or Schema, time_unit of Column"
# Range of a number for the years 2001 to 2286, by unit; integers, so that comparisons with large integers are exact.
_MAGNITUDES = {"ms": (10**12, 10**13), "us": (10**15, 10**16), "ns": (10**18, 10**19)}
_SECONDS_END = 10**10
_DATES = (19_000_101, 21_991_231)  # first and last eight-digit date that is recognised
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)
_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if number}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_TIME = re.compile(
    r"(?:(?P<year>\d{4})(?P<s1>[-/.])(?P<month>\d{1,2})(?P=s1)(?P<day>\d{1,2})"
    r"|(?P<first>\d{1,2})(?P<s2>[-/.])(?P<second>\d{1,2})(?P=s2)(?P<year2>\d{4})"
    r"|(?P<day3>\d{1,2})[ .-]+(?P<name3>[A-Za-z]{3,9})[ .,-]+(?P<year3>\d{4})"
    r"|(?P<name4>[A-Za-z]{3,9})\.? (?P<day4>\d{1,2}),? (?P<year4>\d{4})"
    r"|(?P<packed>\d{8})(?=T))"
    r"(?:(?:[T ]|, ?)(?P<hour>\d{1,2})(?::?(?P<minute>\d\d)(?::?(?P<sec>\d\d)(?:[.,](?P<fraction>\d+))?)?)?"
    r"(?: ?(?P<half>[AaPp][Mm]))?(?: ?(?P<zone>[Zz]|UTC|GMT|[+-]\d\d(?::?\d\d)?))?)?"
)


class UnclearTimeError(ValueError):
    """A value is ambiguous as a time; the message says what to declare."""


def seconds_of(text: str, unit: str | None = None, day_first: bool | None = None) -> float | None:
    """Convert a text to seconds since the epoch; None if it is not a time.

    Features, schemas, event times and `trainer init` all read times with this function.

    Args:
        text: an ISO 8601 time or a similar form ("2024-02-03T17:18:00.5+02:00", "2024/2/3", "3 Feb 2024 5:18 PM",
            "03.02.2024 17:18"), an eight-digit date ("20240203"), or a number as for `seconds_of_number`. Without a
            time zone it is UTC; digits below a microsecond are dropped.
        unit: unit of numbers, one of `TIME_UNITS`; None to recognise it.
        day_first: whether the day comes before the month, so that "03/02/2024" is the third of February. If None, such
            a date is rejected unless day and month are equal or one of them is above 12.

    Raises:
        UnclearTimeError: the text could be several times.
    """
    text = text.strip()
    if _NUMBER.fullmatch(text):
        if unit is None and len(text) in (8, 14) and text.isdigit() and _DATES[0] <= int(text[:8]) <= _DATES[1]:
            return _seconds_of_digits(text)
        return seconds_of_number(int(text) if text.lstrip("+-").isdigit() else float(text), unit)
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    try:
        day = _date_of(match, day_first)
        return None if day is None else _seconds(day, match)
    except (ValueError, OverflowError) as error:
        if isinstance(error, UnclearTimeError):
            raise
        return None


def seconds_of_number(value: int | float, unit: str | None = None) -> float:
    """Convert a number in `unit` to seconds since the epoch.

    If `unit` is None, it is recognised by the magnitude of the number.

    Raises:
        UnclearTimeError: the unit cannot be recognised, or the digits are not a date.
    """
    if value != value or value in (float("inf"), -float("inf")):
        return float(value)
    unit = _recognise_unit(value) if unit is None else unit
    if unit == DATE_UNIT:
        return _seconds_of_digits(str(int(value)) if value == int(value) else str(value))
    if unit == "ns":
        return int(value // 1000) / 1e6
    return float(value) if unit == "s" else float(value) / UNITS[unit]


def seconds_of_array(values: np.ndarray, unit: str | None = None) -> np.ndarray | None:
    """Convert numbers or datetime64 [n] to seconds, float64 [n]; None if unclear.

    The results equal those of `seconds_of_number` for each value. NaN and NaT become NaN.
    """
    if values.dtype.kind == "M":
        seconds = values.astype("datetime64[us]").astype(np.int64) / 1e6
        return np.where(np.isnat(values), np.nan, seconds)
    if unit == DATE_UNIT:
        return None
    if unit is None:
        numbers = values.astype(np.int64 if values.dtype.kind in "bi" else values.dtype)
        magnitude = np.abs(numbers) if numbers.dtype.kind in "fu" else np.abs(numbers).astype(np.uint64)  # fits 2**63
        if ((magnitude >= _DATES[0]) & (magnitude <= _DATES[1])).any():
            return None
        unclear = magnitude >= _SECONDS_END
        if not unclear.any():
            return values.astype(np.float64)
        seconds = values.astype(np.float64)
        for name, (low, high) in _MAGNITUDES.items():
            in_unit = (magnitude >= low) & (magnitude < high)
            unclear &= ~in_unit
            if in_unit.any():
                converted = seconds_of_array(values[in_unit], name)
                assert converted is not None
                seconds[in_unit] = converted
        return None if (unclear & np.isfinite(magnitude)).any() else seconds
    if unit == "ns":
        return np.floor_divide(values, 1000) / 1e6
    return values.astype(np.float64) / UNITS[unit]


def datetimes(seconds: np.ndarray) -> np.ndarray:
    """Convert seconds since the epoch to datetime64[us]; NaN becomes NaT."""
    known = np.isfinite(seconds)
    times = np.round(np.where(known, seconds, 0) * 1e6).astype(np.int64).astype("datetime64[us]")
    times[~known] = "NaT"
    return times


def text_of(value: Any) -> str:
    """Format a time as the text of a category: ISO 8601, UTC, without trailing zeros."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
        text = value.isoformat()
        return text.rstrip("0") if "." in text else text
    return value.isoformat()


def seconds_of_datetime(value: datetime.datetime | datetime.date) -> float:
    """Convert a datetime or date to seconds since the epoch; UTC if it has no zone."""
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if value.tzinfo is None:
        value = value.replace(tzinfo=datetime.timezone.utc)
    return (value - _EPOCH) // _MICROSECOND / 1e6


def _recognise_unit(value: int | float) -> str:
    size = abs(value)
    if _DATES[0] <= size <= _DATES[1]:
        raise UnclearTimeError(
            f"a number that is a date, or seconds in 1970: declare {DATE_UNIT!r} or 's' as its unit, {_ARGUMENTS}"
        )
    if size < _SECONDS_END:
        return "s"
    for unit, (low, high) in _MAGNITUDES.items():
        if low <= size < high:
            return unit
    raise UnclearTimeError(
        f"a number whose unit is unclear: declare one of {', '.join(map(repr, TIME_UNITS))} as its unit, {_ARGUMENTS}"
    )


def _seconds_of_digits(digits: str) -> float:
    try:
        time = datetime.datetime.strptime(digits, {8: "%Y%m%d", 14: "%Y%m%d%H%M%S"}.get(len(digits), ""))
    except ValueError:
        raise UnclearTimeError("digits that are not a date: declare the unit of such numbers") from None
    return seconds_of_datetime(time)


def _date_of(match: re.Match[str], day_first: bool | None) -> datetime.date | None:
    groups = match.groupdict()
    if groups["packed"]:
        return datetime.datetime.strptime(groups["packed"], "%Y%m%d").date()
    if groups["year"]:
        return datetime.date(int(groups["year"]), int(groups["month"]), int(groups["day"]))
    if groups["year2"]:
        first, second, year = int(groups["first"]), int(groups["second"]), int(groups["year2"])
        if day_first is None and (first > 12 or second > 12 or first == second):
            day_first = first > 12
        elif day_first is None:
            readings = datetime.date(year, second, first), datetime.date(year, first, second)
            raise UnclearTimeError(f"a date that is {readings[0]} or {readings[1]}: declare day_first=True or False")
        return datetime.date(year, second, first) if day_first else datetime.date(year, first, second)
    suffix = "3" if groups["year3"] else "4"
    month = _MONTHS.get(groups["name" + suffix][:3].lower())
    return None if month is None else datetime.date(int(groups["year" + suffix]), month, int(groups["day" + suffix]))


def _seconds(day: datetime.date, match: re.Match[str]) -> float:
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "sec"))
    if match["half"]:
        if not 1 <= hour <= 12:
            raise ValueError("no such hour")
        hour = hour % 12 + 12 * (match["half"].lower() == "pm")
    microsecond = int((match["fraction"] or "0")[:6].ljust(6, "0"))
    time = datetime.datetime(day.year, day.month, day.day, hour, minute, second, microsecond)
    zone = match["zone"] or ""
    offset = 0
    if zone[:1] in ("+", "-"):
        offset = int(zone[1:3]) * 60 + int(zone[-2:] if len(zone) > 3 else 0)
        offset = -offset if zone[0] == "-" else offset
    return seconds_of_datetime(time - datetime.timedelta(minutes=offset))
