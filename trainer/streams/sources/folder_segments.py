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
from ...storage.cached_segments import CachedSegments
from ..batch import Cursor, Position, cursors_of
from .segment import CHECKSUM_SUFFIX, Progress

logger = logging.getLogger(__name__)

_SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet",
}  # fmt: skip
_SHOWN = 5
_PAUSE = 50  # pause before an unchanged folder is listed again, as a multiple of the duration of a listing
_MIN_PAUSE = 0.1  # seconds
_FINE, _COARSE = 50_000_000, 3_000_000_000  # nanoseconds within which two changes may have equal modification times


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
        copies: lists a remote store whose segments are copied to the folder; None to list the folder itself.
    """

    def __init__(
        self,
        folder: Path,
        single: str | None,
        pattern: str | None,
        format: str | None,
        copies: CachedSegments | None = None,
    ) -> None:
        self._copies = copies
        self.folder, self.single, self.pattern, self.format = folder, single, pattern, format
        self.names: list[str] = []
        self.entries: AbstractSet[str] = frozenset()
        self._known: set[str] = set()  # the set of `names`
        self._settled: int | None = None  # the folder's modification time at the last listing
        self._due = 0.0
        self._warned: set[str] = set()
        wanted = single or pattern
        if wanted and kind_of(wanted, format) is None:
            spelled_out = not any(sign in (Path(wanted).suffix or wanted) for sign in "*?[")
            if single or spelled_out:
                raise ConfigurationError(
                    f"the format of {folder / wanted} is not known from its suffix; pass format= one of jsonl, csv, "
                    f"parquet (suffixes known: {', '.join(_SUFFIXES)})"
                )

    def look(self, now: bool = True) -> None:
        """Update `names` and `entries` from the folder.

        Args:
            now: list the folder in any case. If False, list it only if its modification time has changed, or if the
                last listing is old: some file systems, and all remote stores, do not maintain that time.
        """
        began = monotonic()
        if not now and began < self._due and self._settled is not None and self._modified() == self._settled:
            return
        self._settled = self._modified()
        if self._copies is not None:
            present: Mapping[str, object] = self._copies.look()
        else:
            with os.scandir(self.folder) as entries:
                present = {entry.name: entry for entry in entries}
        known = self._known
        segments = {name for name in present if name in known or (self.takes(name) and _is_file(present[name]))}
        if segments != known:
            self._known, self.names = segments, sorted(segments)
        self.entries = present.keys()
        if not self.single:
            self._warn_of_others(present.keys() - segments)
        self._due = monotonic() + max(_MIN_PAUSE, _PAUSE * (monotonic() - began))

    def _modified(self) -> int | None:
        """Return the folder's modification time, or None if too recent to be reliable."""
        if self._copies is not None:
            return 0  # a store has no such time; it is listed when due
        modified = os.stat(self.folder).st_mtime_ns
        coarse = modified % 1_000_000_000 == 0  # the file system has a resolution of one or two seconds
        return None if abs(time.time_ns() - modified) < (_COARSE if coarse else _FINE) else modified

    def _warn_of_others(self, names: AbstractSet[str]) -> None:
        new = sorted({name for name in names if not _private(name)} - self._warned)
        if new:
            self._warned.update(new)
            shown = ", ".join(new[:_SHOWN]) + (f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else "")
            hint = "; pass pattern= or format= to read them" if self.pattern is None else ""
            logger.warning("ignored in %s because they are not segments: %s%s", self.folder, shown, hint)

    def takes(self, name: str) -> bool:
        """Return whether a file of this name is a segment."""
        if self.single:
            return name == self.single
        if _private(name) or Path(name).name != name:
            return False
        if self.pattern is not None:
            return fnmatch.fnmatch(name, self.pattern) and kind_of(name, self.format) is not None
        suffix = Path(name).suffix.lower()
        kind = _SUFFIXES.get(suffix)
        return kind is not None if self.format is None else not suffix or kind == kind_of(name, self.format)


def _is_file(entry: Any) -> bool:
    return entry.is_file() if isinstance(entry, os.DirEntry) else bool(entry)


def _private(name: str) -> bool:
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
        self._floor: Progress | None = None  # progress of the lanes that are not in `progress_of`
        self.progress_of: dict[int, Progress] = {}

    def seek(self, position: Position) -> Position:
        """Continue at `position`; return its entries for these lanes."""
        self._floor, self.progress_of = None, {}
        kept: Position = {}
        for partition, cursor in cursors_of(self, position, position).items():
            kind, _, number = partition.partition(":")
            if kind != PARTITION or not (number.isdecimal() or partition == PARTITION):
                raise StreamError(f"FileStream reads {PARTITION!r} and its lanes; the position contains {partition!r}")
            progress = Progress.of(cursor)
            if not number:
                self._begin_everywhere(progress, kept)
            elif self.reads(int(number)):
                self.progress_of[int(number)] = progress
                kept[partition] = cursor.to_json()
        return kept

    def _begin_everywhere(self, progress: Progress, kept: Position) -> None:
        """Continue at the progress of a single process that read the whole folder."""
        self._floor = Progress(progress.name, done=True)
        kept[PARTITION] = self._floor.to_json()
        lane = lane_of(progress.name)
        if not progress.done and self.reads(lane):
            self.progress_of.setdefault(lane, progress)
            kept.setdefault(f"{PARTITION}:{lane}", progress.to_json())

    def reads(self, lane: int) -> bool:
        """Return whether this process reads a lane."""
        return lane % self.world == self.rank

    def progress(self, name: str) -> Progress | None:
        """Return the progress of the lane of a segment, or None if it has not begun."""
        return self.progress_of.get(lane_of(name), self._floor)

    def wants(self, name: str) -> bool:
        """Return whether this process must still read a segment, or the rest of it."""
        if not self.reads(lane_of(name)):
            return False
        progress = self.progress(name)
        return progress is None or name > progress.name or (name == progress.name and not progress.done)

    def finish(self, name: str) -> None:
        """Record that a segment has been read to its end."""
        self.progress_of[lane_of(name)] = Progress(name, done=True)

    def open_segments(self) -> list[Progress]:
        """Return the progress of lanes that stand inside a segment."""
        return [begun for begun in self.progress_of.values() if not begun.done and (begun.address or begun.row)]


def is_laned(position: Position) -> bool:
    """Return whether a position has lanes."""
    if PARTITION in position and Progress.of(Cursor.of(position[PARTITION])).done:
        return True
    return any(key.startswith(f"{PARTITION}:") for key in position)
