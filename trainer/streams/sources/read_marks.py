"""Checksums of records that were read, used to detect that a log was replaced."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ...errors import StreamError
from ..batch import Cursor, Offset, Position, Span

_PREFIX = "@mark:"  # in a position, before the name of a partition
_EVERY = 16
_KEPT = 256


class Mark(NamedTuple):
    """A record that was read: its offset, and a CRC-32 of its content."""

    offset: Offset
    checksum: int


class ReadMarks:
    """Remembers some records read from each partition, newer ones more densely.

    A position says how far a log was read, but not which log it was. With the mark of an earlier record, that record
    can be read again and compared. If it was removed (retention, compaction), nothing can be concluded.

    Args:
        order: sort key for offsets of one partition.
    """

    def __init__(self, order: Callable[[Offset], Any] = lambda offset: offset) -> None:
        self._order = order
        self._marks: dict[str, deque[Mark]] = {}

    def add(self, partition: str, offset: Offset, content: Iterable[bytes | None]) -> None:
        """Remember a record; records of a partition must come in order."""
        marks = self._marks.setdefault(partition, deque())
        marks.append(Mark(offset, checksum(content)))
        if len(marks) > _KEPT:  # older marks are only needed for prefetched rows and may be sparse
            self._marks[partition] = deque([*list(marks)[:-1:2], marks[-1]])

    def begin(self, position: Position) -> None:
        """Load the marks of `position`; drop those at or after it, which are reread.

        Raises:
            StreamError: the position has an invalid mark.
        """
        for name, value in position.items():
            if name.startswith("@"):
                continue
            kept = [mark for mark in self._marks.get(name, ()) if self._is_before(mark, Cursor.of(value))]
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
        """Drop the marks of a partition whose log was replaced."""
        self._marks.pop(partition, None)

    def before(self, partition: str, cursor: Cursor) -> Mark | None:
        """Return the newest mark before `cursor`, or partially read at it, or None."""
        marks = list(self._marks.get(partition, ()))  # another thread may append
        return next((mark for mark in reversed(marks) if self._is_before(mark, cursor)), None)

    def _is_before(self, mark: Mark, cursor: Cursor) -> bool:
        at, end = self._order(mark.offset), self._order(cursor.offset)
        return bool(at < end or (at == end and cursor.row))

    def resolve(self, position: Position) -> Position:
        """Return `position` with a mark for every partition that has one."""
        resolved = {name: value for name, value in position.items() if not name.startswith(_PREFIX)}
        for name in [name for name in resolved if not name.startswith("@")]:
            mark = self.before(name, Cursor.of(resolved[name]))
            if mark is not None:
                resolved[_PREFIX + name] = list(mark)
        return resolved


def checksum(content: Iterable[bytes | None]) -> int:
    """Return a CRC-32 of the parts; distinguishes a missing part from an empty one."""
    total = 0
    for part in content:
        total = zlib.crc32(b"-" if part is None else b"+%d:" % len(part), total)
        total = zlib.crc32(part or b"", total)
    return total


def indices_to_mark(origins: Sequence[Span]) -> list[int]:
    """Return the records to mark: every 16th, and each partition's last."""
    newest = {origin.partition: index for index, origin in enumerate(origins)}
    return sorted({*range(0, len(origins), _EVERY), *newest.values()})
