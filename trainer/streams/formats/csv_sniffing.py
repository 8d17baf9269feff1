"""Detects the format of a CSV file: encoding, delimiter, spaces around fields."""

from __future__ import annotations

import codecs
import csv
import re
from dataclasses import replace
from pathlib import Path

from ...errors import DataError
from .csv_format import CsvFormat

DELIMITERS = (",", ";", "\t", "|")
_SAMPLE = 1 << 16  # number of characters examined for the delimiter
_SCANNED = 1 << 28  # number of bytes examined for the encoding
_NON_ASCII = re.compile(rb"[\x80-\xff]+")
# Western European letters in cp1252, and the signs that occur in prose: euro, quotation marks, dashes, degrees.
_WESTERN = bytes(range(0xC0, 0x100)) + bytes.fromhex("80 84 85 91 92 93 94 95 96 97 a0 a7 ab b0 b2 b3 b4 b5 bb bc bd")
_CANDIDATES = ("gb18030", "shift_jis", "big5", "cp949", "cp1250", "cp1251", "cp1252")
_WITHIN_A_WORD = re.compile(rb"[A-Za-z][\xdf-\xff]{2}[a-z]")  # two such letters in a word, as in German "Größe"
_SHOWN_CHARACTERS = 30  # characters of a line in messages


def sniff(path: Path, given: CsvFormat | None = None) -> CsvFormat:
    """Detect the encoding, delimiter and outer spaces of a CSV file.

    The signs within numbers are detected elsewhere, from whole columns.

    Args:
        path: the file.
        given: known options; values that differ from the defaults are kept.

    Raises:
        DataError: the encoding cannot be detected; the message says what to pass.
    """
    given = given or CsvFormat()
    encoding = _encoding(path) if given.encoding == "utf-8" else given.encoding
    with path.open(encoding=encoding, errors="replace", newline="") as file:
        text = file.read(_SAMPLE).lstrip("\ufeff")
    lines = text.splitlines()[: -1 if len(text) == _SAMPLE else None]
    delimiter = given.delimiter or _delimiter(lines, path)
    strip = given.strip or _has_outer_spaces(lines[1:], delimiter)
    usual = CsvFormat().for_file(path).delimiter
    return replace(given, encoding=encoding, delimiter=None if delimiter == usual else delimiter, strip=strip)


def _has_outer_spaces(lines: list[str], delimiter: str) -> bool:
    try:
        return any(cell != cell.strip(" ") for row in csv.reader(lines, delimiter=delimiter) for cell in row)
    except csv.Error:
        return False


def other_format(path: Path, csv_format: CsvFormat) -> str:
    """Return a suffix for an error message that names the format of a file."""
    try:
        detected = sniff(path)
    except (DataError, OSError) as error:
        return f"; {error}"
    changes = {
        name: value
        for name, value in vars(detected.for_file(path)).items()
        if name in ("delimiter", "encoding") and value != getattr(csv_format, name)
    }
    shown = ", ".join(f"{name}: {value!r}" for name, value in changes.items())
    return f"; this file fits csv: {{{shown}}} in the section features, Features(csv=...)" if changes else ""


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(_SAMPLE)
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        zeros = [head[start::2].count(0) * 4 > len(head) for start in (0, 1)]
        if any(zeros):
            return "utf-16-be" if zeros[0] else "utf-16-le"
        decoder = codecs.getincrementaldecoder("utf-8")()
        block = head
        while block and file.tell() <= _SCANNED:
            try:
                decoder.decode(block)
            except UnicodeDecodeError:
                return _single_byte_encoding(path, block)
            block = file.read(1 << 20)
    return "utf-8"


def _single_byte_encoding(path: Path, block: bytes) -> str:
    """Return "cp1252" if the text looks Western European, else raise DataError.

    In Western European words, letters beyond ASCII mostly stand alone or in pairs. In other languages they form longer
    runs, and several encodings fit; the message then shows a line of the file in each of them.
    """
    runs = _NON_ASCII.findall(block)
    non_ascii = b"".join(runs)
    count = len(runs) + len(_WITHIN_A_WORD.findall(block))
    if len(non_ascii) < 1.7 * count and len(non_ascii.translate(None, _WESTERN)) < 0.05 * len(non_ascii):
        return "cp1252"
    line = next(line for line in block.split(b"\n") if _NON_ASCII.search(line))
    readings = {name: line.decode(name, "replace").strip()[:_SHOWN_CHARACTERS] for name in _CANDIDATES}
    fitting = [f"{name} {text!r}" for name, text in readings.items() if "\ufffd" not in text]
    raise DataError(
        f"{path} is not UTF-8; give --encoding NAME, in YAML features: {{csv: {{encoding: NAME}}}}. A line of it reads "
        f"as {'; '.join(fitting) or 'text in none of ' + ', '.join(_CANDIDATES)}"
    )


def _delimiter(lines: list[str], path: Path) -> str:
    usual = CsvFormat().for_file(path).delimiter or ","
    unquoted = re.sub(r'"[^"]*"', "", lines[0]) if lines else ""
    present = [sign for sign in DELIMITERS if sign in unquoted]
    if len(present) < 2:
        return present[0] if present else usual
    try:
        return csv.Sniffer().sniff("\n".join(lines[:200]), "".join(present)).delimiter
    except csv.Error:
        return usual if usual in present else present[0]
