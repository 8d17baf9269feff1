"""Determines a folder's segments, their formats, and which process reads them."""

from __future__ import annotations

import fnmatch
import logging
import os
import re
import time
import zlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from time import monotonic
from typing import Any

from ...errors import ConfigurationError, StreamError
from ...storage.cached_segments import CHECKSUM_SUFFIX, CachedSegments
from ..batch import Cursor, Position, cursors_of
from .segment import Progress

logger = logging.getLogger(__name__)

_SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet",
}  # fmt: skip
_MAX_NAMED = 5
_PAUSE_FACTOR = 50  # pause before an unchanged folder is listed again, as a multiple of the duration of a listing
_MIN_PAUSE = 0.1  # seconds
_FINE_NS, _COARSE_NS = 50_000_000, 3_000_000_000  # two changes within this time may have the same modification time


def kind_of(name: str, format: str | None) -> str | None:
    """Return `format` if given, else the format of the suffix, or None if unknown."""
    return _SUFFIXES.get(Path(name).suffix.lower()) if format is None else format


def folder_and_name(path: Path) -> tuple[Path, str | None]:
    """Return the folder of `path`, and the file name if it is a single file."""
    try:
        if not path.exists():
            raise ConfigurationError(f"FileStream takes a folder or file that exists; received {str(path)!r}")
    except OSError as error:
        raise ConfigurationError(f"FileStream cannot look for {str(path)!r}: {error.strerror}") from error
    return (path, None) if path.is_dir() else (path.parent, path.name)


class SegmentNames:
    """Selects the segments of a folder, and warns of entries that are not segments.

    Attributes:
        names: the segments at the last listing, in order. The list object is replaced when a segment appears or
            disappears.
        entries: all names in the folder at the last listing.

    Args:
        pattern: shell pattern. None selects names with a known suffix; if `format` is given, names with a suffix of
            that format or without suffix.
        cache: copies segments of a remote store to the folder and lists that store; None for a local folder.
    """

    def __init__(
        self,
        folder: Path,
        single: str | None,
        pattern: str | None,
        format: str | None,
        cache: CachedSegments | None = None,
    ) -> None:
        self._cache = cache
        self.folder, self.single, self.pattern, self.format = folder, single, pattern, format
        self.names: list[str] = []
        self.entries: AbstractSet[str] = frozenset()
        self._known: set[str] = set()  # `names` as a set
        self._mtime: int | None = None  # the folder's modification time at the last listing
        self._next_listing = 0.0
        self._warned: set[str] = set()
        example = single or pattern
        if example and kind_of(example, format) is None:
            has_literal_suffix = not any(sign in (Path(example).suffix or example) for sign in "*?[")
            if single or has_literal_suffix:
                raise ConfigurationError(
                    f"the format of {folder / example} is not known from its suffix; pass format= one of jsonl, csv, "
                    f"parquet (suffixes known: {', '.join(_SUFFIXES)})"
                )

    def refresh(self, force: bool = True) -> None:
        """Update `names` and `entries` from the folder.

        Args:
            force: whether to list an unchanged folder too. If False, the folder is listed if its modification time has
                changed or the last listing is old: some file systems, and all remote stores, do not maintain that time.
        """
        started = monotonic()
        is_due = force or started >= self._next_listing or self._mtime is None
        if not is_due and self._settled_mtime() == self._mtime:
            return
        self._mtime = self._settled_mtime()
        if self._cache is not None:
            present: Mapping[str, object] = self._cache.list_files()
        else:
            with os.scandir(self.folder) as entries:
                present = {entry.name: entry for entry in entries}
        known = self._known
        segments = {name for name in present if name in known or (self.is_segment(name) and _is_file(present[name]))}
        if segments != known:
            self._known, self.names = segments, sorted(segments)
        self.entries = present.keys()
        if not self.single:
            self._warn_of_other_files(present.keys() - segments)
        self._next_listing = monotonic() + max(_MIN_PAUSE, _PAUSE_FACTOR * (monotonic() - started))

    def _settled_mtime(self) -> int | None:
        """Return the folder's modification time, or None if it is too recent to trust."""
        if self._cache is not None:
            return 0  # a store has no modification time; it is listed at fixed intervals
        modified = os.stat(self.folder).st_mtime_ns
        coarse = modified % 1_000_000_000 == 0  # the file system has a resolution of one or two seconds
        return None if abs(time.time_ns() - modified) < (_COARSE_NS if coarse else _FINE_NS) else modified

    def _warn_of_other_files(self, names: AbstractSet[str]) -> None:
        new = sorted({name for name in names if not _is_hidden(name)} - self._warned)
        if new:
            self._warned.update(new)
            shown = ", ".join(new[:_MAX_NAMED])
            shown += f" and {len(new) - _MAX_NAMED} more" if len(new) > _MAX_NAMED else ""
            hint = "; pass pattern= or format= to read them" if self.pattern is None else ""
            logger.warning("ignored in %s because they are not segments: %s%s", self.folder, shown, hint)

    def is_segment(self, name: str) -> bool:
        """Return whether a file of this name is a segment."""
        if self.single:
            return name == self.single
        if _is_hidden(name) or Path(name).name != name:
            return False
        if self.pattern is not None:
            return fnmatch.fnmatch(name, self.pattern) and kind_of(name, self.format) is not None
        suffix = Path(name).suffix.lower()
        kind = _SUFFIXES.get(suffix)
        return kind is not None if self.format is None else not suffix or kind == kind_of(name, self.format)


def _is_file(entry: Any) -> bool:
    return entry.is_file() if isinstance(entry, os.DirEntry) else bool(entry)


def _is_hidden(name: str) -> bool:
    return name[:1] in ("_", ".") or name.endswith((".tmp", CHECKSUM_SUFFIX))


PARTITION = "files"
LANES = 251  # a prime, so that numbers with a fixed step (minutes, thousands) still cover all lanes


def lane_of(name: str) -> int:
    """Return a segment's lane: the number in its name, or a hash, modulo `LANES`.

    The lane depends only on the name, so all processes agree on it, and deleting other segments does not change it.
    Segments with consecutive numbers are in consecutive lanes, which the processes read in turn.
    """
    digits = "".join(re.findall(r"\d", name))
    return (int(digits) if digits else zlib.crc32(name.encode("utf-8"))) % LANES


class Lanes:
    """The lanes that a process reads: ordered parts of the folder.

    A process reads the lanes with ``lane % world == rank``. In a position, a lane is the partition ``files:<lane>``;
    the offset ``<name>@end`` means that all segments of the lane up to that name have been read. The partition
    ``files`` stands for all lanes that the position does not name.

    Attributes:
        progress_of: progress of each lane begun.
    """

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self._default_progress: Progress | None = None  # progress of the lanes that are not in `progress_of`
        self.progress_of: dict[int, Progress] = {}

    def seek(self, position: Position) -> Position:
        """Continue at `position`; return its entries for these lanes."""
        self._default_progress, self.progress_of = None, {}
        own_position: Position = {}
        for partition, cursor in cursors_of(self, position, position).items():
            prefix, _, number = partition.partition(":")
            if prefix != PARTITION or not (number.isdecimal() or partition == PARTITION):
                raise StreamError(f"FileStream reads {PARTITION!r} and its lanes; the position contains {partition!r}")
            progress = Progress.of(cursor)
            if not number:
                self._begin_everywhere(progress, own_position)
            elif self.reads(int(number)):
                self.progress_of[int(number)] = progress
                own_position[partition] = cursor.to_json()
        return own_position

    def _begin_everywhere(self, progress: Progress, own_position: Position) -> None:
        """Continue at the progress of a single process that read the whole folder."""
        self._default_progress = Progress(progress.name, done=True)
        own_position[PARTITION] = self._default_progress.to_json()
        lane = lane_of(progress.name)
        if not progress.done and self.reads(lane):
            self.progress_of.setdefault(lane, progress)
            own_position.setdefault(f"{PARTITION}:{lane}", progress.to_json())

    def reads(self, lane: int) -> bool:
        """Return whether this process reads a lane."""
        return lane % self.world == self.rank

    def progress(self, name: str) -> Progress | None:
        """Return the progress of the lane of a segment, or None if it has not begun."""
        return self.progress_of.get(lane_of(name), self._default_progress)

    def must_read(self, name: str) -> bool:
        """Return whether this process must still read a segment, or the rest of it."""
        if not self.reads(lane_of(name)):
            return False
        progress = self.progress(name)
        return progress is None or name > progress.name or (name == progress.name and not progress.done)

    def finish(self, name: str) -> None:
        """Record that a segment has been read to its end."""
        self.progress_of[lane_of(name)] = Progress(name, done=True)

    def open_segments(self) -> list[Progress]:
        """Return the progress of lanes that have read part of a segment."""
        return [lane for lane in self.progress_of.values() if not lane.done and (lane.address or lane.row)]


def has_lanes(position: Position) -> bool:
    """Return whether a position has lanes."""
    if PARTITION in position and Progress.of(Cursor.of(position[PARTITION])).done:
        return True
    return any(key.startswith(f"{PARTITION}:") for key in position)
