"""Divides a folder's segments among processes, and keeps how far each part has been read."""

from __future__ import annotations

import re
import zlib

from ...errors import StreamError
from ..batch import Cursor, Position, cursors_of
from .segment import Progress

PARTITION = "files"
LANES = 251  # a prime: numbers that grow by a fixed step (minutes, thousands) still go to all lanes


def lane_of(name: str) -> int:
    """Return the lane of a segment, 0 to `LANES` - 1: its digits read as one number, or a sum of a name without any.

    It follows from the name alone, so every process knows it of segments to come, and it stays when others are deleted.
    Consecutive numbers go to the processes in turn.
    """
    digits = "".join(re.findall(r"\d", name))
    return (int(digits) if digits else zlib.crc32(name.encode("utf-8"))) % LANES


class Lanes:
    """The lanes that a process reads, each an ordered part of the folder with a `Progress` of its own.

    In a position a lane is the partition ``files:<lane>``; the offset ``<name>@end`` says that all its segments up to
    that name have been read. The partition ``files`` stands for the lanes that are not named.

    Args:
        rank, world: which lanes are read: those whose number leaves `rank` when divided by `world`.
    """

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self._floor: Progress | None = None
        self.progress_of: dict[int, Progress] = {}

    def seek(self, position: Position) -> Position:
        """Begin at `position`; return the part of it that is about these lanes."""
        self._floor, self.progress_of = None, {}
        kept: Position = {}
        for partition, cursor in cursors_of(self, position, position).items():
            kind, _, number = partition.partition(":")
            if kind != PARTITION or not (number.isdecimal() or partition == PARTITION):
                raise StreamError(f"FileStream reads {PARTITION!r} and its lanes; the position is about {partition!r}")
            progress = Progress.of(cursor)
            if not number:
                self._begin_everywhere(progress, kept)
            elif self.reads(int(number)):
                self.progress_of[int(number)] = progress
                kept[partition] = cursor.to_json()
        return kept

    def _begin_everywhere(self, progress: Progress, kept: Position) -> None:
        """Go on after a process that read the whole folder alone."""
        self._floor = Progress(progress.name, done=True)
        kept[PARTITION] = self._floor.to_json()
        lane = lane_of(progress.name)
        if not progress.done and self.reads(lane):
            self.progress_of.setdefault(lane, progress)
            kept.setdefault(f"{PARTITION}:{lane}", progress.to_json())

    def reads(self, lane: int) -> bool:
        """Return whether a lane is read here."""
        return lane % self.world == self.rank

    def progress(self, name: str) -> Progress | None:
        """Return how far the lane of a segment has been read, or None where it has not been begun."""
        return self.progress_of.get(lane_of(name), self._floor)

    def wants(self, name: str) -> bool:
        """Return whether a segment, or the rest of it, is to be read here."""
        if not self.reads(lane_of(name)):
            return False
        progress = self.progress(name)
        return progress is None or name > progress.name or (name == progress.name and not progress.done)

    def finish(self, name: str) -> None:
        """Note that a segment has been read to its end."""
        self.progress_of[lane_of(name)] = Progress(name, done=True)

    def begun(self) -> list[Progress]:
        """Return the progress_of in the middle of a segment."""
        return [
            progress
            for progress in self.progress_of.values()
            if not progress.done and (progress.address or progress.row)
        ]


def is_laned(position: Position) -> bool:
    """Return whether a position is about several lanes."""
    if PARTITION in position and Progress.of(Cursor.of(position[PARTITION])).done:
        return True
    return any(key.startswith(f"{PARTITION}:") for key in position)
