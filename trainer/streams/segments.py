"""Readers of one segment file: text by byte offset, tables by row number.

A reader is asked for what follows an address and returns a `Piece`: the rows, the address they are counted from and the
address after them. The same address gives the same rows whatever was read before.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import StreamError
from . import text_blocks
from .decode import Bad, Decoded, Decoder
from .schema import MISSING, Converted, Schema
from .text_blocks import BlockParser

BLOCK_BYTES = 1 << 20
_TABLE_ROWS = 65_536
_LEAST_BYTES = 1 << 13  # of a piece that is still tried as a whole
_NOT_MADE = object()


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

    def bytes_before(self, address: int) -> int:
        """Return how many of the file's first bytes must stay as they are for what lies before `address` to stay."""

    def close(self) -> None:
        """Close the file."""


class TextReader:
    """Reads whole lines; an unfinished last line waits until its newline arrives or the segment is finished."""

    def __init__(self, path: Path, decoder: Decoder) -> None:
        self.path = path
        self.decoder = decoder
        self._file = path.open("rb")
        self._parser: Any = _NOT_MADE
        self._halves = True  # whether halves of a block are worth trying: some part of the one before could be parsed

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
        if self._parser is _NOT_MADE:
            self._parser = self._make_parser() if text_blocks.available() else None
        parts: list[Decoded] = []
        if self._parser is None:
            parts.append(self.decode(_lines_of(data)))
        else:
            self._halves = self._parse(data, parts, self._halves)
        return Piece(in_one(parts), address, address + len(data))

    def _make_parser(self) -> BlockParser | None:
        return text_blocks.json_parser(self.decoder.schema)

    def _parse(self, data: bytes, parts: list[Decoded], halves: bool) -> bool:
        """Parse `data` as a whole; where that fails, in halves if told, small pieces line by line; did any parse?"""
        from . import arrow

        try:
            converted, rows = self._parser(data)
            parts.append(one_message(converted, rows, []))
            return True
        except arrow.errors():
            cut = data.rfind(b"\n", 0, len(data) // 2) + 1
        if not (halves and cut and len(data) >= _LEAST_BYTES):
            parts.append(self.decode(_lines_of(data)))
            return False
        return self._parse(data[:cut], parts, True) | self._parse(data[cut:], parts, True)

    def decode(self, lines: list[bytes]) -> Decoded:
        """Convert lines to rows of one message; an empty line is no row."""
        return self.decoder.decode([line for line in lines if line.strip()]).as_one_message()

    def size(self) -> int:
        """Return the file's size in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def bytes_before(self, address: int) -> int:
        """Return `address` itself."""
        return address

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

    def _make_parser(self) -> BlockParser | None:
        return text_blocks.csv_parser(self.schema, self._names, self.delimiter, self.list_delimiter)

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
        if not lines or any(column.dtype.kind in "Ub" or column.ragged for column in fields.values()):
            raise ValueError
        if not all(name in self._names for name in fields):
            raise ValueError
        text = b"\n".join(lines)
        listed = any(column.shape for column in fields.values())
        if listed and self.list_delimiter != self.delimiter:
            text = text.replace(self.list_delimiter.encode(), self.delimiter.encode())
        kinds, places, exactly, place = [], [], {}, 0
        for name in self._names:
            column = fields.get(name)
            width = 1 if column is None else int(np.prod(column.shape))
            if column is not None:
                kinds.append((name, np.int64 if column.dtype.kind in "iu" else np.float64, column.shape))
                places.extend(range(place, place + width))
                if column.dtype.kind in "iu":  # else they are read by way of floats: 5.5 as 5
                    exactly |= dict.fromkeys(range(place, place + width), int)
            place += width
        if text.count(self.delimiter.encode()) != len(lines) * (place - 1) or b'"' in text:
            raise ValueError
        table = np.loadtxt(
            io.StringIO(text.decode("utf-8")), np.dtype(kinds), None, self.delimiter, exactly, usecols=places, ndmin=1
        )
        if len(table) != len(lines):
            raise ValueError
        values = {name: np.ascontiguousarray(table[name]) for name in table.dtype.names}
        converted = self.schema.convert(values, len(lines))
        if converted.reasons:
            raise ValueError  # cell by cell the reasons show the text as it stands
        return converted

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
                taken = [column.cells(cell, self.list_delimiter) if isinstance(cell, str) else cell for cell in taken]
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
        self._ends: list[int] = [0]  # bytes of the file that the rows before each start depend on
        self._file: Any = None
        self._group: Callable[[int], Any] | None = None
        self._seen_bytes = -1
        self._table: tuple[int, Any] = (-1, None)

    def read(self, address: int, finished: bool) -> Piece | None:
        """Return up to 65,536 rows from row `address` on, all of one row group or record batch."""
        try:
            self._refresh()
            if address >= self._starts[-1]:
                if finished and isinstance(self._file, self._arrow.StreamFile) and self._file.incomplete:
                    raise StreamError(f"segment {self.path} is damaged: its last record batch is incomplete")
                return None
            group = int(np.searchsorted(self._starts, address, side="right")) - 1
            if self._table[0] != group:
                self._table = (group, self._group(group))
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
        with self.path.open("rb") as file:
            magic = file.read(6)
        if magic[:4] == b"PAR1":
            counts, ends = self._open_parquet(pyarrow, size)
        elif magic == b"ARROW1":
            source = pyarrow.OSFile(str(self.path))
            self._file = pyarrow.ipc.open_file(source)
            self._group = lambda number: self._arrow.sound(self._file.get_batch(number))
            counts = self._arrow.rows_of_batches(source)
            ends = [size] * len(counts)
        else:
            if not isinstance(self._file, self._arrow.StreamFile):
                self._file = self._arrow.StreamFile(self.path)
            self._group = self._file.batch
            self._file.extend()
            counts, ends = self._file.rows, self._file.ends
        self._starts, self._ends = [0, *np.cumsum(counts, dtype=np.int64).tolist()], [0, *ends]
        self._seen_bytes = size

    def _open_parquet(self, pyarrow: Any, size: int) -> tuple[list[int], list[int]]:
        import pyarrow.parquet

        file = self._file = pyarrow.parquet.ParquetFile(self.path)
        names = [name for name in self.schema.fields if name in file.schema_arrow.names]
        self._group = lambda number: file.read_row_group(number, columns=names, use_threads=False)
        counts = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        return counts, [size] * len(counts)

    def size(self) -> int:
        """Return the number of rows known."""
        return self._starts[-1]

    def bytes_before(self, address: int) -> int:
        """Return where the record batch that holds the row before `address` ends; of a file with a footer, its size."""
        return self._ends[int(np.searchsorted(self._starts, address, side="left"))]

    def close(self) -> None:
        """Let go of the file."""
        self._group, self._table, self._file = None, (-1, None), None


def _lines_of(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def in_one(parts: list[Decoded]) -> Decoded:
    """Return the rows of several pieces, one message each, as one message."""
    if len(parts) == 1:
        return parts[0]
    counts = np.array([int(part.counts.sum()) for part in parts], dtype=np.int64)
    starts = np.cumsum(counts) - counts
    bad = [
        Bad(0, int(start) + b.row, b.reason, b.raw) for part, start in zip(parts, starts, strict=True) for b in part.bad
    ]
    times = None if parts[0].event_time is None else np.concatenate([part.event_time for part in parts])
    return Decoded(
        {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        times,
        np.concatenate([part.message for part in parts]),
        np.concatenate([part.row + start for part, start in zip(parts, starts, strict=True)]),
        counts.sum(keepdims=True),
        bad,
    )


def one_message(converted: Converted, rows: int, bad: list[Bad]) -> Decoded:
    """Return converted rows as the only message."""
    good = converted.good
    return Decoded(converted.columns, converted.event_time, np.zeros_like(good), good, np.array([rows]), bad)
