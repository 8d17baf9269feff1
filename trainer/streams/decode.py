"""From message payloads to columns: JSON or Arrow, one row or many to a message, bad rows set aside."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import choice
from .base import Batch, Offset, Span
from .dead_letter import DeadLetter
from .schema import MISSING, Converted, Schema, as_schema

FORMATS = ("auto", "json", "arrow")
# First bytes of Arrow's stream and file formats.
_ARROW = (b"\xff\xff\xff\xff", b"ARROW1")


def json_loader() -> Callable[[bytes], Any]:
    """Return the fastest JSON parser at hand: orjson's where it is installed, else the standard library's."""
    try:
        import orjson
    except ImportError:
        return _loads
    return orjson.loads


_scan = json.JSONDecoder().raw_decode


def _loads(payload: bytes) -> Any:
    """Parse like `json.loads`, without its guesses at encodings, which cost a fifth of the time."""
    text = payload.decode("utf-8").strip(" \t\r\n")
    value, end = _scan(text)
    if end != len(text):
        raise ValueError(f"more text after the value, at character {end}")
    return value


@dataclass(frozen=True)
class Bad:
    """A row set aside: number of its message among those decoded, its row number, the reason and the raw payload."""

    message: int
    row: int
    reason: str
    raw: Any


@dataclass
class Decoded:
    """Good rows of some messages.

    Attributes:
        columns: name -> array of the good rows.
        event_time: their event times in seconds, or None.
        message: for each good row, which of the messages it is from, int64.
        row: for each good row, its number within the message, bad rows counted, int64.
        counts: rows in each message, bad ones included, int64 [messages].
        bad: the rows set aside.
    """

    columns: dict[str, np.ndarray]
    event_time: np.ndarray | None
    message: np.ndarray
    row: np.ndarray
    counts: np.ndarray
    bad: list[Bad]

    def keep(self, mask: np.ndarray) -> None:
        """Drop the good rows for which `mask` is False."""
        self.columns = {name: column[mask] for name, column in self.columns.items()}
        self.event_time = None if self.event_time is None else self.event_time[mask]
        self.message, self.row = self.message[mask], self.row[mask]

    def as_one_message(self) -> Decoded:
        """Return the same rows numbered through, as rows of a single message."""
        starts = np.cumsum(self.counts) - self.counts
        bad = [Bad(0, int(starts[b.message]) + b.row, b.reason, b.raw) for b in self.bad]
        return Decoded(
            self.columns,
            self.event_time,
            np.zeros_like(self.message),
            starts[self.message] + self.row,
            np.array([self.counts.sum()], dtype=np.int64),
            bad,
        )


class Decoder:
    """Turns payloads into batches after a schema and reports bad rows.

    Args:
        schema: what the columns are to be.
        dead_letter: where bad rows go.
        source: name of the stream, for the dead-letter file.
        format: "json", "arrow" or "auto" (told by the first bytes of each payload).

    Raises:
        ConfigurationError: an unknown format, or pyarrow is needed and not installed.
    """

    def __init__(
        self, schema: Schema | Mapping[str, Any], dead_letter: DeadLetter, source: str, format: str = "auto"
    ) -> None:
        choice("format", format, FORMATS)
        if format == "arrow":
            from . import arrow

            arrow.require()
        self.schema = as_schema(schema)
        self.dead_letter = dead_letter
        self.source = source
        self.format = format
        self._loads = json_loader()

    def decode(self, payloads: Sequence[bytes]) -> Decoded:
        """Convert messages: each a JSON object (one row, or columns of many), a list of objects, or Arrow IPC."""
        pieces = _Pieces(self.schema, payloads)
        arrow = [self.format == "arrow" or (self.format == "auto" and one.startswith(_ARROW)) for one in payloads]
        texts = (payload for payload, is_arrow in zip(payloads, arrow, strict=True) if not is_arrow)
        # looking at every value takes longer than looking for the words
        pieces.refuse_bools = any(b"true" in text or b"false" in text for text in texts)
        for index, (payload, is_arrow) in enumerate(zip(payloads, arrow, strict=True)):
            if is_arrow:
                self._arrow(pieces, index, payload)
            else:
                self._json(pieces, index, payload)
        return pieces.finish()

    def decode_fields(self, messages: Sequence[Mapping[bytes, bytes]], list_delimiter: str) -> Decoded:
        """Convert messages that are one row each, given as fields of text."""
        pieces = _Pieces(self.schema, messages)
        names = {name: name.encode() for name in self.schema.fields}
        rows: list[Mapping[bytes, bytes]] = []
        numbers: list[int] = []
        for index, message in enumerate(messages):
            try:
                for value in message.values():
                    value.decode("utf-8")
            except UnicodeDecodeError as error:
                pieces.unreadable(index, f"not UTF-8 text: {error}")
                continue
            rows.append(message)
            numbers.append(index)
        values: dict[str, Any] = {}
        for name, column in self.schema.fields.items():
            cells = [row[names[name]].decode("utf-8") if names[name] in row else MISSING for row in rows]
            if column.shape:
                cells = [cell if cell is MISSING else column.cells(cell, list_delimiter) for cell in cells]
            values[name] = cells
        pieces.texts(self.schema.convert(values, len(rows), text=True), numbers)
        return pieces.finish()

    def _json(self, pieces: _Pieces, index: int, payload: bytes) -> None:
        try:
            value = self._loads(payload)
        except (ValueError, RecursionError) as error:
            pieces.unreadable(index, f"not JSON: {error}")
            return
        if type(value) is dict:
            probe = value.get(pieces.probe)
            if type(probe) is list and pieces.is_columnar(value):
                pieces.table(index, value, len(probe))
            else:
                pieces.row(index, 0, value)
        elif type(value) is list:
            if not value:
                pieces.unreadable(index, "an empty list of rows")
            for number, row in enumerate(value):
                pieces.row(index, number, row)
            pieces.counts[index] = max(1, len(value))
        else:
            pieces.unreadable(index, f"takes an object or a list of objects; received {type(value).__name__}")

    def _arrow(self, pieces: _Pieces, index: int, payload: bytes) -> None:
        from . import arrow

        try:
            table = arrow.read_payload(payload)
        except arrow.errors() as error:
            pieces.unreadable(index, f"not Arrow: {error}")
            return
        if table.num_rows == 0:
            pieces.unreadable(index, "an Arrow message without rows")
            return
        pieces.converted(index, arrow.convert(self.schema, table), lambda row: arrow.row_of(table, row), table.num_rows)

    def batch(
        self,
        decoded: Decoded,
        places: Sequence[tuple[str, Offset, Offset | None]],
        skip: Mapping[int, int] | None = None,
    ) -> Batch | None:
        """Make a batch of decoded messages, report their bad rows, and count.

        Args:
            decoded: rows of the messages.
            places: for each message its partition, its offset and the offset after it (None: not known).
            skip: message number -> rows of it that were read before and are dropped.

        Raises:
            StreamError: too many bad rows.
        """
        bad = decoded.bad
        if skip:
            keep = np.ones(len(decoded.message), dtype=bool)
            for message, rows in skip.items():
                keep &= (decoded.message != message) | (decoded.row >= rows)
            decoded.keep(keep)
            bad = [b for b in bad if b.row >= skip.get(b.message, 0)]
        for item in bad:
            partition, offset, _ = places[item.message]
            self.dead_letter.record(self.source, partition, offset, item.row, item.reason, item.raw)
        self.dead_letter.count(len(decoded.message), len(bad))
        if not len(decoded.message):
            return None
        return Batch(decoded.columns, decoded.event_time, _spans(decoded, places))


def _spans(decoded: Decoded, places: Sequence[tuple[str, Offset, Offset | None]]) -> tuple[Span, ...]:
    message, row = decoded.message, decoded.row
    if len(message) == len(places) == decoded.counts.sum():
        return tuple([Span(partition, offset, 0, 0, after) for partition, offset, after in places])
    breaks = np.flatnonzero((np.diff(message) != 0) | (np.diff(row) != 1)) + 1
    firsts = np.concatenate([[0], breaks])
    lasts = np.concatenate([breaks, [len(message)]]) - 1
    spans = []
    for run, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
        number = int(message[last])
        partition, offset, after = places[number]
        final = run + 1 == len(firsts) or message[lasts[run] + 1] != number
        spans.append(Span(partition, offset, int(row[first]), int(row[last]), after if final else None))
    return tuple(spans)


class _Pieces:
    """Collects rows of a run of messages; single rows are converted together, for speed."""

    def __init__(self, schema: Schema, payloads: Sequence[Any]) -> None:
        self.schema = schema
        self.payloads = payloads
        self.probe, self._depth = schema.probe
        self.refuse_bools = False
        self.counts = np.ones(len(payloads), dtype=np.int64)
        self._bad: list[Bad] = []
        self._rows: list[dict[str, Any]] = []
        self._messages: list[int] = []
        self._numbers: list[int] = []
        self._done: list[tuple[Converted, np.ndarray, np.ndarray]] = []

    def is_columnar(self, record: dict[str, Any]) -> bool:
        """Return whether a record holds columns: all fields are lists, the probe one level deeper than in a row."""
        if not all(isinstance(record[name], list) for name in self.schema.fields if name in record):
            return False
        value = record[self.probe]
        for _ in range(self._depth):
            if not isinstance(value, list) or not value:
                return False
            value = value[0]
        return isinstance(value, list)

    def unreadable(self, message: int, reason: str) -> None:
        """Set a whole message aside; it counts as one row."""
        raw = self.payloads[message]
        self._bad.append(Bad(message, 0, reason, raw if isinstance(raw, bytes) else _readable(raw)))

    def row(self, message: int, number: int, row: Any) -> None:
        """Add one row given as a mapping."""
        if type(row) is not dict:
            self._bad.append(Bad(message, number, f"a row is an object; received {type(row).__name__}", row))
            return
        self._rows.append(row)
        self._messages.append(message)
        self._numbers.append(number)

    def table(self, message: int, values: dict[str, Any], rows: int) -> None:
        """Add a message that holds columns of `rows` values."""
        for name in self.schema.fields:
            column = values.get(name)
            if column is not None and len(column) != rows:
                self.unreadable(message, f"column {name!r} has {len(column)} values where {self.probe!r} has {rows}")
                return
        if rows == 0:
            self.unreadable(message, "columns without rows")
            return
        held = [name for name in self.schema.fields if name in values]
        converted = self.schema.convert(values, rows, refuse_bools=self.refuse_bools)
        self.converted(message, converted, lambda row: {name: values[name][row] for name in held}, rows)

    def converted(self, message: int, result: Converted, raw: Callable[[int], Any], rows: int) -> None:
        """Add a message whose `rows` rows have been converted; `raw(row)` gives a bad row's source."""
        self._flush()
        self.counts[message] = rows
        self._bad.extend(Bad(message, row, reason, raw(row)) for row, reason in result.reasons.items())
        self._done.append((result, np.full(len(result.good), message, dtype=np.int64), result.good))

    def texts(self, result: Converted, messages: list[int]) -> None:
        """Add messages of one row each that have been converted together."""
        for place, reason in result.reasons.items():
            self._bad.append(Bad(messages[place], 0, reason, _readable(self.payloads[messages[place]])))
        numbers = np.asarray(messages, dtype=np.int64)[result.good]
        self._done.append((result, numbers, np.zeros(len(numbers), dtype=np.int64)))

    def _flush(self) -> None:
        if not self._rows:
            return
        result = self.schema.from_rows(self._rows, self.refuse_bools)
        messages = np.asarray(self._messages, dtype=np.int64)
        numbers = np.asarray(self._numbers, dtype=np.int64)
        for place, reason in result.reasons.items():
            self._bad.append(Bad(self._messages[place], self._numbers[place], reason, self._rows[place]))
        self._done.append((result, messages[result.good], numbers[result.good]))
        self._rows, self._messages, self._numbers = [], [], []

    def finish(self) -> Decoded:
        """Return everything added."""
        self._flush()
        if not self._done:
            self._done.append((self.schema.convert({}, 0), np.empty(0, np.int64), np.empty(0, np.int64)))
        results = [result for result, _, _ in self._done]
        columns = {name: _join([result.columns[name] for result in results]) for name in self.schema.columns}
        times = None if self.schema.event_time is None else _join([result.event_time for result in results])
        message, row = _join([m for _, m, _ in self._done]), _join([r for _, _, r in self._done])
        self._bad.sort(key=lambda bad: (bad.message, bad.row))
        return Decoded(columns, times, message, row, self.counts, self._bad)


def _readable(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}


def _join(arrays: list[Any]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
