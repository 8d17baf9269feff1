"""Lists, pins, rolls back, promotes and keeps published versions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..checkpoint import durable
from ..errors import CheckpointError, CheckpointNotFoundError, ConfigurationError
from ..storage.location import is_url
from .published import VERSION, Current, Folder, FolderRef, locked
from .version_records import Pins, VersionRecords, version_lock, version_name


@dataclass(frozen=True)
class Version:
    """A published version.

    Attributes:
        number: version number, as in `ServedModel.version`.
        step: optimizer steps that the version was trained for; None if the version cannot be served.
        published: time of publication, seconds since the epoch; None if the version cannot be served.
        event_time: time of the newest trained event, seconds since the epoch, or None.
        bytes: size of the version's folder, without the versions it builds on.
        marks: the applicable marks among "newest", "served", "pinned" and "kept".
        problem: why the version cannot be served, or None.
    """

    number: int
    step: int | None
    published: float | None
    event_time: float | None
    bytes: int
    marks: tuple[str, ...]
    problem: str | None


class Versions:
    """The versions in a published folder; selects the version that servers use.

    Servers answer with the newest version until one is pinned. A running `ServedModel` applies a change within its
    `poll` interval. Publishing continues while a version is pinned. Pinned and kept versions are not removed.

    Args:
        root: folder that `Publish` writes to.

    Raises:
        CheckpointNotFoundError: nothing has been published there.
        ConfigurationError: `root` is the URL of a mirror.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        if is_url(root):
            raise ConfigurationError(
                f"Versions takes the folder that Publish writes to, whose mirror follows it; received the URL {root}"
            )
        self.root = durable.resolve_path(root)
        self._records = VersionRecords(self.root)
        self.newest()

    def newest(self) -> int:
        """Return the number of the newest version."""
        return Current.read(self.root).version

    def served(self) -> int:
        """Return the number of the version that servers answer with."""
        return self._records.target("served").version

    def list(self) -> list[Version]:
        """Return all versions, the oldest first; `problem` says why one cannot be served."""
        pins, newest = Pins.read(self.root), self.newest()
        served = version_name(newest) if pins.served is None else pins.served.name
        versions = []
        for number in self._records.numbers():
            states = {
                "newest": number == newest,
                "served": version_name(number) == served,
                "pinned": pins.served is not None and version_name(number) == served,
                "kept": number in pins.kept,
            }
            marks = tuple(name for name, applies in states.items() if applies)
            try:
                size = sum(path.stat().st_size for path in (self.root / version_name(number)).iterdir())
            except FileNotFoundError:  # removed in the meantime
                continue
            try:
                record = self._records.record_of(number)
                details: tuple[Any, ...] = (record.step, record.time, record.event_time, size, marks, None)
            except CheckpointError as error:
                details = (None, None, None, size, marks, str(error))
            versions.append(Version(number, *details))
        return versions

    def pin(self, version: int | None = None) -> int:
        """Pin servers to a version until another is pinned or `follow` is called.

        Args:
            version: number of the version; None for the version that is served now.

        Returns:
            The number of the pinned version.

        Raises:
            CheckpointNotFoundError: there is no such version.
            CheckpointDamagedError: the version, or one that it builds on, is missing or damaged. The pins do not
                change.
        """
        with self._edit_pins() as pins:
            return self._pin(pins, self._served(pins) if version is None else version)

    def roll_back(self, version: int | None = None) -> int:
        """Move servers back to an older version and pin it.

        Args:
            version: number of the version; None for the newest intact version before the served one.

        Returns:
            The number of the pinned version.

        Raises:
            ConfigurationError: the version is not older than the served one.
            CheckpointNotFoundError: there is no such version, or none before the served one.
            CheckpointDamagedError: as for `pin`.
        """
        with self._edit_pins() as pins:
            served = self._served(pins)
            if version is None:
                version = self._intact_version_before(served)
            elif version >= served:
                raise ConfigurationError(
                    f"cannot roll back to version {version}: servers answer with version {served}; give an older one, "
                    "or use promote for a newer one"
                )
            return self._pin(pins, version)

    def promote(self, version: int | None = None) -> int:
        """Pin servers to a newer version; `follow` returns them to the newest.

        Args:
            version: number of the version; None for the newest.

        Returns:
            The number of the pinned version.

        Raises:
            ConfigurationError: the version is older than the served one.
            CheckpointNotFoundError, CheckpointDamagedError: as for `pin`.
        """
        with self._edit_pins() as pins:
            served = self._served(pins)
            if version is None:
                version = self.newest()
            if version < served:
                raise ConfigurationError(
                    f"cannot promote version {version}: servers answer with version {served}, which is newer; use "
                    "roll_back for an older one"
                )
            return self._pin(pins, version)

    def follow(self) -> int:
        """Let servers follow the newest version again; return its number."""
        with self._edit_pins() as pins:
            pins.served = None
        return self.newest()

    def keep(self, version: int) -> None:
        """Protect a version and those it builds on from removal; raise as `pin` does."""
        with self._edit_pins() as pins:
            self._check_version(version, whole=False)
            pins.kept += (version,)

    def release(self, version: int) -> None:
        """Undo `keep`.

        Raises:
            ConfigurationError: the version is not kept.
        """
        with self._edit_pins() as pins:
            if version not in pins.kept:
                listed = ", ".join(map(str, pins.kept)) or "none"
                raise ConfigurationError(f"version {version} is not kept; kept versions: {listed}")
            pins.kept = tuple(number for number in pins.kept if number != version)

    # -- changing the pins ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _edit_pins(self) -> Iterator[Pins]:
        """Lock and yield the pins; write them if the ``with`` block changed them."""
        with version_lock(self.root):
            pins = Pins.read(self.root)
            before = replace(pins)
            yield pins
            if pins != before:
                with durable.writing("pins", self.root):
                    pins.write(self.root)

    def _pin(self, pins: Pins, version: int) -> int:
        pins.served = self._check_version(version)
        return version

    def _served(self, pins: Pins) -> int:
        return self.newest() if pins.served is None else int(pins.served.name[2:])

    def _intact_version_before(self, served: int) -> int:
        for number in reversed(self._records.numbers()):
            if number < served:
                try:
                    self._check_version(number)
                    return number
                except CheckpointError:
                    continue
        raise CheckpointNotFoundError(
            f"there is no version before {served} in {self.root} that servers can go back to; "
            "Publish(keep=...) sets how many are kept"
        )

    def _check_version(self, version: int, *, whole: bool = True) -> FolderRef:
        """Check the manifests that a version needs, and with `whole` every file too."""
        reference = self._records.reference(version)
        record = self._records.record_of(reference)
        with locked(self.root, record):
            for link in record.chain:
                folder = Folder(self.root, VERSION, link)
                if whole:
                    folder.verify()
        return reference
