"""Base class of streams that read from a server, and detection of replaced logs."""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple

from ...checks import choice
from ...errors import StreamError
from ..base import BufferedStream, Sharing
from ..batch import Cursor, Offset, Position, Span
from ..dead_letter import DeadLetter
from ..formats.decode import Decoder
from ..formats.schema import Decoded, Schema
from ..retry import Retry

logger = logging.getLogger(__name__)

_MAX_WAIT = 10.0
_START_SECONDS = 30.0  # how long `position` waits for a server's first answer


class BrokerStream(BufferedStream):
    """A stream of messages from a server; retries while the server is down.

    A subclass implements `_fetch`, `_failed` and `_disconnect`, and sets `_errors`. It holds `_lock` during client
    calls that must not run while the client is being closed.

    Args:
        source: name of the stream in dead-letter files, such as "kafka clicks".
        server: name of the server in messages, such as "Kafka at localhost:9092".
    """

    sharing = Sharing.PARTITIONED
    counts_rows = True
    dead_letter: DeadLetter
    _errors: tuple[type[Exception], ...] = ()

    def __init__(
        self,
        source: str,
        server: str,
        schema: Schema | Mapping[str, Any] | None,
        format: str,
        on_missing: str,
        dead_letter: DeadLetter | str | Path | None,
        max_bad_share: float | None,
        max_record_bytes: int,
        give_up_after: float | None,
    ) -> None:
        super().__init__()
        choice("on_missing", on_missing, ("error", "skip"))
        self.on_missing = on_missing
        self.dead_letter = DeadLetter.of(dead_letter, max_bad_share)
        self._decoder = Decoder(schema, self.dead_letter, source, format, max_record_bytes)
        self.schema = self._decoder.declared
        self._retry = Retry(server, cap=_MAX_WAIT, give_up_after=give_up_after)
        self._lock = Lock()
        self._resume_rows: dict[str, Cursor] = {}  # by partition: cursor inside a message whose first rows are skipped

    def _failed(self, error: Any) -> None:
        """Record a server failure and schedule a retry; raise if it is permanent."""
        raise NotImplementedError

    def declare(self, schema: Schema) -> None:
        self.schema = self._decoder.declare(schema)

    @property
    def retrying(self) -> bool:
        return self._retry.failures > 0

    def _attempt(self, action: Callable[[], None], timeout: float) -> bool:
        """Run `action` if a retry is due within `timeout`; return whether it succeeded."""
        if not self._retry.wait(timeout):
            return False
        try:
            action()
        except self._errors as error:
            self._failed(error)
            return False
        self._retry.succeeded()
        return True

    def _disconnect(self) -> None:
        """Close the client; called once, with `_lock` held."""
        raise NotImplementedError

    def _retry_until(self, action: Callable[[], None], done: Callable[[], bool], unknown: str) -> None:
        """Repeat `action` until `done`; raise if the server does not answer in time."""
        deadline = monotonic() + _START_SECONDS
        while not done():
            left = max(0.0, deadline - monotonic())
            if not self._attempt(action, left) and left == 0:
                raise StreamError(f"{self._retry.label} did not answer for {_START_SECONDS:.0f} s; {unknown}")

    def _push_messages(self, decoded: Decoded, origins: Sequence[Span]) -> None:
        """Push decoded messages without the rows before the position of the last seek."""
        rows_read = {}
        for number, origin in enumerate(origins if self._resume_rows else ()):
            cursor = self._resume_rows.pop(origin.partition, None)
            if cursor is not None and cursor.offset == origin.offset:
                rows_read[number] = cursor.row
        self._push(self._decoder.batch(decoded, origins, rows_read))

    def _lost(self, message: str) -> None:
        """Warn that messages were removed unread, or raise if `on_missing` is "error"."""
        if self.on_missing == "error":
            raise StreamError(f"{message}. Pass on_missing='skip' to continue without the lost messages")
        logger.warning("%s; continuing there", message)

    def close(self) -> None:
        already = self._closed
        super().close()
        self._retry.stop()
        with self._lock:
            if not already:
                self._disconnect()
        self.dead_letter.close()


_PREFIX = "@mark:"  # a position holds the mark of a partition under "@mark:<partition>"
_EVERY = 16
_KEPT = 256


class Mark(NamedTuple):
    """The offset of a record that was read, and a CRC-32 of its content."""

    offset: Offset
    checksum: int


class ReadMarks:
    """Remembers some records read from each partition, to detect a replaced log.

    A position says how far a log was read, but not which log it was. So a resume reads a marked record again and
    compares it. If that record was removed (retention, compaction), a replaced log is not detected.

    Args:
        order: key function by which offsets are compared.
    """

    def __init__(self, order: Callable[[Offset], Any] = lambda offset: offset) -> None:
        self._order = order
        self._marks: dict[str, deque[Mark]] = {}

    def add(self, partition: str, offset: Offset, content: Iterable[bytes | None]) -> None:
        """Mark a record; the records of a partition must be added in order."""
        marks = self._marks.setdefault(partition, deque())
        marks.append(Mark(offset, checksum(content)))
        if len(marks) > _KEPT:  # keep every second one: older marks serve only prefetched rows and may be sparse
            self._marks[partition] = deque([*list(marks)[:-1:2], marks[-1]])

    def begin(self, position: Position) -> None:
        """Load the marks in `position`; drop the marks of records that will be read again."""
        for name in [name for name in position if not name.startswith("@")]:
            cursor = Cursor.of(position[name])
            kept = [mark for mark in self._marks.get(name, ()) if self._is_before(mark, cursor)]
            parsed = self._parse(name, position.get(_PREFIX + name))
            if parsed is not None and (not kept or self._order(kept[-1].offset) < self._order(parsed.offset)):
                kept.append(parsed)
            self._marks[name] = deque(kept)

    def _parse(self, name: str, value: Any) -> Mark | None:
        if value is None:
            return None
        try:
            mark = Mark(*value)
            self._order(mark.offset)
            if type(mark.checksum) is int and isinstance(mark.offset, Offset):
                return mark
        except (TypeError, ValueError):
            pass
        raise StreamError(f"a position holds {_PREFIX + name!r} as [offset, checksum]; received {value!r}")

    def forget(self, partition: str) -> None:
        """Drop the marks of a partition after its log was replaced."""
        self._marks.pop(partition, None)

    def before(self, partition: str, cursor: Cursor) -> Mark | None:
        """Return the newest mark of a record at least partly read before `cursor`."""
        marks = list(self._marks.get(partition, ()))  # copied, because another thread may append
        return next((mark for mark in reversed(marks) if self._is_before(mark, cursor)), None)

    def _is_before(self, mark: Mark, cursor: Cursor) -> bool:
        at, end = self._order(mark.offset), self._order(cursor.offset)
        return bool(at < end or (at == end and cursor.row))

    def resolve(self, position: Position) -> Position:
        """Return `position` with a mark for every partition that has one."""
        marks = {n: self.before(n, Cursor.of(value)) for n, value in position.items() if not n.startswith("@")}
        rest = {name: value for name, value in position.items() if not name.startswith(_PREFIX)}
        return rest | {_PREFIX + name: list(mark) for name, mark in marks.items() if mark is not None}


def checksum(content: Iterable[bytes | None]) -> int:
    """Return a CRC-32 of the parts; a missing part differs from an empty one."""
    total = 0
    for part in content:
        total = zlib.crc32(b"-" if part is None else b"+%d:" % len(part), total)
        total = zlib.crc32(part or b"", total)
    return total


def indices_to_mark(origins: Sequence[Span]) -> list[int]:
    """Return the records to mark: every 16th, and each partition's last."""
    newest = {origin.partition: index for index, origin in enumerate(origins)}
    return sorted({*range(0, len(origins), _EVERY), *newest.values()})
