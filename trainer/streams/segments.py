"""Readers of one segment file: text by byte offset, tables by row number.

A reader is asked for what follows an address and returns a `Piece`: the rows, the address they are counted from and the
address after them. The same address gives the same rows whatever was read before.
"""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import ConfigurationError, StreamError
from .decode import Bad, Decoded, Decoder
from .schema import MISSING, Converted, Schema

BLOCK_BYTES = 1 << 20
_TABLE_ROWS = 65_536


@dataclass(frozen=True)
class Piece:
    """Rows `decoded` (one message) counted from address `start`; reading goes on at address `end`."""

    decoded: Decoded
    start: int
    end: int


class Reader(Protocol):
    """Reads one segment."""

    def read(self, address: int, finished: bool) -> Piece | None:
        """Return what follows `address`, or None when nothing complete does; `finished`: the segment will not grow."""

    def size(self) -> int:
        """Return the segment's size in bytes now (text), or its rows (tables)."""

    def close(self) -> None:
        """Close the file."""


class TextReader:
    """Reads whole lines; an unfinished last line waits until its newline arrives or the segment is finished."""

    def __init__(self, path: Path, decoder: Decoder) -> None:
        self.path = path
        self.decoder = decoder
        self._file = path.open("rb")

    def read(self, address: int, finished: bool) -> Piece | None:
        """Return the lines of about one block from byte `address` on."""
        want = BLOCK_BYTES
        while True:
            self._file.seek(address)
            data = self._file.read(want)
            end = data.rfind(b"\n") + 1
            if end:
                break
            if len(data) < want:
                if not data or not finished:
                    return None
                end = len(data)
                break
            want *= 2
        return self._piece(data[:end], address)

    def _piece(self, data: bytes, address: int) -> Piece:
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        return Piece(self.decode(lines), address, address + len(data))

    def decode(self, lines: list[bytes]) -> Decoded:
        """Convert lines to rows of one message; an empty line is no row."""
        return self.decoder.decode([line for line in lines if line.strip()]).as_one_message()

    def size(self) -> int:
        """Return the file's size in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CsvReader(TextReader):
    """Reads CSV lines. Quoted fields must not contain line ends, so that every line stands for itself.

    Args:
        path: the segment.
        decoder: with the schema.
        names: names of the fields; None: the first line of each segment has them.
        delimiter: between fields.
        list_delimiter: between the values of a field that holds a list.
    """

    def __init__(
        self, path: Path, decoder: Decoder, names: list[str] | None, delimiter: str, list_delimiter: str
    ) -> None:
        super().__init__(path, decoder)
        self.schema: Schema = decoder.schema
        self.delimiter = delimiter
        self.list_delimiter = list_delimiter
        self._header_bytes = 0
        self._names = names
        self._read_header = names is None

    def read(self, address: int, finished: bool) -> Piece | None:
        """Return the rows of about one block from byte `address` on, the header skipped."""
        if self._read_header:
            self._file.seek(0)
            header = self._file.readline()
            if not header.endswith(b"\n") and not finished:
                return None
            self._header_bytes = len(header)
            text = header.decode("utf-8-sig").strip("\r\n")
            self._names = next(csv.reader([text], delimiter=self.delimiter), [])
            self._read_header = False
        return super().read(max(address, self._header_bytes), finished)

    def decode(self, lines: list[bytes]) -> Decoded:
        """Convert lines to rows of one message."""
        lines = [line for line in lines if line.strip()]
        try:
            converted = self._fast(lines)
        except (ValueError, OverflowError):
            converted = self._careful(lines)
        bad = [Bad(0, row, reason, lines[row]) for row, reason in sorted(converted.reasons.items())]
        return one_message(converted, len(lines), bad)

    def _fast(self, lines: list[bytes]) -> Converted:
        """Parse all lines at once; ValueError when anything about them is out of the ordinary."""
        fields = self.schema.fields
        if not lines or any(column.dtype.kind in "Ub" for column in fields.values()):
            raise ValueError
        if not all(name in self._names for name in fields):
            raise ValueError
        text = b"\n".join(lines)
        listed = any(column.shape for column in fields.values())
        if listed and self.list_delimiter != self.delimiter:
            text = text.replace(self.list_delimiter.encode(), self.delimiter.encode())
        kinds, places, place = [], [], 0
        for name in self._names:
            column = fields.get(name)
            width = 1 if column is None else int(np.prod(column.shape))
            if column is not None:
                kinds.append((name, np.int64 if column.dtype.kind in "iu" else np.float64, column.shape))
                places.extend(range(place, place + width))
            place += width
        if text.count(self.delimiter.encode()) != len(lines) * (place - 1) or b'"' in text:
            raise ValueError
        table = np.loadtxt(
            io.StringIO(text.decode("utf-8")), np.dtype(kinds), None, self.delimiter, usecols=places, ndmin=1
        )
        if len(table) != len(lines):
            raise ValueError
        return self.schema.convert({name: np.ascontiguousarray(table[name]) for name in table.dtype.names}, len(lines))

    def _careful(self, lines: list[bytes]) -> Converted:
        """Parse cell by cell, so that only the rows at fault are lost."""
        cells = [self._cells(line) for line in lines]
        values: dict[str, Any] = {}
        for name, column in self.schema.fields.items():
            if name not in self._names:
                continue
            place = self._names.index(name)
            taken = [row[place] if row is not None else MISSING for row in cells]
            if column.shape:
                taken = [cell.split(self.list_delimiter) if isinstance(cell, str) else cell for cell in taken]
            values[name] = taken
        converted = self.schema.convert(values, len(lines), text=True)
        for row, parsed in enumerate(cells):
            if parsed is None:
                converted.reasons[row] = f"takes a line of {len(self._names)} fields of UTF-8 text"
        # A default must not stand in for the cells of a line that could not be taken apart.
        keep = np.array([cells[row] is not None for row in converted.good], dtype=bool)
        if keep.all():
            return converted
        columns = {name: column[keep] for name, column in converted.columns.items()}
        times = None if converted.event_time is None else converted.event_time[keep]
        return Converted(columns, times, converted.good[keep], converted.reasons)

    def _cells(self, line: bytes) -> list[str] | None:
        try:
            row = next(csv.reader([line.decode("utf-8").rstrip("\r")], delimiter=self.delimiter))
        except (UnicodeDecodeError, csv.Error, StopIteration):
            return None
        return row if len(row) == len(self._names) else None


class TableReader:
    """Reads Parquet row groups or Arrow IPC record batches; needs pyarrow. Addresses are row numbers.

    A Parquet or Arrow *file* is readable once its footer is written: write it under another name and rename it. An
    Arrow *stream* (``.arrows``) may grow by whole record batches.
    """

    def __init__(self, path: Path, decoder: Decoder) -> None:
        from . import arrow

        arrow.require()
        self.path = path
        self.schema = decoder.schema
        self._arrow = arrow
        self._starts: list[int] = [0]
        self._batches: list[Any] = []
        self._incomplete = False
        self._file: Any = None
        self._seen_bytes = -1
        self._table: tuple[int, Any] = (-1, None)

    def read(self, address: int, finished: bool) -> Piece | None:
        """Return up to 65,536 rows from row `address` on, all of one row group or record batch."""
        try:
            self._refresh()
            if address >= self._starts[-1]:
                if finished and self._incomplete:
                    raise StreamError(f"segment {self.path} is damaged: its last record batch is incomplete")
                return None
            group = int(np.searchsorted(self._starts, address, side="right")) - 1
            if self._table[0] != group:
                self._table = (group, self._load(group))
        except FileNotFoundError:
            raise
        except self._arrow.errors() as error:
            if finished:
                raise StreamError(f"segment {self.path} is damaged: {error}") from error
            return None
        start = self._starts[group]
        table = self._table[1].slice(address - start, _TABLE_ROWS)
        converted = self._arrow.convert(self.schema, table)
        bad = [Bad(0, row, why, self._arrow.row_of(table, row)) for row, why in sorted(converted.reasons.items())]
        return Piece(one_message(converted, table.num_rows, bad), address, address + table.num_rows)

    def _refresh(self) -> None:
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            if self._seen_bytes < 0:
                raise
            return  # deleted; what is open can still be read to its end
        if size == self._seen_bytes:
            return
        pyarrow = self._arrow.require()
        if self.path.suffix == ".parquet":
            import pyarrow.parquet

            self._file = pyarrow.parquet.ParquetFile(self.path)
            counts = [self._file.metadata.row_group(i).num_rows for i in range(self._file.metadata.num_row_groups)]
        else:
            self._batches, self._incomplete = _batches(pyarrow, self.path)
            counts = [batch.num_rows for batch in self._batches]
        self._starts = [0, *np.cumsum(counts, dtype=np.int64).tolist()]
        self._seen_bytes = size

    def _load(self, group: int) -> Any:
        if self._file is None:
            return self._batches[group]
        names = [name for name in self.schema.fields if name in self._file.schema_arrow.names]
        return self._file.read_row_group(group, columns=names, use_threads=False)

    def size(self) -> int:
        """Return the number of rows known."""
        return self._starts[-1]

    def close(self) -> None:
        """Let go of the file."""
        self._batches, self._table, self._file = [], (-1, None), None


def _batches(pyarrow: Any, path: Path) -> tuple[list[Any], bool]:
    """Return the complete record batches of an Arrow file or stream, and whether an incomplete one follows."""
    source = pyarrow.memory_map(str(path))
    if source.size() >= 6 and source.read_at(6, 0) == b"ARROW1":
        file = pyarrow.ipc.open_file(source)
        return [file.get_batch(i) for i in range(file.num_record_batches)], False
    batches: list[Any] = []
    reader = pyarrow.ipc.open_stream(source)
    while True:
        try:
            batches.append(reader.read_next_batch())
        except StopIteration:
            return batches, False
        except (pyarrow.ArrowInvalid, OSError):
            return batches, True


def one_message(converted: Converted, rows: int, bad: list[Bad]) -> Decoded:
    """Return converted rows as the only message."""
    good = converted.good
    return Decoded(converted.columns, converted.event_time, np.zeros_like(good), good, np.array([rows]), bad)


_SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv",
    ".parquet": "table", ".arrow": "table", ".arrows": "table", ".feather": "table",
}  # fmt: skip


def kind_of(path: Path, format: str | None) -> str:
    """Return "jsonl", "csv" or "table" for a segment.

    Raises:
        ConfigurationError: the suffix says nothing and no format was given.
    """
    if format is not None:
        return "table" if format in ("parquet", "arrow") else format
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise ConfigurationError(
            f"the format of {path} is not known from its suffix; pass format= one of jsonl, csv, parquet, arrow, "
            f"or a pattern= that leaves it out (suffixes known: {', '.join(_SUFFIXES)})"
        )
    return kind
