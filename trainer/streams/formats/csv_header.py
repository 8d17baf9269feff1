"""Reads and checks the header of a CSV file, the column names."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from pathlib import Path

from ...errors import StreamError
from .csv_format import CsvFormat, EncodedFile
from .csv_sniffing import other_format

_BLOCK = 1 << 16
_MAX_LINES = 20  # of a header; names in quotes may hold line ends
LONE_RETURNS = (
    "carriage returns without line feeds: if its lines end so, write them anew, for example with tr '\\r' '\\n'"
)


def read(file: EncodedFile, csv_format: CsvFormat, finished: bool = True) -> bytes | None:
    """Return the first line, or the lines of a header whose names hold line ends.

    The result is incomplete if it does not end with a line end, and None if the file is empty.

    Args:
        finished: whether the file is complete.
    """
    size, more, text = _BLOCK, True, b""
    while more and b"\n" not in text:
        text, more = file.read(0, size)
        size *= 2
    first = text[: text.find(b"\n") + 1] or text or None
    *lines, _ = text.split(b"\n", _MAX_LINES)
    if first is None or not lines:
        return first
    count = _lines_of_names(lines, csv_format)
    if count is None:
        return first if finished or len(lines) == _MAX_LINES else first.rstrip(b"\n")
    return b"\n".join(lines[:count]) + b"\n"


def _lines_of_names(lines: Sequence[bytes], csv_format: CsvFormat) -> int | None:
    """Return how many lines the names take; None if a quote stays open.

    Lines that are not CSV count as one.
    """
    texts = [line.decode("utf-8-sig", "replace") + "\n" for line in lines]
    reader = csv.reader(texts, delimiter=csv_format.delimiter or ",", skipinitialspace=True, strict=True)
    try:
        next(reader, [])
    except csv.Error as error:
        return None if "unexpected end of data" in str(error) else 1
    return reader.line_num


def split(header: bytes, csv_format: CsvFormat) -> list[str]:
    """Split a header into names, without the spaces around them."""
    text = header.decode("utf-8-sig").strip("\r\n")
    lines = [line + "\n" for line in text.replace("\r\n", "\n").split("\n")] if '"' in text else [text]
    reader = csv.reader(lines, delimiter=csv_format.delimiter or ",", skipinitialspace=True)
    try:
        return [name.strip() for name in next(reader, [])]
    except csv.Error:
        if "\r" in text:
            raise csv.Error(f"it holds {LONE_RETURNS}") from None
        raise


def names(header: bytes, path: Path, csv_format: CsvFormat, declared: Collection[str]) -> list[str]:
    """Return the column names in a header.

    Raises:
        StreamError: the header is not text, names a `declared` column twice, or names none of them.
    """
    try:
        header_names = split(header, csv_format)
    except (UnicodeDecodeError, csv.Error) as error:
        raise StreamError(
            f"segment {path} is damaged: its first line has no names: {error}{other_format(path, csv_format)}"
        ) from error
    for name in declared:
        if header_names.count(name) > 1:
            raise StreamError(
                f"segment {path}: its first line names column {name!r} {header_names.count(name)} times; "
                "give every column its own name"
            )
    if not set(declared) & set(header_names):
        shown = ", ".join(map(repr, header_names[:5])) + (", ..." if len(header_names) > 5 else "")
        raise StreamError(
            f"segment {path}: its first line names none of the declared columns {', '.join(list(declared)[:10])}; "
            f"received {shown}{other_format(path, csv_format)}"
        )
    return header_names


def names_of_file(path: Path, csv_format: CsvFormat) -> list[str]:
    """Return the column names in a file's header."""
    file_format = csv_format.for_file(path)
    file = EncodedFile(path, file_format.encoding)
    try:
        return split(read(file, file_format) or b"", file_format)
    finally:
        file.close()
