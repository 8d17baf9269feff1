"""Summarize the columns of a table from its first rows."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigurationError, DataError, StreamError
from ...streams.formats.coercion import is_missing, without_words
from ...streams.formats.csv_format import CsvFormat
from ...streams.formats.csv_header import names_of_file
from ...streams.formats.csv_sniffing import sniff
from ...streams.formats.number_signs import with_signs, words_for_missing
from ...streams.formats.schema import Schema
from ...streams.sources.files import FileStream
from ...streams.sources.folder_segments import kind_of
from .column_summary import ColumnSummary, summary_of

if TYPE_CHECKING:
    from ...features.raw_rows import BadRowCounter

SAMPLE_ROWS = 100_000


@dataclass(frozen=True)
class TableSummary:
    """Summary of a table."""

    path: Path
    columns: tuple[ColumnSummary, ...]
    rows: int  # rows in the whole table; an estimate if `complete` is False
    complete: bool  # whether all rows were examined
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict, repr=False)  # examined values by column
    csv: CsvFormat | None = None  # CSV format; for other files, None or a format with only `missing`
    set_aside: str | None = None  # report on CSV lines that are not rows, or None
    set_aside_share: float = 0.0  # share of these lines

    def determines(self, key: str, name: str) -> bool:
        """Return whether each value of `key` occurs with only one value of `name`.

        False if there are at most two rows per key on average, because that is too little evidence.
        """
        pairs = {
            (str(key_value), str(value))
            for key_value, value in zip(self.values[key], self.values[name], strict=True)
            if not (is_missing(key_value) or is_missing(value) or value == "")
        }
        keys = len({key_value for key_value, _ in pairs})
        return keys == len(pairs) and 2 * keys < len(self.values[key])

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.columns]

    def column(self, name: str) -> ColumnSummary:
        """Return the summary of a column."""
        return self.columns[self.names.index(name)]


def summarize(
    path: Path,
    sample: int = SAMPLE_ROWS,
    given: CsvFormat | None = None,  # known options of CSV files; the others are detected
    day_first: bool | None = None,
    declared: bool = False,  # whether `given` is complete, so that nothing is detected
) -> TableSummary:
    """Summarize the table `path` from its first `sample` rows.

    The table is a CSV, TSV, JSON-lines or Parquet file, or a folder of such files. Only the first file of a folder is
    read.

    Raises:
        ConfigurationError: `path` does not exist, or holds no such file.
        DataError: the file cannot be read, or has no rows.
    """
    files = _files(path)
    first = files[0]
    csv_format, set_aside, set_aside_share = None, None, 0.0
    try:
        if kind_of(first.name, None) == "csv":
            csv_format = CsvFormat.of(given) if declared else sniff(first, given)
            columns, complete, share, bad_rows = _read_csv(first, sample, csv_format)
            set_aside, set_aside_share = bad_rows.report(), bad_rows.bad / max(1, bad_rows.good + bad_rows.bad)
            columns = {name: without_words(values, csv_format.missing) for name, values in columns.items()}
            if not declared:
                words = (*csv_format.missing, *words_for_missing(columns))
                csv_format = replace(csv_format, missing=words)
        else:
            read = _read_parquet if kind_of(first.name, None) == "parquet" else _read_json
            columns, complete, share = read(first, sample)
            csv_format = CsvFormat(missing=given.missing) if given is not None and given.missing else None
        if csv_format is not None and csv_format.missing:
            columns = {name: without_words(values, csv_format.missing) for name, values in columns.items()}
        if csv_format is not None and not declared:
            csv_format = with_signs(csv_format, columns)
    except (OSError, ValueError, StreamError, csv.Error) as error:
        raise DataError(f"{first} cannot be read: {error}") from error
    rows = max(map(len, columns.values()), default=0)
    if not rows:
        raise DataError(f"{first} has no rows" if set_aside is None else f"{first} has no good rows: {set_aside}")
    size_ratio = sum(file.stat().st_size for file in files) / max(1, first.stat().st_size)
    summaries = tuple(
        summary_of(name, values, csv_format or CsvFormat(), day_first) for name, values in columns.items()
    )
    is_complete = complete and len(files) == 1
    total = round(rows / share * size_ratio)
    return TableSummary(path, summaries, total, is_complete, columns, csv_format, set_aside, set_aside_share)


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ConfigurationError(f"{path}: no such file or folder")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in files if kind_of(file.name, None) and not file.name.startswith((".", "_"))]
    if not files:
        raise ConfigurationError(f"{path}: accepts a CSV, TSV, JSON-lines or Parquet file, or a folder of them")
    return files


def _read_csv(
    path: Path, sample: int, csv_format: CsvFormat
) -> tuple[dict[str, list[Any]], bool, float, BadRowCounter]:
    """Read like `_read_json`, with text values; also return the counts of bad lines."""
    from ...features.raw_rows import BadRowCounter

    names = [name for name in names_of_file(path, csv_format) if name]
    if not names:
        raise ValueError("its first line has no names")
    _check_names(names)
    schema, bad_rows = Schema(dict.fromkeys(names, "str"), csv=csv_format), BadRowCounter()
    columns: dict[str, list[Any]] = {name: [] for name in names}
    rows = 0
    with contextlib.closing(FileStream(path, schema, end="at_last", dead_letter=bad_rows)) as stream:
        while rows < sample and not stream.exhausted:
            batch = stream.poll(sample - rows, 1.0)
            if batch is not None:
                rows += batch.rows
                for name, values in batch.columns.items():
                    columns[name] += values.tolist()
        unread = 0 if stream.exhausted else stream.lag() or 0
    return columns, not unread, rows / max(1, rows + unread), bad_rows


def _read_json(path: Path, sample: int) -> tuple[dict[str, list[Any]], bool, float]:
    """Return (columns of the first rows, whether the file ends there, share read)."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = iter(file.readline, "")
        records = [json.loads(line) for line in itertools.islice(lines, sample) if line.strip()]
        if not all(isinstance(record, dict) for record in records):
            raise ValueError("a line is not a JSON object")
        names = list(dict.fromkeys(name for record in records for name in record))
        columns = {name: [record.get(name) for record in records] for name in names}
        read, file_size = file.tell(), path.stat().st_size
    return columns, read >= file_size, read / max(1, file_size)


def _check_names(names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"column {name!r} occurs {count} times; give every column its own name")


def _read_parquet(path: Path, sample: int) -> tuple[dict[str, list[Any]], bool, float]:
    """Read a Parquet file like `_read_json`."""
    from ...streams.formats.arrow import open_parquet

    parquet = open_parquet(path)
    columns: dict[str, list[Any]] = {}
    rows = 0
    for part in parquet.iter_batches(min(sample, 1 << 16)):
        _check_names(part.schema.names)
        part = part.slice(0, sample - rows)
        for name, column in zip(part.schema.names, part.columns, strict=True):
            columns.setdefault(name, []).extend(column.to_pylist())
        rows += part.num_rows
        if rows >= sample:
            break
    total = parquet.metadata.num_rows
    return columns, rows == total, rows / max(1, total)
