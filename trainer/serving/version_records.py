"""The versions of a published model: their needs, pins and servers.

A version's manifest says which version its changes follow, so every version can be put together again: the last full
one before it and the changes since. ``pins.json``, a document with a checksum of itself, names the version that servers
stay with and those that are kept.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..checkpoint import durable, manifest
from ..errors import CheckpointDamagedError, CheckpointError, CheckpointNotFoundError, FolderInUseError, did_you_mean
from .published import CURRENT, PINS, VERSION, Current, Part, known_versions

_LOCK_SECONDS = 30.0


@dataclass
class Pins:
    """Content of ``pins.json``.

    Attributes:
        served: the version that servers answer with; None for the newest.
        kept: numbers of versions that are not removed.
    """

    served: Part | None = None
    kept: tuple[int, ...] = ()

    def write(self, root: Path) -> None:
        """Write them; OSError when the file system refuses."""
        body = {**asdict(self), "kept": sorted(set(self.kept))}
        durable.replace_file(root / PINS, manifest.seal("pins", body))

    @classmethod
    def read(cls, root: Path) -> Pins:
        """Return the pins; empty ones without a file.

        Raises:
            CheckpointDamagedError: the file is damaged.
            CheckpointError: no permission, or written by a newer version of this package.
        """
        path = root / PINS
        if not os.path.lexists(path):
            return cls()
        body = manifest.unseal(path, "pins")
        try:
            served = None if body["served"] is None else Part.of(VERSION, body["served"])
            return cls(served, tuple(manifest.count(number) for number in body["kept"]))
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointDamagedError(f"{path} does not say what is pinned: {error!r}") from None


@contextlib.contextmanager
def changing(root: Path, *, wait: float = _LOCK_SECONDS) -> Iterator[None]:
    """Lock pinning and removing of versions against each other.

    FolderInUseError: others hold it for `wait` seconds.
    """
    deadline = time.monotonic() + wait
    while True:
        try:
            lock = durable.lock_folder(root)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise FolderInUseError(f"versions of {root} are being removed or pinned by another process") from None
            time.sleep(0.01)
    try:
        yield
    finally:
        os.close(lock)


def version_name(number: int) -> str:
    """Return the name of a version's folder."""
    return f"v_{number:08d}"


class VersionRecords:
    """The manifests of the versions in a published folder, each read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._bodies: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}

    def numbers(self) -> list[int]:
        """Return the numbers of the versions, ascending; CheckpointNotFoundError: none."""
        try:
            numbers = known_versions(self.root)
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointNotFoundError(f"no model has been published at {self.root}") from None
        present = {version_name(number) for number in numbers}
        for name in self._bodies.keys() - present:
            del self._bodies[name]
        return numbers

    def part(self, number: int) -> Part:
        """Return a version by its number.

        Raises:
            CheckpointNotFoundError: there is none; the message names those there are.
            CheckpointDamagedError: its manifest is damaged.
        """
        name = version_name(number)
        if not (self.root / name).is_dir():
            known = [str(known) for known in self.numbers()]
            listed = ", ".join(known if len(known) < 12 else [*known[:2], "...", *known[-8:]]) or "none"
            raise CheckpointNotFoundError(
                f"there is no version {number} in {self.root}; it has {listed}{did_you_mean(str(number), known)}"
            )
        return Part(name, manifest.digest(self.body(name)))

    def body(self, name: str) -> dict[str, Any]:
        """Return a version's manifest; CheckpointDamagedError: it has none that is sound."""
        path = self.root / name / manifest.MANIFEST
        with durable.reading(path):
            status = os.stat(path)
        mark = (status.st_mtime_ns, status.st_ino)
        if name not in self._bodies or self._bodies[name][0] != mark:
            self._bodies[name] = (mark, manifest.unseal(path, VERSION))
        return self._bodies[name][1]

    def release(self, version: int | Part) -> Current:
        """Return the record that serves a version, as of its publication.

        Raises:
            CheckpointNotFoundError: there is no such version.
            CheckpointDamagedError: a manifest that it needs is missing or damaged.
            CheckpointError: an earlier version of this package published it without a record of the files it needs.
        """
        part = self.part(version) if isinstance(version, int) else version
        body = self._checked(part)
        chain = [part]
        try:
            link = body
            while not link["restart"]:
                chain.append(Part.of(VERSION, link["before"]))
                link = self._checked(chain[-1])
            return Current.of(body, tuple(chain[::-1]), link["full"])
        except KeyError as error:
            raise CheckpointError(
                f"cannot go back to version {part.name} of {self.root}: an earlier version of this package published "
                f"it, and its manifests lack {error}"
            ) from None
        except (ValueError, TypeError) as error:
            raise CheckpointDamagedError(f"{self.root / part.name} does not describe a version: {error!r}") from None

    def _checked(self, part: Part) -> dict[str, Any]:
        body = self.body(part.name)
        if manifest.digest(body) != part.digest:
            raise CheckpointDamagedError(f"{self.root / part.name} is not the version that was published or pinned")
        return body

    def needed(self, newest: Current | None, keep: int) -> set[str]:
        """Return the names of the folders that must stay.

        These are the newest version, the `keep` before it, what is pinned or kept, and what they build on.
        CheckpointError: the pins cannot be read.
        """
        pins = Pins.read(self.root)
        names: set[str] = set()
        wanted: set[int | Part] = {*pins.kept, *([] if pins.served is None else [pins.served])}
        numbers = self.numbers()
        if newest is not None:
            names |= {newest.graph.name, *(part.name for part in newest.chain)}
            wanted |= {number for number in numbers if newest.version - keep <= number}
        for version in wanted:
            names.add(version_name(version) if isinstance(version, int) else version.name)
            with contextlib.suppress(CheckpointError):  # kept by name only: it cannot be served
                release = self.release(version)
                names |= {release.graph.name, *(part.name for part in release.chain)}
        return names

    def target(self, which: int | str) -> Current:
        """Return the version that a server is to answer with.

        Args:
            which: "served" for the pinned one, where nothing is pinned the newest; "newest"; or a number.

        Raises:
            CheckpointNotFoundError: nothing has been published, or no such version.
            CheckpointDamagedError: it is damaged.
        """
        if isinstance(which, int):
            return self.release(which)
        if which != "newest" and os.path.exists(self.root / CURRENT):  # a folder that may not be read is named below
            pinned = Pins.read(self.root).served
            if pinned is not None:
                return self.release(pinned)
        return Current.read(self.root)
