"""Decodes message payloads (JSON or Arrow) to columns and separates bad rows."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...checks import choice, whole
from ...errors import ConfigurationError
from ..batch import Batch, Span
from ..dead_letter import BadRow, DeadLetter
from . import arrow
from .column import MISSING
from .schema import Decoded, Schema, as_schema, join_parts
from .text_blocks import BlockParser, UnusualError, json_parser

logger = logging.getLogger(__name__)

MAX_RECORD_BYTES = 16 << 20
_KEPT_BYTES = 1 << 16  # bytes of a record that are kept for the dead-letter file
_MIN_BLOCK_BYTES = 1 << 16  # minimum bytes of JSON messages that are read faster as a block
_MIN_WARNED_BYTES = 1 << 18  # minimum bytes for a warning that they are read line by line
FORMATS = ("auto", "json", "arrow")
_ARROW_MAGIC = b"\xff\xff\xff\xff"  # first bytes of an Arrow IPC stream


def json_loader() -> Callable[[bytes], Any]:
    """Return orjson's parser if it is installed, else that of the standard library.

    Both give the same results: the standard library parses payloads that orjson rejects, such as NaN, and payloads with
    integers that orjson would round.
    """
    try:
        import orjson
    except ImportError:
        return _parse_json

    def load(payload: bytes) -> Any:
        try:
            value = orjson.loads(payload)
        except orjson.JSONDecodeError:
            return _parse_json(payload)
        return _parse_json(payload) if has_long_number(payload) else value

    return load


_DIGITS = bytes(ord("0") if chr(b).isdigit() else b if b == ord(".") else ord(" ") for b in range(128)) + b" " * 128
_LONG = b"0" * 19  # digits of the shortest integer that orjson reads as a float


def has_long_number(payload: bytes) -> bool:
    """Return whether JSON may hold an integer that orjson would round."""
    digits = payload.translate(_DIGITS)
    return _LONG in digits and _LONG in digits.replace(b"." + _LONG, b".")  # a fraction may have as many digits


_SPACE = b" \t\r\n"
_parse_value = json.JSONDecoder().raw_decode


def _parse_json(payload: bytes) -> Any:
    """Parse UTF-8 JSON like `json.loads`, but 20% faster, without encoding detection.

    A byte order mark is dropped.
    """
    text = payload.decode("utf-8-sig").strip(" \t\r\n")
    value, end = _parse_value(text)
    if end != len(text):
        raise ValueError(f"more text after the value, at character {end}")
    return value


class Decoder:
    """Decodes payloads to batches with a schema, and reports bad rows."""

    def __init__(
        self,
        schema: Schema | Mapping[str, Any] | None,
        dead_letter: DeadLetter,
        source: str,
        format: str = "auto",
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        choice("format", format, FORMATS)
        self.max_record_bytes = whole("max_record_bytes", max_record_bytes)
        if format == "arrow":
            arrow.require()
        self.declared = None if schema is None else as_schema(schema)
        self._is_given = schema is not None  # otherwise each training may declare other columns
        self.dead_letter = dead_letter
        self.source = source
        self.format = format
        self._parse_json = json_loader()
        self._warned = False  # whether a warning was logged that lines or messages are read one by one
        self._prepared = False  # whether `_parser` was created
        self._parser: BlockParser | None = None  # parses JSON messages that were polled together
        self._try_halves = True  # whether to split a block that fails: whether most of the last block did not fail

    @property
    def schema(self) -> Schema:
        """The declared schema; raises ConfigurationError if there is none."""
        if self.declared is None:
            raise ConfigurationError(
                f"{self.source}: no schema says what the columns are; pass schema=, or train with Trainer(features=...)"
            )
        return self.declared

    def declare(self, schema: Schema) -> Schema:
        """Set the schema unless one was given at first; return the schema in use."""
        if self.declared is None or not (self._is_given or schema == self.declared):
            self.declared, self._prepared, self._parser = schema, False, None
        return self.declared

    def decode(self, payloads: Sequence[bytes], in_blocks: bool = True) -> Decoded:
        """Convert messages to rows.

        Args:
            payloads: JSON objects with one row each, JSON lists of such objects, or Arrow IPC streams.
            in_blocks: parse consecutive JSON messages as one block if that is faster; the rows are the same.
        """
        binary = [self.format == "arrow" or (self.format == "auto" and p.startswith(_ARROW_MAGIC)) for p in payloads]
        texts = (payload for payload, is_arrow in zip(payloads, binary, strict=True) if not is_arrow)
        # Searching the text for these words is faster than checking the type of every value.
        messages = _MessageRows(self.schema, payloads, any(b"true" in text or b"false" in text for text in texts))
        pending: list[int] = []  # indexes of consecutive JSON messages that are not decoded yet
        for number, (payload, is_arrow) in enumerate(zip(payloads, binary, strict=True)):
            if len(payload) > self.max_record_bytes:
                messages.add_unreadable(number, self.too_long_reason(len(payload)))
            elif is_arrow:
                self._decode_json_messages(messages, pending, in_blocks)
                pending = []
                self._decode_arrow(messages, number, payload)
            else:
                pending.append(number)
        self._decode_json_messages(messages, pending, in_blocks)
        return messages.decoded()

    def decode_fields(self, messages: Sequence[Mapping[bytes, bytes]], list_delimiter: str) -> Decoded:
        """Convert messages that hold the text fields of one row each."""
        bad: list[BadRow] = []
        rows: dict[int, dict[str, str]] = {}  # by index of the message
        for number, message in enumerate(messages):
            size = sum(map(len, message.values()))
            if size > self.max_record_bytes:
                bad.append(BadRow(number, 0, self.too_long_reason(size), b" ".join(message.values())[:_KEPT_BYTES]))
                continue
            try:
                rows[number] = _as_text(message, "strict")
            except UnicodeDecodeError as error:
                bad.append(BadRow(number, 0, f"not UTF-8 text: {error}", _as_text(message, "replace")))
        values: dict[str, Any] = {}
        for name, column in self.schema.fields.items():
            cells: list[Any] = [row.get(name, MISSING) for row in rows.values()]
            if column.shape:
                cells = [cell if cell is MISSING else column.split_list(cell, list_delimiter) for cell in cells]
            values[name] = cells
        decoded = self.schema.convert(values, len(rows), text=True, raw=list(rows.values()).__getitem__)
        return decoded.as_rows_of(list(rows), [0] * len(rows), np.ones(len(messages), np.int64), bad)

    def too_long_reason(self, size: int) -> str:
        """Return the reason why a record of `size` bytes is too long."""
        return f"takes a record of at most max_record_bytes={self.max_record_bytes}; received one of {size} bytes"

    def is_fast(self, what: Any, size: int, by_line: int, reason: str) -> bool:
        """Return whether at most half of `size` bytes were read line by line; else warn.

        The warning is logged once for each decoder. `reason` says why `what`, a file or a source, is not read in
        blocks; if it is empty, blocks were not tried.
        """
        is_fast = 2 * by_line <= size
        if not is_fast and size >= _MIN_WARNED_BYTES and reason and not self._warned:
            self._warned = True
            logger.warning("%s is read line by line, several times slower than in blocks: %s", what, reason)
        return is_fast

    def too_long_record(self, size: int, head: bytes) -> Decoded:
        """Return a message with one bad row: a record of `size` bytes."""
        bad = [BadRow(0, 0, self.too_long_reason(size), head[:_KEPT_BYTES])]
        return self.schema.convert({}, 0).as_rows_of([], [], np.ones(1, np.int64), bad)

    def _decode_json_messages(self, messages: _MessageRows, numbers: list[int], in_blocks: bool) -> None:
        """Decode JSON messages, as a block if they are large enough."""
        size = sum(len(messages.payloads[number]) for number in numbers)
        if not in_blocks or size < _MIN_BLOCK_BYTES:
            for number in numbers:
                self._decode_json(messages, number, messages.payloads[number])
            return
        if not self._prepared:
            self._prepared = True
            with contextlib.suppress(ConfigurationError):  # raised without pyarrow; messages are then read one by one
                self._parser = json_parser(self.schema)
        by_line, reason = self._decode_json_block(messages, numbers, self._try_halves)
        self._try_halves = self.is_fast(self.source, size, by_line, reason)

    def _decode_json_block(self, messages: _MessageRows, numbers: list[int], try_halves: bool) -> tuple[int, str]:
        """Decode messages as a block; if that fails, in two halves or one by one.

        Returns the number of bytes that were decoded message by message, and the reason.
        """
        payloads = [messages.payloads[number] for number in numbers]
        size, reason = sum(map(len, payloads)), ""
        if self._parser is not None:
            try:
                lines, counts = as_lines(payloads)
                messages.add_rows(numbers, counts, self._with_original_text(self._parser(lines), lines))
                return 0, ""
            except arrow.errors() as error:
                reason = str(error)
        half = len(numbers) // 2
        if try_halves and half and size >= 2 * _MIN_BLOCK_BYTES and self._parser is not None:
            first, first_reason = self._decode_json_block(messages, numbers[:half], True)
            second, reason = self._decode_json_block(messages, numbers[half:], True)
            return first + second, reason or first_reason
        for number, payload in zip(numbers, payloads, strict=True):
            self._decode_json(messages, number, payload)
        return size, reason

    def _with_original_text(self, decoded: Decoded, lines: bytes) -> Decoded:
        """Read bad rows again one by one, so that their reasons show the original text."""
        if not decoded.bad:
            return decoded
        texts = lines.split(b"\n")
        reread = self.schema.from_rows([self._parse_json(texts[bad.row]) for bad in decoded.bad], refuse_bools=True)
        return replace(decoded, bad=bad_rows_of(reread, decoded))

    def _decode_json(self, messages: _MessageRows, number: int, payload: bytes) -> None:
        try:
            value = self._parse_json(payload)
        except (ValueError, RecursionError) as error:
            messages.add_unreadable(number, f"not JSON: {error}")
            return
        rows = [value] if type(value) is dict else value
        if type(rows) is not list:
            messages.add_unreadable(number, f"takes an object or a list of objects; received {type(value).__name__}")
        elif not rows:
            messages.add_unreadable(number, "an empty list of rows")
        else:
            for index, row in enumerate(rows):
                messages.row(number, index, row)
            messages.counts[number] = len(rows)

    def _decode_arrow(self, messages: _MessageRows, number: int, payload: bytes) -> None:
        try:
            decoded = arrow.convert(self.schema, arrow.read_payload(payload), read_only=True)
        except arrow.errors() as error:
            messages.add_unreadable(number, f"not Arrow: {error}")
            return
        if decoded.counts[0]:
            messages.add_rows([number], decoded.counts, decoded)
        else:
            messages.add_unreadable(number, "an Arrow message without rows")

    def batch(
        self, decoded: Decoded, origins: Sequence[Span], rows_read: Mapping[int, int] | None = None
    ) -> Batch | None:
        """Convert decoded messages to a batch; report and count their bad rows.

        Args:
            decoded: the messages.
            origins: span of the first row of each message, with its partition, offset and next offset.
            rows_read: mapping from message index to the number of its first rows that were read before; these are
                dropped.

        Returns:
            The good rows, or None if there are none.
        """
        bad = decoded.bad
        for message, rows in (rows_read or {}).items():
            decoded = decoded.where((decoded.message != message) | (decoded.row >= rows))
            bad = [b for b in bad if b.message != message or b.row >= rows]
        self.dead_letter.record(self.source, bad, origins)
        self.dead_letter.count(len(decoded.message), len(bad))
        if not len(decoded.message):
            return None
        return Batch(decoded.columns, decoded.event_time, _spans(decoded, origins))


def as_lines(payloads: Sequence[bytes]) -> tuple[bytes, np.ndarray]:
    """Return lines of one row each, and the number of rows in each message, int64.

    A list of rows is split at every ``},{``. As that may also occur within a row, the parser of the lines must check
    that each line is exactly one object.

    Raises:
        UnusualError: a message contains line ends, or is neither an object nor a list.
    """
    lines, counts = [], np.ones(len(payloads), np.int64)
    for number, payload in enumerate(payloads):
        line = payload.strip(_SPACE)
        if b"\n" in line or line[:1] not in (b"{", b"["):
            raise UnusualError("a message holds line ends, or neither an object nor a list of objects")
        if line.startswith(b"[") and line.endswith(b"]"):
            line = line[1:-1].strip(_SPACE).replace(b"}, {", b"}\n{").replace(b"},{", b"}\n{")
            counts[number] += line.count(b"\n")
        lines.append(line)
    lines.append(b"")
    return b"\n".join(lines), counts


def bad_rows_of(alone: Decoded, in_block: Decoded) -> list[BadRow]:
    """Return the bad rows of a block, with the reasons of the rows read alone.

    Raises:
        UnusualError: not all of these rows are bad when they are read alone.
    """
    if not len(alone.bad) == len(in_block.bad) == alone.counts.sum():
        raise UnusualError("a row on its own is read differently than in a block")
    return [replace(bad, message=0, row=row.row) for bad, row in zip(alone.bad, in_block.bad, strict=True)]


def _spans(decoded: Decoded, origins: Sequence[Span]) -> tuple[Span, ...]:
    message, row = decoded.message, decoded.row
    if len(message) == len(origins) == decoded.counts.sum():
        return tuple(origins)
    # One span for each run of consecutive good rows of a message.
    ends = [*(np.flatnonzero((np.diff(message) != 0) | (np.diff(row) != 1)) + 1).tolist(), len(message)]
    spans = []
    for first, end in zip([0, *ends], ends, strict=False):
        origin = origins[message[first]]
        final = end == len(message) or message[end] != message[first]
        after = origin.next_offset if final else None
        spans.append(Span(origin.partition, origin.offset, int(row[first]), int(row[end - 1]), after))
    return tuple(spans)


class _MessageRows:
    """Collects the rows of consecutive messages, and converts JSON rows together."""

    def __init__(self, schema: Schema, payloads: Sequence[bytes], refuse_bools: bool) -> None:
        self.schema, self.payloads, self.refuse_bools = schema, payloads, refuse_bools
        self.counts = np.ones(len(payloads), dtype=np.int64)
        self._bad: list[BadRow] = []
        # (row, message index, row index) of JSON rows not converted yet
        self._rows: list[tuple[dict[str, Any], int, int]] = []
        # converted rows including bad ones, with their message indexes and row indexes
        self._parts: list[tuple[Decoded, Any, Any]] = []

    def add_unreadable(self, message: int, reason: str) -> None:
        """Record a whole message as bad; it counts as one row."""
        self._bad.append(BadRow(message, 0, reason, self.payloads[message]))

    def row(self, message: int, number: int, row: Any) -> None:
        if type(row) is not dict:
            self._bad.append(BadRow(message, number, f"a row is an object; received {type(row).__name__}", row))
            return
        self._rows.append((row, message, number))

    def add_rows(self, messages: Sequence[int], counts: np.ndarray, decoded: Decoded) -> None:
        """Add the converted rows of consecutive messages."""
        self._convert_rows()
        self.counts[messages] = counts
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        self._parts.append((decoded, np.repeat(messages, counts), within))

    def _convert_rows(self) -> None:
        if self._rows:
            rows, messages, numbers = zip(*self._rows, strict=True)
            self._parts.append((self.schema.from_rows(rows, self.refuse_bools), messages, numbers))
            self._rows = []

    def decoded(self) -> Decoded:
        self._convert_rows()
        parts, messages, numbers = zip(*(self._parts or [(self.schema.convert({}, 0), (), ())]), strict=True)
        whole = self.schema.writable(join_parts(parts))
        return whole.as_rows_of(np.concatenate(messages), np.concatenate(numbers), self.counts, self._bad)


def _as_text(fields: Mapping[bytes, bytes], errors: str) -> dict[str, str]:
    return {name.decode(errors="replace"): value.decode(errors=errors) for name, value in fields.items()}
