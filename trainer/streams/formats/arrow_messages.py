"""Reads Arrow IPC data as messages, with kind, end and number of rows of each.

pyarrow trusts lengths in the data, and a wrong length may end the data early. Here rows are counted from the message
metadata, so that missing rows are detected: a message must end where its buffers end, nothing may follow the
end-of-stream mark, and a footer must list as many record batches as there are. Changed values are not detected here but
by a checksum file (`trainer.streams.sources.segment`).

Format: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import arrow

SCHEMA, DICTIONARY, BATCH, END = 1, 2, 3, 0
MAGIC = b"ARROW1"
_CONTINUATION = b"\xff\xff\xff\xff"
_PADDING = 64  # maximum alignment of buffers in bytes
_START = 8  # first message of a file with a footer
_UNFINISHED = (
    "it ends before its end-of-stream mark, so rows may be missing. Close the writer of a stream; one that is known to "
    "be whole is mended by appending the bytes ff ff ff ff 00 00 00 00"
)


class Message(NamedTuple):
    """A message's kind, its first and last byte (exclusive), and its number of rows."""

    kind: int  # SCHEMA, DICTIONARY, BATCH or END
    start: int
    end: int
    rows: int


def messages(source: Any, start: int, size: int) -> Iterator[Message]:
    """Yield the messages from byte `start` on; the end mark is of kind `END`."""
    while start < size:
        message = _message(source, start, size)
        if (message.kind == SCHEMA) != (start in (0, _START)):
            raise ValueError(f"the message at byte {start:,} is out of its order")
        yield message
        if message.kind == END:
            return
        start = message.end


def _message(source: Any, start: int, size: int) -> Message:
    source.seek(start)
    prefix = source.read(8)
    before = 8 if prefix.startswith(_CONTINUATION) else 4  # earlier versions wrote only the length
    if len(prefix) < before:
        raise ValueError(f"the message at byte {start:,} is incomplete")
    (length,) = struct.unpack_from("<i", prefix, before - 4)
    if length == 0:
        return Message(END, start, start + before, 0)
    body = start + before + length
    if length < 0 or body > size:
        raise ValueError(f"the message at byte {start:,} is incomplete")
    source.seek(start + before)
    try:
        kind, size_of_body, rows = _metadata(source.read(length))
    except struct.error:
        raise ValueError(f"the message at byte {start:,} is damaged") from None
    if kind not in (SCHEMA, DICTIONARY, BATCH) or size_of_body < 0:
        raise ValueError(f"the message at byte {start:,} is damaged")
    end = body + size_of_body
    if end > size:
        raise ValueError(f"the message at byte {start:,} is incomplete")
    return Message(kind, start, end, rows)


@functools.lru_cache(maxsize=64)  # messages of one schema and length share their metadata
def _metadata(data: bytes) -> tuple[int, int, int]:
    """Return a message's kind, bytes of its body, and rows; struct.error if damaged."""
    root = _Table(data)
    kind, body = root.number(1, "B"), root.number(3, "q")
    rows = _rows(root.table(2) if kind == BATCH else root.table(2).table(1), body) if kind != SCHEMA else 0
    return kind, body, rows if kind == BATCH else 0


def _rows(batch: _Table, body: int) -> int:
    """Return a record batch's rows, from its first column; check the buffers' sizes."""
    rows, nodes, buffers = batch.number(0, "q"), batch.pairs(1), batch.pairs(2)
    used = int((buffers[:, 0] + buffers[:, 1]).max(initial=0))
    if rows < 0 or (len(nodes) and nodes[0, 0] != rows) or not 0 <= body - used < _PADDING:
        raise struct.error
    return rows


_READ = {code: struct.Struct(f"<{code}").unpack_from for code in "BHIiq"}


class _Table:
    """A table of a flatbuffer; raises struct.error if an offset points outside."""

    def __init__(self, data: bytes, at: int | None = None) -> None:
        self._data = data
        self._at = self._read("I", 0) if at is None else at
        self._slots = self._at - self._read("i", self._at)
        self._end = self._slots + self._read("H", self._slots)

    def number(self, slot: int, code: str) -> int:
        at = self._address(slot)
        return self._read(code, at) if at else 0

    def table(self, slot: int) -> _Table:
        return _Table(self._data, self._follow(slot))

    def pairs(self, slot: int) -> np.ndarray:
        """Return a vector of pairs of int64, [n, 2]."""
        at = self._follow(slot)
        count = self._read("I", at)
        if at + 4 + 16 * count > len(self._data):
            raise struct.error
        return np.frombuffer(self._data, "<i8", 2 * count, at + 4).reshape(-1, 2)

    def _address(self, slot: int) -> int:
        at = self._slots + 4 + 2 * slot
        offset = self._read("H", at) if at + 2 <= self._end else 0
        return self._at + offset if offset else 0

    def _follow(self, slot: int) -> int:
        at = self._address(slot)
        if not at:
            raise struct.error
        return at + self._read("I", at)

    def _read(self, code: str, at: int) -> int:
        if at < 0:  # struct would count it from the end
            raise struct.error
        return _READ[code](self._data, at)[0]


class FooterFile:
    """The record batches of an Arrow file, which has a footer."""

    def __init__(self, source: Any) -> None:
        pyarrow = arrow.require()
        self._file = pyarrow.ipc.open_file(source)
        self.schema = self._file.schema
        size = source.size()
        source.seek(size - len(MAGIC) - 4)
        footer = size - len(MAGIC) - 4 - int.from_bytes(source.read(4), "little")
        parts = list(messages(source, _START, footer))
        self.rows = [part.rows for part in parts if part.kind == BATCH]
        if len(self.rows) != self._file.num_record_batches or not 0 <= footer - parts[-1].end < _PADDING:
            raise ValueError(
                f"the footer lists {self._file.num_record_batches} record batches; the file holds {len(self.rows)}"
            )
        source.seek(_START)
        if not pyarrow.ipc.read_schema(source).equals(self.schema):
            raise ValueError("the footer has another schema than the messages")

    def batch(self, number: int) -> Any:
        """Return one record batch."""
        return _counted(self._file.get_batch(number), self.rows[number])


class StreamFile:
    """The record batches of a growing Arrow stream file.

    It is not memory-mapped, because it may shrink at any time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[int] = []
        self.ends: list[int] = []  # byte at which each batch ends
        self.problem: str | None = None  # why the stream is incomplete
        self._heads: list[bytes] = []  # schema and dictionaries, needed to read batches
        self._batches: list[tuple[Message, int]] = []  # each with the number of preceding heads

    def extend(self) -> None:
        """Index newly appended batches."""
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            self.problem = _UNFINISHED
            heads: list[bytes] = []
            first = 0 if self.rows else 1  # without batches there is only the schema
            try:
                for message in messages(file, self.ends[-1] if self.ends else 0, size):
                    if message.kind == END:
                        self.problem = f"{size - message.end:,} bytes follow its end-of-stream mark"
                        if message.end == size:
                            self.problem = "record batches are missing at its end" if len(heads) > first else None
                    elif message.kind == BATCH:
                        self._heads += heads
                        heads, first = [], 0
                        self._batches.append((message, len(self._heads)))
                        self.ends.append(message.end)
                        self.rows.append(message.rows)
                    else:
                        file.seek(message.start)
                        heads.append(file.read(message.end - message.start))
            except ValueError as error:
                self.problem = str(error)

    def batch(self, number: int) -> Any:
        """Return one record batch."""
        message, heads = self._batches[number]
        with self.path.open("rb") as file:
            file.seek(message.start)
            data = b"".join(self._heads[:heads]) + file.read(message.end - message.start)
        return _counted(arrow.require().ipc.open_stream(data).read_next_batch(), self.rows[number])


def read_payload(payload: bytes) -> Any:
    """Return the table in an Arrow IPC stream or file held in memory."""
    pyarrow = arrow.require()
    source = pyarrow.BufferReader(payload)
    if payload.startswith(MAGIC):
        file = FooterFile(source)
        return pyarrow.Table.from_batches([file.batch(number) for number in range(len(file.rows))], file.schema)
    parts = list(messages(io.BytesIO(payload), 0, len(payload)))
    # The end of a message is known without the end-of-stream mark, which is optional.
    if not parts or parts[-1].end != len(payload):
        raise ValueError("bytes follow the end-of-stream mark" if parts else "there is no message in it")
    return _counted(pyarrow.ipc.open_stream(source).read_all(), sum(part.rows for part in parts))


def _counted(table: Any, rows: int) -> Any:
    if arrow.validated(table).num_rows != rows:
        raise ValueError(f"{table.num_rows:,} rows could be read; its metadata says {rows:,}")
    return table
