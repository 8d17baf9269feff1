"""`PublishRoot`: the folder of a published model while one run writes to it."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from ..checkpoint import catalog
from ..checkpoint.folder_lock import claim
from ..errors import CheckpointError, ConfigurationError, FolderInUseError
from .folder_owner import own
from .published import CURRENT, Current, is_proven, newest_number, remove
from .published_graph import check_folder
from .version_records import VersionRecords, changing

logger = logging.getLogger(__name__)


class PublishRoot:
    """Lock a published folder, remove unfinished and old versions.

    Args:
        root: the folder; it is created if missing.
        run_dir: the run that it belongs to from now on; None: unchanged.
        keep: newest versions that `sweep` leaves, with those that they build on.
        size: bytes of the network's parameters; a warning if fewer are free.

    Attributes:
        path: the folder, free of links.
        newest: the highest number that a version has had, 0 for none.

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
                own(self.path, run_dir)
            catalog.recover(self.path, alone=True)
            self.sweep()
            self.newest = newest_number(self.path)
            check_folder(self.path, size)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, OSError):
                raise ConfigurationError(f"Publish cannot read the folder {self.path}: {error}") from error
            raise

    def check(self) -> None:
        """Check that the lock is still held; FolderInUseError: another run took it."""
        self._lock.check()

    def sweep(self) -> None:
        """Remove versions that no server needs, unless others pin one."""
        try:
            with contextlib.suppress(FolderInUseError), changing(self.path, wait=0):
                self._remove_old()
        except (OSError, CheckpointError) as error:
            logger.warning("no version of %s is removed: %s", self.path, error)

    def _remove_old(self) -> None:
        now = None
        try:
            now = Current.read(self.path)
        except CheckpointError:
            if os.path.lexists(self.path / CURRENT):
                return  # the versions that it named may still be needed
        needed = self._records.needed(now, self._keep)
        for name in os.listdir(self.path):
            if name not in needed and is_proven(self.path / name):
                remove(self.path / name)

    def release(self) -> None:
        """Remove old versions and unlock the folder."""
        with self._lock:
            self.sweep()
