"""Folders that callbacks write their reports to."""

from __future__ import annotations

import tempfile
from pathlib import Path

from trainer.errors import ConfigurationError


def writable(place: str, folder: Path) -> None:
    """Make `folder` where it is missing and prove that a file can be written there.

    Args:
        place: the argument that names it, for the message.
        folder: the folder.

    Raises:
        ConfigurationError: it cannot be made or written; the message says why.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        raise ConfigurationError(
            f"{place}: {folder} cannot be written: {error.strerror or error}; choose another folder"
        ) from error
