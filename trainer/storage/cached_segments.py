"""Local copies of store files: stream segments one by one, other data all at once."""

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
    """A folder of segments in a store, with local copies of those being read.

    A whole segment is copied when reading starts, and again when the store lists it with another size or time. The
    reader then sees a replaced local file and compares its content to find out whether it grew. Positions, fingerprints
    and checksums therefore work as for local files.

    Attributes:
        folder: local folder of the copies.
        single: name of the file if the URL is of a single file, else None.
    """

    def __init__(self, url: str) -> None:
        location = Location(url)
        self.single: str | None = None
        if location.entry() is not None:
            location, self.single = location.parent()
        self.location = location
        self._temporary_folder = tempfile.TemporaryDirectory(prefix="trainer-segments-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary_folder.name)
        self._listing: dict[str, Entry] = {}  # files in the last listing
        self._copied: dict[str, Entry] = {}  # entries of the copied files when they were copied

    def list_files(self) -> dict[str, bool]:
        """List the folder; return whether each name is a file (in a store, always True)."""
        self._listing = self.location.files(recursive=False)
        return dict.fromkeys(self._listing, True)

    def fetch(self, name: str) -> None:
        """Update the copies of a segment and its checksum file to the last listing.

        The copy of a segment that no longer exists in the store is kept.

        Raises:
            OSError: the store or the local disk failed temporarily.
        """
        if name not in self._listing and name not in self._copied:  # a resumed run may fetch before the first listing
            self.list_files()
        for file in (name + CHECKSUM_SUFFIX, name):
            listed = self._listing.get(file)
            if listed is None or self._copied.get(file) == listed:
                continue
            temporary = durable.temporary_name(self.folder / file, "tmp")
            try:
                self.location.download(file, temporary)
                os.replace(temporary, self.folder / file)
            except FileNotFoundError:
                continue
            finally:
                temporary.unlink(missing_ok=True)
            self._copied[file] = listed

    def size(self, name: str) -> int:
        """Return a segment's listed size in bytes."""
        return self._listing[name].size if name in self._listing else (self.folder / name).stat().st_size

    def entry_of(self, name: str) -> Entry | None:
        """Return a segment's entry in the last listing, or None."""
        return self._listing.get(name)

    def evict(self, name: str) -> None:
        """Remove the copy of a segment."""
        for file in (name, name + CHECKSUM_SUFFIX):
            self._copied.pop(file, None)
            (self.folder / file).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all copies."""
        self._temporary_folder.cleanup()


_downloads: dict[str, tuple[dict[str, Entry], Path]] = {}  # URL -> (listing, local path) of its newest download


def local_files(path: str | Path) -> Path:
    """Return the local path of a data file or folder; download a URL first.

    The download is kept until the process ends, because it may be in use. If the store's listing changes, the next call
    downloads the data again.
    """
    if not is_url(path):
        return Path(path)
    location, url = Location(str(path)), str(path)
    url_in_messages = location.display_url("")
    try:
        single_file = location.entry()
        listed = {"": single_file} if single_file is not None else location.files(recursive=False)
        listed = {name: entry for name, entry in listed.items() if not name.startswith((".", "_"))}
        if not listed:
            raise DataError(f"{url_in_messages}: there is no such file or folder")
        if url in _downloads and _downloads[url][0] == listed:
            return _downloads[url][1]
        folder = scratch_folder("data")
        logger.info("copying %s: %.1f MB", url_in_messages, sum(entry.size for entry in listed.values()) / 1e6)
        for name in listed:
            location.download(name, folder / (name or PurePosixPath(url_in_messages).name))
    except OSError as error:
        raise DataError(f"{url_in_messages} cannot be read: {error}") from error
    _downloads[url] = (listed, folder if single_file is None else folder / PurePosixPath(url_in_messages).name)
    return _downloads[url][1]
