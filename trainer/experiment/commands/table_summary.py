"""Summarizes a table's columns from its first rows: type, distinct values, range."""

from __future__ import annotations

import csv
import datetime
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigurationError, DataError
from ...streams.formats.coercion import MisfitError, as_text, is_missing
from ...streams.formats.times import UnclearTimeError, seconds_of
from ...streams.sources.folder_segments import kind_of

SAMPLE_ROWS = 100_000
_SEPARATORS = ("|", ";", ",")
_SECONDS = (3e8, 5e9)  # 1979 to 2128
_TIME_NAME = re.compile(r"(^|_)(ts|time|timestamp|unixtime|date|datetime|at)$|time$|timestamp$", re.IGNORECASE)


@dataclass(frozen=True)
class ColumnSummary:
    """Summary of a column."""

    name: str
    kind: str  # "number", "integer", "bool", "time", "milliseconds", "text", "list", "vector", "map" or "empty"
    rows: int  # that were examined
    missing: int = 0
    distinct: int = 0  # values; for lists, elements
    values: Mapping[str, int] = field(default_factory=dict, repr=False)  # counts of values, or list elements, as text
    minimum: float = 0.0  # and maximum: of numbers, of times in seconds, or of list lengths
    maximum: float = 0.0
    median: float = 0.0
    mean: float = 0.0
    deviation: float = 1.0
    width: float = 0.0  # length of a vector; for text, the mean number of words; for lists, the mean length
    separator: str | None = None  # separator of a list written as text, or None
    whole: bool = False  # whether the elements of a list are integers

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

    def describe(self) -> str:
        """Return the summary in a few words."""
        words = [f"{self.missing_share:.1%} missing"] if self.missing else []
        if self.kind in ("number", "integer"):
            words += [f"{self.minimum:g} to {self.maximum:g}", f"{self.distinct:,} distinct"]
        elif self.kind == "time":
            ends = (datetime.datetime.fromtimestamp(end, datetime.timezone.utc) for end in (self.minimum, self.maximum))
            words.append(" to ".join(f"{end:%Y-%m-%d}" for end in ends))
        elif self.kind == "list":
            words += [f"{self.minimum:.0f} to {self.maximum:.0f} values of {self.distinct:,}"]
        elif self.kind == "vector":
            words += [f"{self.width:.0f} numbers"]
        else:
            words += [f"{self.distinct:,} distinct"]
        return ", ".join(words)


@dataclass(frozen=True)
class TableSummary:
    """Summary of a table."""

    path: Path
    columns: tuple[ColumnSummary, ...]
    rows: int  # rows in the whole table; an estimate if `complete` is False
    complete: bool  # whether all rows were examined
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict, repr=False)  # of the rows examined

    def determines(self, key: str, name: str) -> bool:
        """Return whether each value of `key` has one value of `name` only."""
        pairs = {
            (str(of), str(value))
            for of, value in zip(self.values[key], self.values[name], strict=True)
            if not (is_missing(of) or is_missing(value) or value == "")
        }
        keys = len({of for of, _ in pairs})
        return keys == len(pairs) and 2 * keys < len(self.values[key])

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.columns]

    def column(self, name: str) -> ColumnSummary:
        """Return the summary of a column."""
        return self.columns[self.names.index(name)]


def summarize(path: Path, sample: int = SAMPLE_ROWS) -> TableSummary:
    """Summarize the table `path` from its first `sample` rows.

    It is a CSV, TSV, JSON-lines, Parquet or Arrow file, or a folder of them, of which only the first file is read.
    """
    files = _files(path)
    first = files[0]
    read = _read_arrow if kind_of(first.name, None) == "table" else _read_text
    try:
        columns, complete, share = read(first, sample)
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{first} cannot be read: {error}") from error
    rows = max(map(len, columns.values()), default=0)
    if not rows:
        raise DataError(f"{first} has no rows")
    size = sum(file.stat().st_size for file in files) / max(1, first.stat().st_size)
    summaries = tuple(_summary(name, values) for name, values in columns.items())
    return TableSummary(path, summaries, round(rows / share * size), complete and len(files) == 1, columns)


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ConfigurationError(f"{path}: no such file or folder")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in files if kind_of(file.name, None) and not file.name.startswith((".", "_"))]
    if not files:
        raise ConfigurationError(f"{path}: accepts a CSV, TSV, JSON-lines, Parquet or Arrow file, or a folder of them")
    return files


def _read_text(path: Path, sample: int) -> tuple[dict[str, list[Any]], bool, float]:
    """Return (first rows' columns; whether these are all; their share of the file)."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = iter(file.readline, "")
        if kind_of(path.name, None) == "csv":
            reader = csv.reader(lines, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            names = next(reader, [])
            _check_names(names)
            rows = [row for row in itertools.islice(reader, sample) if len(row) == len(names)]
            columns = {name: [row[index] for row in rows] for index, name in enumerate(names)}
        else:
            records = [json.loads(line) for line in itertools.islice(lines, sample) if line.strip()]
            if not all(isinstance(record, dict) for record in records):
                raise ValueError("a line is no JSON object")
            names = list(dict.fromkeys(name for record in records for name in record))
            columns = {name: [record.get(name) for record in records] for name in names}
        read, size = file.tell(), path.stat().st_size
    return columns, read >= size, read / max(1, size)


def _check_names(names: Sequence[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"column {name!r} is there {times} times; give every column a name of its own")


def _read_arrow(path: Path, sample: int) -> tuple[dict[str, list[Any]], bool, float]:
    """Return what `_read_text` does, for a Parquet or Arrow file."""
    from ...streams.formats import arrow

    pyarrow = arrow.require()
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"PAR1":
        parquet = arrow.open_parquet(path)
        parts, total = parquet.iter_batches(min(sample, 1 << 16)), parquet.metadata.num_rows
    else:
        opened = pyarrow.OSFile(str(path))
        reader = pyarrow.ipc.open_file(opened) if magic == b"ARRO" else pyarrow.ipc.open_stream(opened)
        parts, total = iter(reader.read_all().to_batches()), 0
    columns: dict[str, list[Any]] = {}
    rows = 0
    for part in parts:
        _check_names(part.schema.names)
        part = part.slice(0, sample - rows)
        for name, column in zip(part.schema.names, part.columns, strict=True):
            columns.setdefault(name, []).extend(column.to_pylist())
        rows += part.num_rows
        if rows >= sample:
            break
    total = max(total, rows)
    return columns, rows == total, rows / max(1, total)


def _summary(name: str, values: Sequence[Any]) -> ColumnSummary:
    present = [value for value in values if not (is_missing(value) or value == "")]
    rows, missing = len(values), len(values) - len(present)
    if not present:
        return ColumnSummary(name, "empty", rows, missing)
    for judge in (_numbers, _times, _lists):
        facts = judge(name, present)
        if facts is not None:
            return ColumnSummary(name, rows=rows, missing=missing, **facts)
    texts = [_text(value) for value in present]  # counted as the categories that are learned
    return ColumnSummary(name, rows=rows, missing=missing, **_texts(texts))


def _text(value: Any) -> str:
    try:
        return as_text(value)
    except MisfitError:
        return str(value)


def _counted(texts: Iterable[str]) -> dict[str, Any]:
    counts = Counter(texts)
    return {"distinct": len(counts), "values": counts}


def _numbers(name: str, present: list[Any]) -> dict[str, Any] | None:
    if all(isinstance(value, bool) or (isinstance(value, str) and value.lower() in _BOOLS) for value in present):
        return {"kind": "bool", **_counted(str(value).lower() for value in present), "maximum": 1.0}
    if not all(map(_is_plain_number, present)):
        return None
    try:
        numbers = np.array([float(value) for value in present])
    except (ValueError, OverflowError):
        return None
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return None
    ends = {"minimum": float(finite.min()), "maximum": float(finite.max()), "median": float(np.median(finite))}
    ends |= {"mean": float(finite.mean()), "deviation": float(finite.std()) or 1.0}
    if _TIME_NAME.search(name):
        for kind, unit in (("time", 1.0), ("milliseconds", 1e3)):
            if _SECONDS[0] <= ends["minimum"] / unit and ends["maximum"] / unit <= _SECONDS[1]:
                return {"kind": kind, **ends, "distinct": len(np.unique(finite))}
    whole = bool((finite == np.floor(finite)).all()) and all("." not in str(value) for value in present[:1000])
    texts = (str(value) for value in present) if whole else map(repr, finite.tolist())
    return {"kind": "integer" if whole else "number", **_counted(texts), **ends}


_BOOLS = ("true", "false")
_CODE = re.compile(r"\s*[+-]?0[0-9]")
_DIGITS = re.compile(r"\s*([+-]?\d{1,7}|[+-]\d+|\d{9,})\s*")  # eight are a date


def _is_plain_number(value: Any) -> bool:
    if isinstance(value, str):
        is_code = _CODE.match(value) is not None  # "0301" is another post code than "301"
        return value.isascii() and "_" not in value and not value.strip()[:1].isalpha() and not is_code
    return isinstance(value, int | float) or type(value).__name__ == "Decimal"


def _times(name: str, present: list[Any]) -> dict[str, Any] | None:
    texts = (value.isoformat() if isinstance(value, datetime.date) else value for value in present)
    try:
        seconds = [
            seconds_of(text) if isinstance(text, str) and not _DIGITS.fullmatch(text) else None for text in texts
        ]
    except UnclearTimeError:
        return None
    if None in seconds:
        return None
    return {"kind": "time", "minimum": min(seconds), "maximum": max(seconds), "distinct": len(set(seconds))}


def _lists(name: str, present: list[Any]) -> dict[str, Any] | None:
    if all(isinstance(value, dict) for value in present):
        return {"kind": "map", "distinct": len({key for value in present for key in value})}
    if not all(isinstance(value, list | tuple) for value in present):
        return None
    if any(isinstance(part, list | tuple | dict) for value in present for part in value):
        return {"kind": "map"}
    parts = [part for value in present for part in value if part is not None]
    lengths = [len(value) for value in present]
    numbers = bool(parts) and all(isinstance(part, int | float) and not isinstance(part, bool) for part in parts)
    whole = numbers and all(isinstance(part, int) for part in parts)
    if numbers and not whole and len(set(lengths)) == 1:
        return {"kind": "vector", "width": float(lengths[0])}
    facts = _list_facts([[_text(part) for part in value] for value in present])
    return {"kind": "list", **facts, "whole": whole}


def _list_facts(lists: list[list[str]]) -> dict[str, Any]:
    lengths = [len(parts) for parts in lists]
    ends = {"minimum": float(min(lengths)), "maximum": float(max(lengths)), "width": float(np.mean(lengths))}
    return {**_counted(part for parts in lists for part in parts), **ends}


def _texts(texts: list[str]) -> dict[str, Any]:
    distinct = set(texts)
    for separator in _SEPARATORS:
        holding = sum(separator in text for text in texts) / len(texts)
        split = {text: [part.strip() for part in text.split(separator) if part.strip()] for text in distinct}
        parts = {part for own in split.values() for part in own}
        if holding >= 0.1 and len(parts) < len(distinct) and all(len(part) <= 40 for part in parts):
            facts = _list_facts([split[text] for text in texts])
            whole = all(part.removeprefix("-").isdigit() for part in parts)
            return {"kind": "list", **facts, "separator": separator, "whole": whole}
    words = float(np.mean([len(text.split()) for text in texts]))
    parts = {word for text in distinct for word in text.split()}
    if words < 3 and 3 * len(parts) < len(distinct):  # few words in many combinations, such as genres
        return {"kind": "list", **_list_facts([text.split() for text in texts]), "separator": " "}
    return {"kind": "text", **_counted(texts), "width": words}
