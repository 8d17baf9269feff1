"""Records of a published model's versions: dependencies, pins and kept versions.

A version's manifest names the version to which its changes apply. Every version can therefore be rebuilt from the last
full version and the changes since then. ``pins.json`` names the version that servers are pinned to and the versions to
keep; it contains its own checksum.
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
from .published import CURRENT, PINS, VERSION, Current, FolderRef, known_versions

_LOCK_SECONDS = 30.0


@dataclass
class Pins:
    """Content of ``pins.json``.

    Attributes:
        served: the version that servers are pinned to; None to follow the newest.
        kept: numbers of the versions that must not be removed.
    """

    served: FolderRef | None = None
    kept: tuple[int, ...] = ()

    def write(self, root: Path) -> None:
        """Write ``pins.json`` atomically; raise OSError if that fails."""
        body = {**asdict(self), "kept": sorted(set(self.kept))}
        durable.replace_file(root / PINS, manifest.seal("pins", body))

    @classmethod
    def read(cls, root: Path) -> Pins:
        """Read ``pins.json``; return empty pins if there is no file.

        Raises:
            CheckpointDamagedError: the file is damaged.
            CheckpointError: the file is not readable, or was written by a newer version of this package.
        """
        path = root / PINS
        if not os.path.lexists(path):
            return cls()
        body = manifest.unseal(path, "pins")
        try:
            served = None if body["served"] is None else FolderRef.of(VERSION, body["served"])
            return cls(served, tuple(manifest.checked_count(number) for number in body["kept"]))
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointDamagedError(f"{path} does not describe pins: {error!r}") from None


@contextlib.contextmanager
def version_lock(root: Path, *, wait: float = _LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock under which versions are pinned or removed.

    Raises:
        FolderInUseError: another process still holds the lock after `wait` seconds.
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
    """The manifests of the versions in a published folder; each is read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._bodies: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}

    def numbers(self) -> list[int]:
        """Return the numbers of the versions, ascending.

        Raises:
            CheckpointNotFoundError: the folder does not exist.
        """
        try:
            numbers = known_versions(self.root)
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointNotFoundError(f"no model has been published at {self.root}") from None
        present = {version_name(number) for number in numbers}
        for name in self._bodies.keys() - present:
            del self._bodies[name]
        return numbers

    def reference(self, number: int) -> FolderRef:
        """Return the reference to a version's folder.

        Raises:
            CheckpointNotFoundError: there is no such version; the message lists the existing versions.
            CheckpointDamagedError: the version's manifest is damaged.
        """
        name = version_name(number)
        if not (self.root / name).is_dir():
            known = [str(known) for known in self.numbers()]
            listed = ", ".join(known if len(known) < 12 else [*known[:2], "...", *known[-8:]]) or "none"
            raise CheckpointNotFoundError(
                f"there is no version {number} in {self.root}; it has {listed}{did_you_mean(str(number), known)}"
            )
        return FolderRef(name, manifest.digest(self.body(name)))

    def body(self, name: str) -> dict[str, Any]:
        """Return a version's manifest.

        Raises:
            CheckpointDamagedError: the manifest is missing or damaged.
        """
        path = self.root / name / manifest.MANIFEST
        with durable.reading(path):
            status = os.stat(path)
        identity = (status.st_mtime_ns, status.st_ino)
        if name not in self._bodies or self._bodies[name][0] != identity:
            self._bodies[name] = (identity, manifest.unseal(path, VERSION))
        return self._bodies[name][1]

    def record_of(self, version: int | FolderRef) -> Current:
        """Return the `Current` record of a version, as it was published.

        Raises:
            CheckpointNotFoundError: there is no such version.
            CheckpointDamagedError: a manifest that the version needs is missing or damaged.
            CheckpointError: the version was published by an earlier version of this package, which did not record the
                files it needs.
        """
        reference = self.reference(version) if isinstance(version, int) else version
        body = self._checked(reference)
        chain = [reference]
        try:
            link = body
            while not link["restart"]:
                chain.append(FolderRef.of(VERSION, link["before"]))
                link = self._checked(chain[-1])
            return Current.of(body, tuple(chain[::-1]), link["full"])
        except KeyError as error:
            raise CheckpointError(
                f"cannot go back to version {reference.name} of {self.root}: an earlier version of this package "
                f"published it, and its manifests lack {error}"
            ) from None
        except (ValueError, TypeError) as error:
            path = self.root / reference.name
            raise CheckpointDamagedError(f"{path} does not describe a version: {error!r}") from None

    def _checked(self, reference: FolderRef) -> dict[str, Any]:
        body = self.body(reference.name)
        if manifest.digest(body) != reference.digest:
            path = self.root / reference.name
            raise CheckpointDamagedError(f"{path} is not the version that was published or pinned")
        return body

    def folders_to_keep(self, newest: Current | None, keep: int) -> set[str]:
        """Return the names of the folders that must not be removed.

        These are the newest version, the `keep` versions before it, pinned and kept versions, and all folders that they
        build on.

        Raises:
            CheckpointError: the pins cannot be read.
        """
        pins = Pins.read(self.root)
        names: set[str] = set()
        versions: set[int | FolderRef] = {*pins.kept, *([] if pins.served is None else [pins.served])}
        numbers = self.numbers()
        if newest is not None:
            names |= {newest.graph.name, *(reference.name for reference in newest.chain)}
            # Count the versions: the numbers have gaps, where versions could not be written.
            earlier = [number for number in numbers if number < newest.version]
            versions |= {*earlier[-keep:], *(number for number in numbers if number >= newest.version)}
        for version in versions:
            names.add(version_name(version) if isinstance(version, int) else version.name)
            with contextlib.suppress(CheckpointError):  # keep only the version's own folder if it cannot be served
                record = self.record_of(version)
                names |= {record.graph.name, *(reference.name for reference in record.chain)}
        return names

    def target(self, which: int | str) -> Current:
        """Return the record of the version that a server should answer with.

        Args:
            which: "served" for the pinned version, or the newest if none is pinned; "newest"; or a number.

        Raises:
            CheckpointNotFoundError: nothing has been published, or there is no such version.
            CheckpointDamagedError: the version is damaged.
        """
        if isinstance(which, int):
            return self.record_of(which)
        if which != "newest" and os.path.exists(self.root / CURRENT):  # else `Current.read` raises the right error
            pinned = Pins.read(self.root).served
            if pinned is not None:
                return self.record_of(pinned)
        return Current.read(self.root)
