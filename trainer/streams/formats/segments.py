"""Readers of segment files: text by byte offset, Parquet by row number.

`read` returns the rows from an address on as a `Piece`, or None if no complete row follows. Its argument `finished`
says that the segment will not grow. The same address always gives the same rows. `bytes_before` returns the length of
the part of the file that determines the rows before an address.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigurationError, StreamError
from ..dead_letter import BadRow
from . import arrow, csv_header, text_blocks
from .csv_format import CsvFormat, EncodedFile
from .decode import Decoder, bad_rows_of
from .schema import Decoded, join_parts
from .text_blocks import BlockParser, UnusualError

BLOCK_BYTES = 1 << 20
_MAX_QUOTED_BYTES = 1 << 18  # maximum bytes of a multi-line record; Python's csv module takes fields of half that size
_MAX_QUOTED_LINES = 1_000  # maximum lines of a multi-line record
_TABLE_ROWS = 65_536
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # as UTF-8
_MIN_SPLIT_BYTES = 1 << 13  # minimum bytes of a block that is split into halves


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a segment, decoded as one message, and the address after them."""

    decoded: Decoded
    end: int


class TextReader:
    """Reads complete lines, and at the end a last line without a newline."""

    def __init__(self, path: Path, decoder: Decoder, encoding: str = "utf-8") -> None:
        self.path = path
        self.decoder = decoder
        self._file = EncodedFile(path, encoding)
        self._line_at = (0, 1)  # an address and the line number there
        self._records: list[bytes] | None = None  # records of the current block; None if each line is a record
        self._parser: BlockParser | None = None
        self._prepared = False  # whether `_parser` was created; a CSV header must be read first
        self._searched = (-1, 0)  # address of a line that is too long; address up to which its end was searched
        self._reason = ""  # why a part of a block was last read line by line
        self._try_halves = True  # whether to split a block that fails: whether most of the last block did not fail

    def read(self, address: int, finished: bool) -> Piece | None:
        """Read about one block of lines from byte `address` on."""
        limit, size, data, end = self.decoder.max_record_bytes, BLOCK_BYTES, b"", 0
        while not end:
            data, more = self._file.read(address, size)
            # A line that is longer than a block is read alone.
            end = (data.rfind(b"\n") if size == BLOCK_BYTES else data.find(b"\n")) + 1
            if not end and len(data) > limit:
                return self._read_too_long(address, data, finished)
            end = self._records_end(data, end, finished and end == len(data) and not more)
            if not end and not more:
                if not data or not finished:
                    return None
                end = self._records_end(data, len(data), True)
            size = min(2 * size, max(limit, BLOCK_BYTES) + 1)
        data = data[:end]
        after = address + self._file.size_of(data)
        if not self._prepared:
            self._prepared = True
            try:
                self._parser = self._block_parser()
            except (ConfigurationError, UnusualError) as error:
                self._reason = str(error)
        parts: list[Decoded] = []
        self._records_read, self._by_line_bytes = 0, 0  # records decoded; bytes read line by line
        self._parse(data, parts, self._try_halves)
        self._try_halves = self.decoder.is_fast(self.path, len(data), self._by_line_bytes, self._reason)
        decoded = join_parts(parts)
        if decoded.bad:
            lines = self._line_numbers(address, data)
            decoded = replace(decoded, bad=[replace(bad, line=lines[bad.line or 0]) for bad in decoded.bad])
        return Piece(decoded, after)

    def _line_numbers(self, address: int, data: bytes) -> list[int]:
        """Return the line number at which each record of the block at `address` begins."""
        counted, line = self._line_at if self._line_at[0] <= address else (0, 1)
        line += self._file.count_lines(counted, address)
        self._line_at = (address, line)
        numbers = []
        for record in data.split(b"\n") if self._records is None else self._records:
            if record.strip():
                numbers.append(line)
            line += record.count(b"\n") + 1
        return numbers

    def _read_too_long(self, address: int, head: bytes, finished: bool) -> Piece | None:
        """Return the line at `address` as a bad row, or None while its end is missing."""
        position = max(address + self._file.size_of(head), self._searched[1] if self._searched[0] == address else 0)
        more = True
        while more:
            block, more = self._file.read(position, BLOCK_BYTES)
            line = block[: block.find(b"\n") + 1]
            position += self._file.size_of(line or block)
            if line:
                return Piece(self.decoder.too_long_record(position - address - 1, head), position)
        self._searched = (address, position)
        return Piece(self.decoder.too_long_record(position - address, head), position) if finished else None

    def _records_end(self, data: bytes, end: int, is_final: bool) -> int:
        """Return the end of the last complete record in ``data[:end]``."""
        return end

    def _block_parser(self) -> BlockParser:
        return text_blocks.json_parser(self.decoder.schema)

    def _parse(self, data: bytes, parts: list[Decoded], try_halves: bool) -> None:
        """Parse a block; if that fails, parse its halves, or read line by line."""
        is_too_long = len(data) > self.decoder.max_record_bytes and _longest_line(data) > self.decoder.max_record_bytes
        if is_too_long:
            self._reason = f"a line is longer than max_record_bytes={self.decoder.max_record_bytes}"
        elif self._parser is not None:
            try:
                parts.append(self._with_original_text(self._parser(data), data))
                self._records_read += int(parts[-1].counts.sum())
                return
            except arrow.errors() as error:
                self._reason = str(error)
        middle = data.rfind(b"\n", 0, len(data) // 2) + 1
        if not (try_halves and middle and len(data) >= _MIN_SPLIT_BYTES and self._parser):
            self._by_line_bytes += len(data)
            parts.append(self._decode_records(data.split(b"\n")))
            return
        self._parse(data[:middle], parts, True)
        self._parse(data[middle:], parts, True)

    def _with_original_text(self, decoded: Decoded, data: bytes) -> Decoded:
        """Read bad rows again line by line, so that their reasons show the original text."""
        if not decoded.bad:
            return decoded
        lines = data.split(b"\n")
        reread = self.decode([lines[bad.row] for bad in decoded.bad])
        bad = [replace(row, line=self._records_read + row.row) for row in bad_rows_of(reread, decoded)]
        return replace(decoded, bad=bad)

    def _decode_records(self, records: Iterable[bytes]) -> Decoded:
        """Decode the records that are not blank.

        `BadRow.line` is first the index of the record in the block; `read` replaces it by the line number.
        """
        lines = [record for record in records if record.strip()]
        decoded, first = self.decode(lines), self._records_read
        self._records_read += len(lines)
        one_message_each = len(decoded.counts) == len(lines)
        numbered = [replace(bad, line=first + (bad.message if one_message_each else bad.row)) for bad in decoded.bad]
        return replace(decoded, bad=numbered)

    def decode(self, lines: list[bytes]) -> Decoded:
        """Convert non-empty lines to rows."""
        return self.decoder.decode(lines, in_blocks=False)

    def size(self) -> int:
        """Return the file's size in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def bytes_before(self, address: int) -> int:
        """Return `address` itself."""
        return address

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _longest_line(data: bytes) -> int:
    return int(np.diff(np.flatnonzero(np.frombuffer(data, np.uint8) == 10), prepend=-1, append=len(data)).max()) - 1


class CsvReader(TextReader):
    """Reads CSV records, which span several lines if quoted fields contain line ends.

    A quote may stay open for at most `_MAX_QUOTED_BYTES` bytes and `_MAX_QUOTED_LINES` lines. If it is not closed by
    then or at the end of the segment, or is closed by a stray quote, only the line with the open quote is bad.

    Args:
        names: field names; None to read them from the first line of the segment.
        csv_format: format of the file, including its delimiter.
        list_delimiter: delimiter between the values of a list field.
    """

    def __init__(
        self, path: Path, decoder: Decoder, names: list[str] | None, csv_format: CsvFormat, list_delimiter: str
    ) -> None:
        super().__init__(path, decoder, csv_format.encoding)
        self.format, self.list_delimiter = csv_format, list_delimiter
        self._csv_options: dict[str, Any] = {"delimiter": csv_format.delimiter, "skipinitialspace": csv_format.strip}
        self._quoted_field = text_blocks.quoted_fields((csv_format.delimiter or ",").encode())
        self._header_bytes = 0
        self._names = names or []  # empty until the header is read
        self._read_header = names is None

    def read(self, address: int, finished: bool) -> Piece | None:
        """Read about one block of rows from byte `address` on, without the header."""
        if self._read_header:
            header = csv_header.read(self._file, self.format, finished)
            if header is None or (not header.endswith(b"\n") and not finished):
                return None
            self._header_bytes = self._file.size_of(header)
            self._names = csv_header.names(header, self.path, self.format, self.decoder.schema.fields)
            self._read_header = False
        elif not address and not self._header_bytes:
            text, _ = self._file.read(0, len(_BYTE_ORDER_MARK) if self.format.encoding == "utf-8" else 2)
            self._header_bytes = self._file.size_of(text) if text == _BYTE_ORDER_MARK else 0
        return super().read(max(address, self._header_bytes), finished)

    def _block_parser(self) -> BlockParser:
        return text_blocks.csv_parser(self.decoder.schema, self._names, self.format, self.list_delimiter)

    def _records_end(self, data: bytes, end: int, is_final: bool) -> int:
        self._records = None
        if b'"' not in data or text_blocks.all_quoted(data[:end], self._quoted_field):
            return end
        lines = data[:end].removesuffix(b"\n").split(b"\n") if end else []
        records, first, records_end = [], 0, 0
        while first < len(lines):
            count = self._lines_of_record(lines, first)
            is_short = end - records_end <= _MAX_QUOTED_BYTES and len(lines) - first <= _MAX_QUOTED_LINES
            if count == 0 and is_short and not is_final:
                break  # wait for the rest of the record
            records.append(b"\n".join(lines[first : first + max(1, count)]))
            first += max(1, count)
            records_end += len(records[-1]) + 1
        if len(records) < first:
            self._records = records
        return min(records_end, end)

    def _lines_of_record(self, lines: list[bytes], first: int) -> int:
        """Return how many lines the record at line `first` spans; 0 if a quote stays open.

        Several lines form one record only if it has a field for each name and if only text fields contain line ends.
        Otherwise all good rows between two stray quotes would be lost.
        """
        if b'"' not in lines[first]:
            return 1
        closed = True

        def following_lines() -> Iterator[str]:
            nonlocal closed
            size = 0
            for line in lines[first : first + _MAX_QUOTED_LINES]:
                size += len(line) + 1
                if size > _MAX_QUOTED_BYTES:
                    break
                yield line.decode("utf-8", "replace").replace("\r", "") + "\n"
            closed = False

        reader = csv.reader(following_lines(), strict=True, **self._csv_options)
        try:
            row = next(reader, [])
        except csv.Error:  # text follows a closing quote, or the lines end inside a quoted field
            return 1 if closed else 0
        if not closed:
            return 0
        return reader.line_num if reader.line_num == 1 or self._may_span_lines(row) else 1

    def _may_span_lines(self, row: list[str]) -> bool:
        if len(row) != len(self._names):
            return False
        columns = (
            self.decoder.schema.fields.get(name) for name, cell in zip(self._names, row, strict=True) if "\n" in cell
        )
        return all(column is None or column.dtype.kind == "U" for column in columns)

    def _parse(self, data: bytes, parts: list[Decoded], try_halves: bool) -> None:
        if self._records is None:
            super()._parse(data, parts, try_halves)
            return
        self._reason, self._by_line_bytes = "fields hold line ends", len(data)
        parts.append(self._decode_records(self._records))

    def decode(self, lines: list[bytes]) -> Decoded:
        """Convert non-empty records to rows of one message, cell by cell."""
        rows = [self._cells(line) for line in lines]
        good_rows = [number for number, row in enumerate(rows) if isinstance(row, list)]
        bad = [BadRow(0, number, row, lines[number]) for number, row in enumerate(rows) if isinstance(row, str)]
        values: dict[str, Any] = {}
        for name, column in self.decoder.schema.fields.items():
            if name in self._names:
                index = self._names.index(name)
                cells = [rows[number][index] for number in good_rows]
                if column.shape:
                    cells = [column.split_list(cell, self.list_delimiter) for cell in cells]
                values[name] = cells
        decoded = self.decoder.schema.convert(values, len(good_rows), text=True, raw=lambda row: lines[good_rows[row]])
        return decoded.as_rows_of([0] * len(good_rows), good_rows, np.array([len(lines)]), bad)

    def _cells(self, record: bytes) -> list[str] | str:
        """Return the cells of a record, or why it is bad."""
        if len(record) > self.decoder.max_record_bytes:
            return self.decoder.too_long_reason(len(record))
        try:
            *inner, final = record.decode("utf-8").rstrip("\r").split("\n")
            lines = [*(line + "\n" for line in inner), final]
            reader = csv.reader([*lines, ""], **self._csv_options)
            row = next(reader)
        except UnicodeDecodeError:
            return f"takes {self.format.encoding} text, see encoding in docs/your-own-table.md; received other bytes"
        except (csv.Error, StopIteration) as error:
            problem = (
                f"with {csv_header.LONE_RETURNS}" if b"\r" in record.rstrip(b"\r") else f"that is not CSV: {error}"
            )
            return f"takes a line of {len(self._names)} fields; received one {problem}"
        if reader.line_num > len(lines):
            return "a quote is not closed: double the quotes inside of a quoted field, and quote whole fields only"
        if len(row) != len(self._names):
            return f"takes a line of {len(self._names)} fields; received one of {len(row)}"
        return [cell.strip(" ") for cell in row] if self.format.strip else row


class ParquetReader:
    """Reads the row groups of a Parquet file by row number; needs pyarrow.

    A Parquet file ends with a footer, so it is readable only once it is complete.
    """

    def __init__(self, path: Path, decoder: Decoder) -> None:
        arrow.require()
        self.path = path
        self.schema = decoder.schema
        self._group_starts: list[int] = [0]  # first row number of each row group, then the number of rows in the file
        self._file: Any = None
        self._file_bytes = -1
        self._group: tuple[int, Any] = (-1, None)

    def read(self, address: int, finished: bool) -> Piece | None:
        """Return up to 65,536 rows of one row group, from row `address` on."""
        try:
            self._refresh()
            if address >= self._group_starts[-1]:
                return None
            number = int(np.searchsorted(self._group_starts, address, side="right")) - 1
            if self._group[0] != number:
                names = [name for name in self.schema.fields if name in self._file.schema_arrow.names]
                self._group = (number, arrow.row_group(self._file, number, names))
            table = self._group[1].slice(address - self._group_starts[number], _TABLE_ROWS)
            decoded = arrow.convert(self.schema, table)
        except arrow.errors() as error:
            if isinstance(error, OSError) and error.errno is not None:  # the disk failed; the data need not be damaged
                raise
            if finished:
                raise StreamError(f"segment {self.path} is damaged: {error}") from error
            return None
        return Piece(decoded, address + table.num_rows)

    def _refresh(self) -> None:
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            if self._file_bytes < 0:
                raise
            return  # deleted, but the open file remains readable
        if size != self._file_bytes:
            self._file = arrow.open_parquet(self.path)
            self._group_starts = [0, *np.cumsum(arrow.group_rows(self._file), dtype=np.int64).tolist()]
            self._file_bytes = size

    def size(self) -> int:
        """Return the number of rows known so far."""
        return self._group_starts[-1]

    def bytes_before(self, address: int) -> int:
        """Return the file size, as all rows depend on the whole file; 0 for row 0."""
        return self._file_bytes if address else 0

    def close(self) -> None:
        """Release the file."""
        self._file, self._group = None, (-1, None)


Reader = TextReader | ParquetReader
