"""Which of a folder's segments are read by which process, and how far each is."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import StreamError
from .base import Position
from .fingerprint import Fingerprint

PARTITION = "files"
LANES = 251  # a prime: numbers that grow by a fixed step (minutes, thousands) still go to all lanes
END = "end"


def lane_of(name: str) -> int:
    """Return the lane of a segment, 0 to `LANES` - 1: its digits read as one number, or a sum of a name without any.

    It follows from the name alone, so every process knows it of segments to come, and it stays when others are deleted.
    Consecutive numbers go to the processes in turn.
    """
    digits = "".join(re.findall(r"\d", name))
    return (int(digits) if digits else zlib.crc32(name.encode("utf-8"))) % LANES


@dataclass(frozen=True)
class Place:
    """How far a lane has been read: all segments before `name`, and that one up to row `row` from `address` on."""

    name: str
    address: int = 0
    row: int = 0
    read: Fingerprint = field(default_factory=Fingerprint)
    done: bool = False


class Lanes:
    """The lanes that a process reads, each an ordered part of the folder with a place of its own.

    In a position a lane is the partition ``files:<lane>``; the offset ``<name>@end`` says that all its segments up to
    that name have been read. The partition ``files`` stands for the lanes that are not named.

    Args:
        rank, world: which lanes are read: those whose number leaves `rank` when divided by `world`.
    """

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self._floor: Place | None = None
        self.places: dict[int, Place] = {}

    def seek(self, position: Position) -> Position:
        """Begin at `position`; return the part of it that is about these lanes."""
        self._floor, self.places = None, {}
        kept: Position = {}
        for partition, value in position.items():
            kind, _, number = partition.partition(":")
            if partition.startswith("@"):
                continue
            if kind != PARTITION or not (number.isdecimal() or partition == PARTITION):
                raise StreamError(f"FileStream reads {PARTITION!r} and its lanes; the position is about {partition!r}")
            place = parse(value)
            if not number:
                self._begin_everywhere(place, kept)
            elif self.reads(int(number)):
                self.places[int(number)] = place
                kept[partition] = list(value)
        return kept

    def _begin_everywhere(self, place: Place, kept: Position) -> None:
        """Go on from the place of a process that read the whole folder alone."""
        self._floor = Place(place.name, done=True)
        kept[PARTITION] = [f"{place.name}@{END}", 0]
        lane = lane_of(place.name)
        if not place.done and self.reads(lane):
            self.places.setdefault(lane, place)
            kept.setdefault(f"{PARTITION}:{lane}", [_offset(place), place.row])

    def reads(self, lane: int) -> bool:
        """Return whether a lane is read here."""
        return lane % self.world == self.rank

    def place(self, name: str) -> Place | None:
        """Return how far the lane of a segment has been read, or None where nothing of it has."""
        return self.places.get(lane_of(name), self._floor)

    def wants(self, name: str) -> bool:
        """Return whether a segment, or the rest of it, is to be read here."""
        if not self.reads(lane_of(name)):
            return False
        place = self.place(name)
        return place is None or name > place.name or (name == place.name and not place.done)

    def finish(self, name: str) -> None:
        """Note that a segment has been read to its end."""
        self.places[lane_of(name)] = Place(name, done=True)

    def begun(self) -> list[Place]:
        """Return the places in the middle of a segment."""
        return [place for place in self.places.values() if not place.done and (place.address or place.row)]


def is_laned(position: Mapping[str, Any]) -> bool:
    """Return whether a position is one of several lanes."""
    return any(key.startswith(f"{PARTITION}:") for key in position) or str(position.get(PARTITION, [""])[0]).endswith(
        f"@{END}"
    )


def parse(value: Any) -> Place:
    """Return the place that ``[offset, row]`` of a position stands for.

    Raises:
        StreamError: it is none.
    """
    try:
        offset, row = value
        name, at, rest = str(offset).rpartition("@")
        if not at or not name:
            raise ValueError(offset)
        if rest == END:
            return Place(name, done=True)
        address, _, read = rest.partition(":")
        # Positions of old snapshots have no fingerprint.
        return Place(name, int(address or 0), int(row), Fingerprint.parse(read) if read else Fingerprint())
    except (TypeError, ValueError):
        raise StreamError(
            f"a position of FileStream is {{'files': ['<name>@<address>', row]}}; received {value!r}"
        ) from None


def _offset(place: Place) -> str:
    return f"{place.name}@{place.address}:{place.read}" if place.read.bytes else f"{place.name}@{place.address}"
