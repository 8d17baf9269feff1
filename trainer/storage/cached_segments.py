"""Local copies of store files: segments one by one, finite files all at once."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path, PurePosixPath

from ..checkpoint import durable
from ..errors import DataError
from .fetch import scratch_folder
from .location import Entry, Location, is_url

logger = logging.getLogger(__name__)

CHECKSUM_SUFFIX = ".sha256"


class CachedSegments:
    """A folder of segments in a store, each copied to the local disk while read.

    A segment is copied whole when reading starts, and again when the store lists it with another size or time. The
    reader then sees a replaced local file and compares its content to find out whether it grew. Positions, fingerprints
    and checksums therefore work as for local files.

    Attributes:
        folder: local folder of the copies.
        single: name of the file if the URL names one, else None.
    """

    def __init__(self, url: str) -> None:
        location = Location(url)
        self.single: str | None = None
        if location.entry() is not None:
            location, self.single = location.parent()
        self.location = location
        self._copies = tempfile.TemporaryDirectory(prefix="trainer-segments-", ignore_cleanup_errors=True)
        self.folder = Path(self._copies.name)
        self._listed: dict[str, Entry] = {}
        self._copied: dict[str, Entry] = {}

    def look(self) -> dict[str, bool]:
        """List the folder: name -> whether it is a file."""
        self._listed = self.location.files(below=False)
        return dict.fromkeys(self._listed, True)

    def fetch(self, name: str) -> None:
        """Update the copy of a segment and of its checksum to the last listing.

        Raises:
            OSError: a temporary failure of the store or the local disk. The copy of a segment that no longer exists is
                kept.
        """
        if name not in self._listed and name not in self._copied:  # after a resume, before the first listing
            self.look()
        for file in (name + CHECKSUM_SUFFIX, name):
            listed = self._listed.get(file)
            if listed is None or self._copied.get(file) == listed:
                continue
            aside = durable.temporary_name(self.folder / file, "tmp")
            try:
                self.location.download(file, aside)
                os.replace(aside, self.folder / file)
            except FileNotFoundError:
                continue
            finally:
                aside.unlink(missing_ok=True)
            self._copied[file] = listed

    def size(self, name: str) -> int:
        """Return a segment's listed size in bytes."""
        return self._listed[name].size if name in self._listed else (self.folder / name).stat().st_size

    def listed(self, name: str) -> Entry | None:
        """Return a segment's entry in the last listing, or None."""
        return self._listed.get(name)

    def forget(self, name: str) -> None:
        """Remove the copy of a segment."""
        for file in (name, name + CHECKSUM_SUFFIX):
            self._copied.pop(file, None)
            (self.folder / file).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all copies."""
        self._copies.cleanup()


_fetched: dict[str, tuple[dict[str, Entry], Path]] = {}


def local_files(path: str | Path) -> Path:
    """Return the local path of finite files; a URL is downloaded first.

    A copy is kept until the process ends, as it may be in use. Another is made when the store lists something else.
    """
    if not is_url(path):
        return Path(path)
    location, url = Location(str(path)), str(path)
    shown = location.shown("")
    try:
        single = location.entry()
        listed = {"": single} if single is not None else location.files(below=False)
        listed = {name: entry for name, entry in listed.items() if not name.startswith((".", "_"))}
        if not listed:
            raise DataError(f"{shown}: there is no such file or folder")
        if url in _fetched and _fetched[url][0] == listed:
            return _fetched[url][1]
        folder = scratch_folder("data")
        logger.info("copying %s: %.1f MB", shown, sum(entry.size for entry in listed.values()) / 1e6)
        for name in listed:
            location.download(name, folder / (name or PurePosixPath(shown).name))
    except OSError as error:
        raise DataError(f"{shown} cannot be read: {error}") from error
    _fetched[url] = (listed, folder if single is None else folder / PurePosixPath(shown).name)
    return _fetched[url][1]
