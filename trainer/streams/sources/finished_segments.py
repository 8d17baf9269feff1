"""Detects rows that are added to a segment after it was read to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable
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
_CHECK_SECONDS = 1.0
_KEY_PREFIX = "@ended:"


@dataclass(slots=True)
class _Finished:
    end: int  # address at which reading ended
    next_name: str  # name of the segment read next; empty if not known yet
    address: int  # address up to which rows were read or counted as late
    fingerprint: Fingerprint
    last_stat: Any = None  # identity, size and modification time of the file at the last check
    warned: bool = False


class FinishedSegments:
    """Counts the rows that appear in finished segments, and warns once per segment.

    It watches the last 1000 segments. A position stores the last 100 of them, so that a resume detects rows added while
    no process was running.

    Attributes:
        late_rows: number of rows counted so far, including bad rows.
    """

    def __init__(self, folder: Path, open_reader: Callable[[Path], Reader], cache: CachedSegments | None) -> None:
        self.folder, self._open_reader, self._cache = folder, open_reader, cache
        self.late_rows = 0
        self._segments: dict[str, _Finished] = {}
        self._next_check = 0.0

    def add(self, segment: OpenSegment, next_name: str) -> None:
        """Watch a segment that has been read to its end; `next_name` is the next segment."""
        self._segments.pop(segment.name, None)
        self._segments[segment.name] = _Finished(segment.address, next_name, segment.address, segment.fingerprint)
        if len(self._segments) > _WATCHED:
            del self._segments[next(iter(self._segments))]

    def end_of(self, name: str) -> tuple[int, str] | None:
        """Return a segment's end address and the name of the next segment, or None."""
        segment = self._segments.get(name)
        return None if segment is None else (segment.end, segment.next_name)

    @staticmethod
    def is_own_key(key: str) -> bool:
        """Return whether a key of a position belongs to this class."""
        return key.startswith(_KEY_PREFIX)

    def seek(self, position: Position, is_past: Callable[[str], bool]) -> None:
        """Watch the segments in a position, except those that will be read again."""
        for key in filter(self.is_own_key, position):
            progress = Progress.of(Cursor.of(position[key]))
            finished = _Finished(progress.address, "", progress.address, progress.fingerprint)
            self._segments.setdefault(progress.name, finished)
        self._segments = {name: segment for name, segment in self._segments.items() if is_past(name)}
        self._next_check = 0.0

    def position(self) -> Position:
        """Return the watched segments as entries of a position."""
        newest = tuple(self._segments.items())[-_SAVED:]
        return {_KEY_PREFIX + name: Progress(name, s.address, 0, s.fingerprint).to_json() for name, s in newest}

    def check(self, finished: bool) -> None:
        """Count new rows, at most once a second until the stream has `finished`."""
        if not finished and monotonic() < self._next_check:
            return
        for name, segment in self._segments.items():
            try:
                if self._has_changed(name, segment):
                    self._count_new_rows(name, segment, finished)
            except (OSError, StreamError):  # the file is gone, being written or damaged
                continue
        self._next_check = monotonic() + _CHECK_SECONDS

    def _has_changed(self, name: str, segment: _Finished) -> bool:
        if self._cache is not None:
            stat: Any = self._cache.entry_of(name)
            if stat is None or not stat.size:
                return False
            changed = stat.size != segment.fingerprint.bytes if segment.last_stat is None else stat != segment.last_stat
        else:
            file = (self.folder / name).stat()
            if not file.st_size:
                return False
            stat = (file.st_ino, file.st_size, file.st_mtime_ns)
            changed = stat != segment.last_stat
        segment.last_stat = stat
        return changed

    def _count_new_rows(self, name: str, segment: _Finished, finished: bool) -> None:
        path = self.folder / name
        if self._cache is not None:
            self._cache.fetch(name)
        is_unchanged = Fingerprint.of(path, segment.fingerprint.bytes) == segment.fingerprint
        reader, address, rows = self._open_reader(path), segment.address if is_unchanged else 0, 0
        try:
            while (piece := reader.read(address, finished)) is not None:
                address, rows = piece.end, rows + int(piece.decoded.counts.sum())
            if rows:
                segment.address = address
                segment.fingerprint = Fingerprint.of(path, reader.bytes_before(address)) or segment.fingerprint
        finally:
            reader.close()
            if self._cache is not None:
                self._cache.evict(name)
        self.late_rows += rows
        if rows and not segment.warned:
            segment.warned = True
            logger.warning(
                "segment %s %s after it had been read to its end, with %d rows that will not be read. Write new rows "
                "to a file with a later name. late_rows counts further rows; this segment is not reported again",
                name, "grew" if is_unchanged else "was replaced or written again", rows,
            )  # fmt: skip
