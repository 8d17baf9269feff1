"""Detects the decimal and thousands separators of numbers in a table's columns."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .csv_format import CsvFormat

_MAX_EXAMINED = 10_000  # number of values of a column that are examined
# Forms of a number, by the separators they contain.
_FORMS = {
    "whole": re.compile(r"[+-]?\d+([eE][+-]?\d+)?"),
    "unclear": re.compile(r"[+-]?[1-9]\d{0,2},\d{3}"),  # 1,234: thousands, or a decimal comma
    "comma": re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?"),
    "three": re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}"),  # 1.234: a decimal point, or thousands if commas are decimal
    "point": re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?"),
    "comma thousands": re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3}){2,}|[+-]?[1-9]\d{0,2}(,\d{3})+\.\d*"),
    "point thousands": re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3}){2,}|[+-]?[1-9]\d{0,2}(\.\d{3})+,\d*"),
    "space thousands": re.compile(r"[+-]?[1-9]\d{0,2}([ \xa0\u202f]\d{3})+(\.\d*)?"),
    "space thousands comma": re.compile(r"[+-]?[1-9]\d{0,2}([ \xa0\u202f]\d{3})+,\d*"),
    "quote thousands": re.compile(r"[+-]?[1-9]\d{0,2}('\d{3})+(\.\d*)?"),
    "quote thousands comma": re.compile(r"[+-]?[1-9]\d{0,2}('\d{3})+,\d*"),
}
_MISSING = ("?", "-", "--", ".", "na", "n/a", "#n/a", "nan", "nil", "none", "null", "missing", "unknown")
_FEW_WORDS = 3
_FEW_NUMBERS = 20  # a column of at most this many different numbers may be categorical, and its words categories
_THOUSANDS = {"comma": ",", "point": ".", "space": " ", "quote": "'"}
_SIGN = "([€$£¥₽₹%]|EUR|USD|GBP|CHF|CNY|RMB)"
_UNIT = re.compile(rf"(?:{_SIGN}\s?)?[+-]?\d[\d.,' \xa0\u202f]*(?:{_SIGN})?")


def with_signs(csv_format: CsvFormat, columns: Mapping[str, Sequence[Any]]) -> CsvFormat:
    """Return the format with the separators that the columns of numbers use.

    The format is returned unchanged if the columns use different separators or if separators are declared.
    """
    if (csv_format.decimal, csv_format.thousands) != (".", None):
        return csv_format
    forms: set[str] = set()
    for values in columns.values():
        forms |= _forms(values) or set()
    signs = {_THOUSANDS[form.split()[0]] for form in forms if "thousands" in form}
    comma = "." in signs or any(form.endswith("comma") for form in forms)
    if len(signs) > 1 or (comma and ({"point"} & forms or "," in signs)):
        return csv_format
    return replace(csv_format, decimal="," if comma else ".", thousands=signs.pop() if signs else None)


def problem_of(values: Sequence[Any], csv_format: CsvFormat) -> str | None:
    """Return why a column of numbers cannot be read in this format, or None."""
    forms = _forms(values)
    if forms is None:
        matches = {_UNIT.fullmatch(value.strip()) for value in _texts(values)}
        symbols = {"".join(filter(None, match.groups())) if match else "" for match in matches}
        unit = symbols.pop() if len(symbols) == 1 else ""
        if words := missing_words(values):
            shown_words = ", ".join(f"{text!r} in {count:,} rows" for text, count in words.items())
            remedy = f"leave these cells empty, or pass {_options(words)}"
            return f"numbers, but {shown_words}, which seem to be missing values; {remedy}"
        return f"numbers with {unit!r} behind or before them; write the numbers alone" if unit else None
    shown = {form: next(v for v in _texts(values) if _form(v.strip()) == form) for form in forms}
    if "unclear" in forms and (csv_format.decimal, csv_format.thousands) == (".", None):
        value = shown["unclear"]
        plain = value.replace(",", "")
        return f"{value} is {plain} or {value.replace(',', '.')}; give --decimal , or --thousands ,"
    if "three" in forms and csv_format.decimal == "," and csv_format.thousands is None:
        value = shown["three"]
        return f"{value} is {value.replace('.', '')} or {value}; give --thousands . or --decimal ."
    wrong = "comma" if csv_format.decimal == "." else "point"
    if wrong in forms:
        return f"{shown[wrong]}: other numbers of the table have {csv_format.decimal!r} as decimal sign; write one sign"
    return None


def words_for_missing(columns: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """Return the words that stand for missing numbers in a table.

    A word that occurs in a column of other texts, such as "none" in "none, one, many", is a value and not returned.
    """
    words = dict.fromkeys(word for values in columns.values() for word in missing_words(values))
    for values in columns.values() if words else ():
        texts = {value.strip() for value in _texts(values)}
        if any(text.lower() not in _MISSING and _form(text) is None for text in texts):
            words = {word: None for word in words if word not in texts}
    return tuple(words)


def missing_words(values: Sequence[Any]) -> dict[str, int]:
    """Return the words for missing values in a column of numbers, with their counts.

    The result is empty if the column has other texts or few different numbers.
    """
    counts = Counter(value.strip() for value in _texts(values))
    words = {text: count for text, count in counts.items() if text.lower() in _MISSING}
    numbers = [text for text in counts if _form(text) is not None]
    if len(words) + len(numbers) < len(counts) or len(numbers) <= _FEW_NUMBERS:
        return {}
    return words


def words_among_numbers(counts: Mapping[str, int]) -> str:
    """Return a remark about a few words among many numbers, or "".

    `counts` maps the different texts of a column to their counts.
    """
    words = [text for text in counts if _form(text.strip()) is None]
    if not 0 < len(words) <= _FEW_WORDS or len(counts) - len(words) <= _FEW_NUMBERS:
        return ""
    return f"numbers except for {', '.join(map(repr, words))}; if that means a missing value, pass {_options(words)}"


def _options(words: Iterable[str]) -> str:
    return " ".join(f"--missing {shlex.quote(word)}" for word in words)


def _texts(values: Sequence[Any]) -> Iterable[str]:
    return (value for value in values[:_MAX_EXAMINED] if isinstance(value, str) and value.strip())


def _form(value: str) -> str | None:
    return next((form for form, pattern in _FORMS.items() if pattern.fullmatch(value)), None)


def _forms(values: Sequence[Any]) -> set[str] | None:
    """Return the forms of a column's numbers, or None if it has other texts.

    The result is empty if all numbers are whole.
    """
    forms: set[str] = set()
    for value in _texts(values):
        form = _form(value.strip())
        if form is None:
            return None
        forms.add(form)
    return forms - {"whole"} and forms
