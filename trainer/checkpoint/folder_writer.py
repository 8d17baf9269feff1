"""Writing a folder that is whole and on the disk or not there."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import durable
from .manifest import MANIFEST, files_json, seal


class FolderWriter:
    """Builds a folder under a hidden name beside `final`; a ``with`` block that is left before the folder has been
    renamed, by an exception or otherwise, leaves nothing of it.

    Every method raises OSError when the file system refuses.

    Args:
        final: what the folder is to be called.

    Attributes:
        path: the folder as long as it is built; rename it when `seal` has returned.
    """

    def __init__(self, final: Path) -> None:
        self.path = durable.temporary_name(final, "tmp")
        self._sums: dict[str, tuple[int, int]] = {}
        self._lock: int | None = None

    def __enter__(self) -> FolderWriter:
        self.path.mkdir()
        self._lock = durable.lock_folder(self.path)
        return self

    def write(self, name: str, blocks: Iterable[durable.Buffer]) -> None:
        """Write a file of the folder and force it to the disk."""
        self._sums[name] = durable.write_file(self.path / name, blocks)

    def adopt(self, name: str) -> None:
        """Take in a file that somebody else wrote into the folder, and force it to the disk."""
        self._sums[name] = durable.sum_and_sync(self.path / name)

    def seal(self, kind: str, body: Mapping[str, Any], identity: str | None = None) -> dict[str, Any]:
        """Write the manifest, force the folder to the disk and return the manifest's body.

        Args:
            kind: of the manifest.
            body: what it says besides "id" and "files".
            identity: the "id"; None makes one.
        """
        body = {**body, "id": identity or uuid.uuid4().hex, "files": files_json(self._sums)}
        durable.write_file(self.path / MANIFEST, [seal(kind, body)])
        durable.sync_folder(self.path)
        return body

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
        shutil.rmtree(self.path, ignore_errors=True)
