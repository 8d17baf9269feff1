"""Keeps a local copy of a model published to a mirror.

The local ``current.json`` is replaced after the folders that it names have been downloaded and verified.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..checkpoint import catalog, durable, manifest
from ..errors import CheckpointError, CheckpointNotFoundError
from ..storage.fetch import PUBLISHED, fetch_part, scratch_folder
from ..storage.location import Location, is_url
from ..storage.mirror_pass import part_names_in, read_manifest
from .published import CURRENT, PINS, is_published_folder, remove
from .version_records import version_name


class MirroredVersions:
    """A local copy of a published model, from the URL of the model or of its run.

    It has the newest version, the pinned one, and the one with the number `version`, if that is given.
    """

    def __init__(self, url: str, version: int | None = None) -> None:
        self._source, self._version = Location(url), version
        self.folder = scratch_folder("served")  # removed by `discard`, or when the process ends
        self._pulled_pointers: tuple[bytes, bytes | None] | None = None

    def __str__(self) -> str:
        return self._source.display_url("")

    def pull(self) -> None:
        """Update the copy to the mirror's state; a CheckpointError leaves it as it was."""
        try:
            self._pull()
        except OSError as error:
            raise CheckpointError(f"the mirror cannot be read: {error}") from error

    def discard(self) -> None:
        """Remove the copy; `pull` would make a new one."""
        catalog.delete(self.folder)
        self._pulled_pointers = None

    def _pull(self) -> None:
        for is_last_try in (False, False, True):
            pointers = self._read_pointers()
            if pointers == self._pulled_pointers:
                return
            try:
                needed = self._fetch(*pointers)
                break
            except CheckpointError:
                # Retry if the pointers have changed, because a folder may have been removed during the download.
                if is_last_try or self._read_pointers() == pointers:
                    raise
        current, pins = pointers
        if pins is not None:
            durable.replace_file(self.folder / PINS, pins)
        else:
            (self.folder / PINS).unlink(missing_ok=True)
        durable.replace_file(self.folder / CURRENT, current)
        self._pulled_pointers = pointers
        for name in os.listdir(self.folder):
            if name not in needed and is_published_folder(self.folder / name):
                remove(self.folder / name)

    def _read_pointers(self) -> tuple[bytes, bytes | None]:
        """Return the mirror's ``current.json`` and ``pins.json`` (None if missing)."""
        pins, current = self._read(PINS), self._read(CURRENT)
        if current is not None:
            return current, pins
        published = self._source.child(PUBLISHED)
        if published.entry(CURRENT) is None:
            raise CheckpointNotFoundError(f"no model has been published at {self}")
        self._source = published
        return self._read_pointers()

    def _read(self, name: str) -> bytes | None:
        try:
            return self._source.read(name)
        except FileNotFoundError:
            return None

    def _fetch(self, current: bytes, pins: bytes | None) -> set[str]:
        """Download the folders that the pointers need; return their names."""
        manifest.unseal(self._source.display_url(CURRENT), "current", current)
        needed = part_names_in(current)
        pending = set() if self._version is None else {version_name(self._version)}
        if pins is not None:
            manifest.unseal(self._source.display_url(PINS), "pins", pins)
            pending |= part_names_in(pins)
        for name in sorted(needed):
            fetch_part(self._source, name, self.folder)
        while pending:  # further versions, and everything that they build on
            name = pending.pop()
            folder = fetch_part(self._source, name, self.folder)
            needed.add(name)
            body = read_manifest((folder / manifest.MANIFEST).read_bytes())[1]
            try:
                dependencies = [body["graph"]["name"], *([] if body["restart"] else [body["before"]["name"]])]
            except (KeyError, TypeError):
                continue  # the folder is a graph, which builds on nothing
            pending |= set(dependencies) - needed
        return needed


def local_root(source: str | os.PathLike[str], version: int | None = None) -> tuple[Path, MirroredVersions | None]:
    """Return a published model's local folder, and a `MirroredVersions` for a URL."""
    if not is_url(source):
        return Path(source), None
    mirrored = MirroredVersions(str(source), version)
    return mirrored.folder, mirrored
