"""Detects rows that are added to a segment after it was read to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from ...errors import StreamError
from ...storage.cached_segments import CachedSegments
from ..batch import Cursor, Position
from ..formats.segments import Reader
from .segment import Fingerprint, OpenSegment, Progress

logger = logging.getLogger(__name__)

_WATCHED, _SAVED = 1000, 100  # number of newest segments watched; number of those stored in a position
_PAUSE = 1.0  # seconds between checks
_KEY = "@ended:"


@dataclass(slots=True)
class _Finished:
    end: int  # address at which reading ended
    later: str  # name of the segment read next; empty if not known yet
    address: int  # address up to which rows were read or counted as late
    read: Fingerprint
    seen: Any = None  # identity, size and modification time of the file at the last check
    warned: bool = False


class FinishedSegments:
    """Counts the rows that appear in finished segments, and warns once per segment.

    It watches the last 1000 segments. A position stores the last 100 of them, so that a resume detects rows added while
    no process was running.

    Attributes:
        late_rows: number of rows counted so far, including bad rows.
    """

    def __init__(self, folder: Path, open_reader: Callable[[Path], Reader], copies: CachedSegments | None) -> None:
        self.folder, self._open_reader, self._copies = folder, open_reader, copies
        self.late_rows = 0
        self._segments: dict[str, _Finished] = {}
        self._next_look = 0.0

    def add(self, segment: OpenSegment, later: str) -> None:
        """Watch a segment that has been read to its end; `later` is the next segment."""
        self._segments.pop(segment.name, None)
        self._segments[segment.name] = _Finished(segment.address, later, segment.address, segment.fingerprint)
        if len(self._segments) > _WATCHED:
            del self._segments[next(iter(self._segments))]

    def end_of(self, name: str) -> tuple[int, str] | None:
        """Return a segment's end address and the name of the next segment, or None."""
        segment = self._segments.get(name)
        return None if segment is None else (segment.end, segment.later)

    @staticmethod
    def holds(key: str) -> bool:
        """Return whether a key of a position belongs to this class."""
        return key.startswith(_KEY)

    def seek(self, position: Position, is_past: Callable[[str], bool]) -> None:
        """Watch the segments in a position; stop watching those that will be read again."""
        for key in filter(self.holds, position):
            at = Progress.of(Cursor.of(position[key]))
            self._segments.setdefault(at.name, _Finished(at.address, "", at.address, at.read))
        self._segments = {name: segment for name, segment in self._segments.items() if is_past(name)}
        self._next_look = 0.0

    def position(self) -> Position:
        """Return the watched segments as entries of a position."""
        newest = tuple(self._segments.items())[-_SAVED:]
        return {_KEY + name: Progress(name, kept.address, 0, kept.read).to_json() for name, kept in newest}

    def look(self, finished: bool) -> None:
        """Count new rows; at most once a second unless the stream has `finished`."""
        if not finished and monotonic() < self._next_look:
            return
        for name, segment in self._segments.items():
            try:
                if self._changed(name, segment):
                    self._count(name, segment, finished)
            except (OSError, StreamError):  # the file is gone, being written or damaged
                continue
        self._next_look = monotonic() + _PAUSE

    def _changed(self, name: str, segment: _Finished) -> bool:
        if self._copies is not None:
            seen: Any = self._copies.listed(name)
            if seen is None or not seen.size:
                return False
            changed = seen.size != segment.read.bytes if segment.seen is None else seen != segment.seen
        else:
            stat = (self.folder / name).stat()
            if not stat.st_size:
                return False
            seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            changed = seen != segment.seen
        segment.seen = seen
        return changed

    def _count(self, name: str, segment: _Finished, finished: bool) -> None:
        path = self.folder / name
        if self._copies is not None:
            self._copies.fetch(name)
        same = Fingerprint.of(path, segment.read.bytes) == segment.read
        reader, address, rows = self._open_reader(path), segment.address if same else 0, 0
        try:
            for piece in _pieces(reader, address, finished):
                address, rows = piece.end, rows + int(piece.decoded.counts.sum())
            if rows:
                segment.address = address
                segment.read = Fingerprint.of(path, reader.bytes_before(address)) or segment.read
        finally:
            reader.close()
            if self._copies is not None:
                self._copies.forget(name)
        self.late_rows += rows
        if rows and not segment.warned:
            segment.warned = True
            logger.warning(
                "segment %s %s after it had been read to its end, with %d rows that will not be read. Write new rows "
                "to a file with a later name. late_rows counts further rows; this segment is not reported again",
                name, "grew" if same else "was replaced or written again", rows,
            )  # fmt: skip


def _pieces(reader: Reader, address: int, finished: bool) -> Iterator[Any]:
    while (piece := reader.read(address, finished)) is not None:
        yield piece
        address = piece.end
