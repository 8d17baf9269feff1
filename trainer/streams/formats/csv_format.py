"""Format of CSV files: delimiter, encoding, and signs within numbers."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...checks import refuse
from ...errors import ConfigurationError, did_you_mean

UTF_16 = ("utf-16", "utf-16-le", "utf-16-be")
DECIMALS, THOUSANDS = (".", ","), (".", ",", " ", "'")
# Encodings in which the byte 10 is always a line end.
_ENCODINGS = re.compile(
    r"utf-8|ascii|iso8859-\d+|cp\d+|koi8\S*|mac\S*|gb\S*|big5\S*|shift_jis\S*|euc_\S*|johab|tis-620"
)


@dataclass(frozen=True)
class CsvFormat:
    """Format of CSV files, and of numbers written as text in any source.

    Args:
        delimiter: character between fields; None for a tab in ``.tsv`` files, else a comma.
        encoding: "utf-8", "utf-16" (its byte order is detected), "cp1252", "gb18030" or another encoding of Python.
        decimal: decimal sign of numbers, "." or ",".
        thousands: sign between groups of three digits, ".", ",", " " or "'"; None if there is none.
        strip: whether to remove spaces around fields. Spaces around column names are always removed.
        missing: texts that stand for a missing value in every column, such as "n/a"; an empty text always does.

    Raises:
        ConfigurationError: the encoding is unknown, `decimal` and `thousands` are equal, or `missing` contains a number
            or a value that is not a text.
    """

    delimiter: str | None = None
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str | None = None
    strip: bool = False
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.delimiter is not None and (not isinstance(self.delimiter, str) or len(self.delimiter) != 1):
            refuse("csv: delimiter", "one character", self.delimiter)
        object.__setattr__(self, "encoding", checked_encoding(self.encoding))
        check_signs(self.decimal, self.thousands)
        if not isinstance(self.strip, bool) or (self.strip and self.delimiter == " "):
            refuse("csv: strip", "true or false, and false where spaces are delimiters", self.strip)
        object.__setattr__(self, "missing", checked_missing(self.missing))

    @classmethod
    def of(cls, value: CsvFormat | Mapping[str, Any] | None) -> CsvFormat:
        """Return `value` if it is a CsvFormat, else one from a mapping of arguments."""
        if isinstance(value, CsvFormat):
            return value
        accepted = [field.name for field in fields(cls)]
        if not isinstance(value or {}, Mapping):
            refuse("csv", f"a mapping of {', '.join(accepted)}", value)
        for name in value or {}:
            if name not in accepted:
                refuse("csv", f"{', '.join(accepted)}{did_you_mean(str(name), accepted)}", name)
        return cls(**(value or {}))

    def declaration(self) -> dict[str, Any]:
        """Return the arguments that differ from their defaults."""
        default = CsvFormat()
        changed = {name: value for name, value in vars(self).items() if value != getattr(default, name)}
        return {name: list(value) if name == "missing" else value for name, value in changed.items()}

    def for_file(self, path: Path) -> CsvFormat:
        """Return the format with its delimiter set, by the suffix of a file if it is None."""
        return replace(self, delimiter=self.delimiter or ("\t" if path.suffix.lower() == ".tsv" else ","))


def checked_encoding(name: Any) -> str:
    """Return the canonical name of an encoding; ConfigurationError if unsupported."""
    try:
        canonical = codecs.lookup(name).name.removesuffix("-sig")
        if canonical in UTF_16 or (_ENCODINGS.fullmatch(canonical) and "a\n".encode(canonical) == b"a\n"):
            return canonical
    except (LookupError, TypeError, ValueError):
        pass
    accepted = ("utf-8", "utf-16", "cp1252", "latin-1", "gb18030", "shift_jis")
    raise ConfigurationError(
        f"csv: encoding takes {', '.join(accepted)} or another one of Python's; received {name!r}"
        + did_you_mean(str(name), accepted)
    )


def checked_missing(words: Any) -> tuple[str, ...]:
    """Return the texts for a missing value; ConfigurationError if one is invalid."""
    if not isinstance(words, list | tuple):
        refuse("csv: missing", "a list of texts, as in [n/a, '-']", words)
    for word in words:
        if not isinstance(word, str) or not word.strip() or word != word.strip() or _is_number(word):
            refuse("csv: missing", "texts that are no numbers, in quotes where YAML reads another value", word)
    return tuple(dict.fromkeys(words))


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)  # False for "nan", which may stand for a missing number
    except ValueError:
        return False


def check_signs(decimal: Any, thousands: Any) -> None:
    """Check the signs within numbers; raise ConfigurationError if they are invalid."""
    if decimal not in DECIMALS:
        refuse("decimal", " or ".join(map(repr, DECIMALS)), decimal)
    if thousands is not None and thousands not in THOUSANDS:
        refuse("thousands", f"{', '.join(map(repr, THOUSANDS))} or none", thousands)
    if thousands == decimal:
        raise ConfigurationError(f"decimal and thousands are two signs; received {decimal!r} for both")


class EncodedFile:
    """Reads a text file as UTF-8; addresses are byte offsets in the file itself.

    Bytes that are invalid in the file's encoding become invalid UTF-8.
    """

    def __init__(self, path: Path, encoding: str = "utf-8") -> None:
        self._file = path.open("rb")
        self._encoding = encoding
        self._raw = self._text = b""

    def read(self, address: int, size: int) -> tuple[bytes, bool]:
        """Return the text of up to `size` bytes of the file, and whether more may follow."""
        self._file.seek(address)
        self._raw = self._file.read(size)
        more = len(self._raw) == size
        if self._encoding == "utf-16":
            self._encoding = _byte_order(self._file)
            self._raw = b"" if self._encoding == "utf-16" else self._raw  # the mark is not complete yet
        if self._encoding != "utf-8":
            self._raw = self._raw[: len(self._raw) // self._unit.itemsize * self._unit.itemsize]
            handler = "surrogatepass" if self._encoding in UTF_16 else "surrogateescape"
            decoder = codecs.getincrementaldecoder(self._encoding)(handler)
            text = decoder.decode(self._raw, final=not more).encode("utf-8", "surrogatepass")
            self._raw = self._raw[: len(self._raw) - len(decoder.getstate()[0])]  # without an incomplete character
        else:
            text = self._raw
        self._text = text
        return text, more

    def size_of(self, text: bytes) -> int:
        """Return the number of bytes in the file that `text` takes.

        Args:
            text: the first complete lines of the last result of `read`, or all of it.
        """
        if self._encoding == "utf-8" or len(text) == len(self._text):
            return len(text) if self._encoding == "utf-8" else len(self._raw)
        ends = np.flatnonzero(np.frombuffer(self._raw, self._unit) == 10)
        return (int(ends[text.count(b"\n") - 1]) + 1) * self._unit.itemsize

    def count_lines(self, address: int, end: int) -> int:
        """Return the number of line ends between two addresses."""
        count = 0
        self._file.seek(address)
        while address < end and (raw := self._file.read(min(end - address, 1 << 20))):
            whole = len(raw) // self._unit.itemsize * self._unit.itemsize
            count += int(np.count_nonzero(np.frombuffer(raw[:whole], self._unit) == 10))
            address += len(raw)
        return count

    @property
    def _unit(self) -> np.dtype:
        return np.dtype({"utf-16-le": "<u2", "utf-16-be": ">u2"}.get(self._encoding, "u1"))

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _byte_order(file: Any) -> str:
    file.seek(0)
    mark = file.read(2)
    return "utf-16-be" if mark == codecs.BOM_UTF16_BE else "utf-16-le" if len(mark) == 2 else "utf-16"
