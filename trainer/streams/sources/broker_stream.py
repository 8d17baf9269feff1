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

from ...checks import choice, number
from ...errors import StreamError
from ..base import BufferedStream, Sharing
from ..batch import Cursor, Offset, Position, Span
from ..dead_letter import DeadLetter
from ..formats.decode import Decoder
from ..formats.schema import Decoded, Schema
from ..retry import Retry

logger = logging.getLogger(__name__)

_MAX_WAIT = 10.0
_MAX_FIRST_WAIT = 30.0  # how long `position` waits for a server's first answer


class BrokerStream(BufferedStream):
    """A stream of messages from a server; retries while the server is down.

    A subclass implements `_fetch`, `_handle_failure` and `_disconnect`, and sets `_errors`. It holds `_lock` during
    client calls that must not run while the client is being closed.

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
        number("give_up_after", give_up_after, above=0, optional=True, what="seconds")
        self.on_missing = on_missing
        self.dead_letter = DeadLetter.of(dead_letter, max_bad_share)
        self._decoder = Decoder(schema, self.dead_letter, source, format, max_record_bytes)
        self.schema = self._decoder.declared
        self._retry = Retry(server, cap=_MAX_WAIT, give_up_after=give_up_after)
        self._lock = Lock()
        self._resume_rows: dict[str, Cursor] = {}  # by partition: cursor inside a message whose first rows are skipped

    def _handle_failure(self, error: Any) -> None:
        """Record a server failure and schedule a retry; raise if it is permanent."""
        raise NotImplementedError

    def declare(self, schema: Schema) -> None:
        self._use_schema(self._decoder.declare(schema))

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
            self._handle_failure(error)
            return False
        self._retry.succeeded()
        return True

    def _disconnect(self) -> None:
        """Close the client; called once, with `_lock` held."""
        raise NotImplementedError

    def _retry_until(self, action: Callable[[], None], done: Callable[[], bool], problem: str) -> None:
        """Repeat `action` until `done`; raise if the server does not answer in time."""
        deadline = monotonic() + _MAX_FIRST_WAIT
        while not done():
            remaining = max(0.0, deadline - monotonic())
            if not self._attempt(action, remaining) and remaining == 0:
                raise StreamError(f"{self._retry.label} did not answer for {_MAX_FIRST_WAIT:.0f} s; {problem}")

    def _push_messages(self, decoded: Decoded, origins: Sequence[Span]) -> None:
        """Push decoded messages without the rows before the position of the last seek."""
        rows_read = {}
        for index, origin in enumerate(origins if self._resume_rows else ()):
            cursor = self._resume_rows.pop(origin.partition, None)
            if cursor is not None and cursor.offset == origin.offset:
                rows_read[index] = cursor.row
        self._push(self._decoder.batch(decoded, origins, rows_read))

    def _report_loss(self, message: str) -> None:
        """Warn that messages were removed unread, or raise if `on_missing` is "error"."""
        if self.on_missing == "error":
            raise StreamError(f"{message}. Pass on_missing='skip' to continue without the lost messages")
        logger.warning("%s; continuing there", message)

    def close(self) -> None:
        was_closed = self._closed
        super().close()
        self._retry.stop()
        with self._lock:
            if not was_closed:
                self._disconnect()
        self.dead_letter.close()


_MARK_PREFIX = "@mark:"  # a position holds the mark of a partition under "@mark:<partition>"
_MARK_INTERVAL = 16
_MAX_MARKS = 256


class Mark(NamedTuple):
    """The offset of a record that was read, and a CRC-32 of its content."""

    offset: Offset
    checksum: int


class ReadMarks:
    """Remembers some records read from each partition, to detect a replaced log.

    An offset does not identify the log that was read. So a resume reads a marked record again and compares it.
    If that record was removed (retention, compaction), a replaced log is not detected.

    Args:
        order: key function by which offsets are compared.
    """

    def __init__(self, order: Callable[[Offset], Any] = lambda offset: offset) -> None:
        self._order = order
        self._marks: dict[str, deque[Mark]] = {}

    def add(self, origins: Sequence[Span], content_of: Callable[[int], Iterable[bytes | None]]) -> None:
        """Mark every 16th record and the last of each partition; call it in order.

        `content_of(index)` is the content of the record at `origins[index]`.
        """
        newest = {origin.partition: index for index, origin in enumerate(origins)}
        for index in sorted({*range(0, len(origins), _MARK_INTERVAL), *newest.values()}):
            partition, offset, *_ = origins[index]
            marks = self._marks.setdefault(partition, deque())
            marks.append(Mark(offset, checksum(content_of(index))))
            if len(marks) > _MAX_MARKS:  # keep every second one; a position uses only the newest mark before it
                self._marks[partition] = deque([*list(marks)[:-1:2], marks[-1]])

    def begin(self, position: Position) -> None:
        """Load the marks in `position`; drop the marks of records that will be read again."""
        for name in [name for name in position if not name.startswith("@")]:
            cursor = Cursor.of(position[name])
            marks = [mark for mark in self._marks.get(name, ()) if self._is_before(mark, cursor)]
            parsed = self._parse(name, position.get(_MARK_PREFIX + name))
            if parsed is not None and (not marks or self._order(marks[-1].offset) < self._order(parsed.offset)):
                marks.append(parsed)
            self._marks[name] = deque(marks)

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
        raise StreamError(f"a position holds {_MARK_PREFIX + name!r} as [offset, checksum]; received {value!r}")

    def forget(self, partition: str) -> None:
        """Drop the marks of a partition after its log was replaced."""
        self._marks.pop(partition, None)

    def before(self, partition: str, cursor: Cursor) -> Mark | None:
        """Return the mark of the newest record that was read before `cursor`, even partly."""
        marks = list(self._marks.get(partition, ()))  # copied, because another thread may append
        return next((mark for mark in reversed(marks) if self._is_before(mark, cursor)), None)

    def _is_before(self, mark: Mark, cursor: Cursor) -> bool:
        offset, end = self._order(mark.offset), self._order(cursor.offset)
        return bool(offset < end or (offset == end and cursor.row))

    def resolve(self, position: Position) -> Position:
        """Return `position` with a mark for every partition that has one."""
        marks = {n: self.before(n, Cursor.of(value)) for n, value in position.items() if not n.startswith("@")}
        rest = {name: value for name, value in position.items() if not name.startswith(_MARK_PREFIX)}
        return rest | {_MARK_PREFIX + name: list(mark) for name, mark in marks.items() if mark is not None}


def checksum(content: Iterable[bytes | None]) -> int:
    """Return a CRC-32 of the parts; a missing part differs from an empty one."""
    total = 0
    for part in content:
        total = zlib.crc32(b"-" if part is None else b"+%d:" % len(part), total)
        total = zlib.crc32(part or b"", total)
    return total
