"""`PublishRoot`: the folder of a published model while one run writes to it."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from ..checkpoint import catalog
from ..checkpoint.folder_lock import claim
from ..errors import CheckpointError, ConfigurationError, FolderInUseError
from .folder_owner import record_owner
from .published import CURRENT, Current, is_published_folder, newest_version_number, remove
from .published_graph import check_folder
from .version_records import VersionRecords, version_lock

logger = logging.getLogger(__name__)


class PublishRoot:
    """A locked published folder; removes unfinished and old versions.

    Args:
        root: the folder, which is created if missing.
        run_dir: folder of the run that becomes the owner; None keeps the current owner.
        keep: number of versions before the newest that `sweep` keeps, with the versions that they build on.
        size: size of the network's parameters in bytes; logs a warning if less disk space is free.

    Attributes:
        path: the folder, with symbolic links resolved.
        newest: the highest version number used so far, or 0.

    Raises:
        ConfigurationError: the folder cannot be written, or belongs to another run.
        FolderInUseError: another run publishes there.
    """

    def __init__(self, root: Path, run_dir: Path | None, *, keep: int, size: int) -> None:
        self._lock = claim(root, "publish folder")
        self.path, self._keep = self._lock.folder, keep
        self._records = VersionRecords(self.path)
        try:
            if run_dir is not None:
                record_owner(self.path, run_dir)
            catalog.recover(self.path, has_lock=True)
            self.sweep()
            self.newest = newest_version_number(self.path)
            check_folder(self.path, size)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, OSError):
                raise ConfigurationError(f"Publish cannot read the folder {self.path}: {error}") from error
            raise

    def check(self) -> None:
        """Raise FolderInUseError if another run has taken the lock."""
        self._lock.check()

    def warn_if_behind(self, step: int) -> None:
        """Warn that a run that had no step left to train leaves an older version."""
        published = None
        with contextlib.suppress(CheckpointError):
            published = Current.read(self.path).step
        if (published or 0) < step:
            logger.warning(
                "no step was trained, so nothing is published: the newest version of %s is of step %s, the weights are "
                "of step %d; 'trainer export RUN --publish FOLDER' publishes a snapshot",
                *(self.path, published, step),
            )

    def sweep(self) -> None:
        """Remove old versions; skipped while another process changes the pins."""
        try:
            with contextlib.suppress(FolderInUseError), version_lock(self.path, wait=0):
                self._remove_old()
        except (OSError, CheckpointError) as error:
            logger.warning("no version of %s is removed: %s", self.path, error)

    def _remove_old(self) -> None:
        current = None
        try:
            current = Current.read(self.path)
        except CheckpointError:
            if os.path.lexists(self.path / CURRENT):
                return  # the file is unreadable, but the versions that it names may still be needed
        names_to_keep = self._records.folders_to_keep(current, self._keep)
        for name in os.listdir(self.path):
            if name not in names_to_keep and is_published_folder(self.path / name):
                remove(self.path / name)

    def release(self) -> None:
        """Remove old versions, then unlock the folder."""
        with self._lock:
            self.sweep()
