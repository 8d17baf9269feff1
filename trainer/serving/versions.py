"""Lists, pins, rolls back, promotes and keeps published versions."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from ..checkpoint import durable
from ..errors import CheckpointError, CheckpointNotFoundError, ConfigurationError
from .published import VERSION, Current, Folder, Part, locked
from .version_records import Pins, VersionRecords, changing, version_name


@dataclass(frozen=True)
class Version:
    """A published version.

    Attributes:
        number: its number, which `ServedModel.version` shows.
        step: optimizer steps it has seen; None where `problem` says that it cannot be served.
        published: when it was published, seconds since the epoch; None likewise.
        event_time: its newest event, seconds since the epoch, or None.
        bytes: size of its own folder; the versions it builds on come on top.
        marks: which of "newest", "served", "pinned", "kept" and "shadow" it is.
        problem: why it cannot be served, or None.
    """

    number: int
    step: int | None
    published: float | None
    event_time: float | None
    bytes: int
    marks: tuple[str, ...]
    problem: str | None


class Versions:
    """The versions in a published folder, and which of them servers answer with.

    Servers answer with the newest version until one is pinned; a running `ServedModel` follows a change within its
    `poll`. Publishing goes on meanwhile, and versions that are pinned, kept or compared are not removed.

    Args:
        root: folder that `Publish` writes to.

    Raises:
        CheckpointNotFoundError: nothing has been published there.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = durable.resolved(root)
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
                "shadow": number == pins.shadow,
            }
            marks = tuple(name for name, holds in states.items() if holds)
            folder = self.root / version_name(number)
            try:
                size = sum(path.stat().st_size for path in folder.iterdir())
            except FileNotFoundError:  # removed meanwhile
                continue
            try:
                release = self._records.release(number)
                about: tuple[Any, ...] = (release.step, release.time, release.event_time, size, marks, None)
            except CheckpointError as error:
                about = (None, None, None, size, marks, str(error))
            versions.append(Version(number, *about))
        return versions

    def pin(self, version: int | None = None) -> int:
        """Pin servers to a version until the next choice, or `follow`.

        Args:
            version: its number; None for the one that is served now.

        Returns:
            Its number.

        Raises:
            CheckpointNotFoundError: there is no such version.
            CheckpointDamagedError: it, or a version it builds on, is missing or damaged; nothing is changed.
        """
        return self._pin(lambda served: served if version is None else version)

    def roll_back(self, version: int | None = None) -> int:
        """Move servers back to an older version and pin it.

        Args:
            version: its number; None for the newest one before the served one that can be served.

        Returns:
            Its number.

        Raises:
            ConfigurationError: it is not older than the served one.
            CheckpointNotFoundError: there is no such version, or none before the served one.
            CheckpointDamagedError: as for `pin`.
        """

        def choose(served: int) -> int:
            if version is None:
                return self._before(served)
            if version >= served:
                raise ConfigurationError(
                    f"cannot roll back to version {version}: servers answer with version {served}; give an older one, "
                    "or use promote for a newer one"
                )
            return version

        return self._pin(choose)

    def promote(self, version: int | None = None) -> int:
        """Pin servers to a newer version; `follow` returns them to the newest.

        Args:
            version: its number; None for the one that is compared with the served one, else the newest.

        Returns:
            Its number.

        Raises:
            ConfigurationError: it is older than the served one.
            CheckpointNotFoundError, CheckpointDamagedError: as for `pin`.
        """

        def choose(served: int) -> int:
            chosen = version
            if chosen is None:
                shadow = Pins.read(self.root).shadow
                chosen = self.newest() if shadow is None else shadow
            if chosen < served:
                raise ConfigurationError(
                    f"cannot promote version {chosen}: servers answer with version {served}, which is newer; use "
                    "roll_back for an older one"
                )
            return chosen

        return self._pin(choose, promoted=True)

    def follow(self) -> int:
        """Let servers follow the newest version again; return its number."""
        self._change(lambda pins: replace(pins, served=None))
        return self.newest()

    def keep(self, version: int) -> None:
        """Keep a version, and what it builds on, from being removed; errors as for `pin`."""

        def kept(pins: Pins) -> Pins:
            self._check(self._records.part(version), whole=False)
            return replace(pins, kept=(*pins.kept, version))

        self._change(kept)

    def release(self, version: int) -> None:
        """Undo `keep`.

        Raises:
            ConfigurationError: it was not kept.
        """

        def released(pins: Pins) -> Pins:
            if version not in pins.kept:
                listed = ", ".join(map(str, pins.kept)) or "none"
                raise ConfigurationError(f"version {version} is not kept; kept are {listed}")
            return replace(pins, kept=tuple(number for number in pins.kept if number != version))

        self._change(released)

    def shadow(self, version: int | None) -> None:
        """Choose the version to compare with the served one; None for the newest."""

        def shadowed(pins: Pins) -> Pins:
            if version is not None:
                self._check(self._records.part(version), whole=True)
            return replace(pins, shadow=version)

        self._change(shadowed)

    # -- changing the pins ----------------------------------------------------------------------------------------

    def _pin(self, choose: Any, promoted: bool = False) -> int:
        chosen: list[int] = []

        def pinned(pins: Pins) -> Pins:
            version = choose(self._served_name(pins))
            part = self._records.part(version)
            self._check(part, whole=True)
            chosen.append(version)
            shadow = None if promoted and pins.shadow == version else pins.shadow
            return replace(pins, served=part, shadow=shadow)

        self._change(pinned)
        return chosen[0]

    def _served_name(self, pins: Pins) -> int:
        return self.newest() if pins.served is None else int(pins.served.name[2:])

    def _before(self, served: int) -> int:
        for number in reversed(self._records.numbers()):
            if number < served:
                try:
                    self._check(self._records.part(number), whole=True)
                    return number
                except CheckpointError:
                    continue
        raise CheckpointNotFoundError(
            f"there is no version before {served} in {self.root} that servers can go back to; "
            "Publish(keep=...) says how many are kept"
        )

    def _check(self, part: Part, *, whole: bool) -> None:
        """Check that a version can be served; with `whole`, every file it needs."""
        release = self._records.release(part)
        with locked(self.root, release):
            for link in release.chain:
                folder = Folder(self.root, VERSION, link)
                if whole:
                    folder.verify()

    def _change(self, change: Any) -> None:
        with changing(self.root):
            before = Pins.read(self.root)
            after = change(before)
            if after != before:
                with durable.writing("pins", self.root):
                    after.write(self.root)
