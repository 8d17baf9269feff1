"""A checksum beside a segment: ``NAME.sha256`` as ``sha256sum`` writes it, compared before the first row is read."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from ...checkpoint import durable
from ...errors import StreamError

SUFFIX = ".sha256"
_LINE = re.compile(rb"\\?([0-9a-fA-F]{64})(?:[ \t].*)?")
_MOST = 65_536  # bytes of a checksum file


def write_checksum(segment: str | Path, target: str | Path | None = None) -> Path:
    """Write the checksum of a finished segment beside it and return the path of the checksum.

    A reader that finds no checksum reads the segment without one, so the checksum comes first: write the segment under
    a name that ends in ``.tmp``, call this with the `target` it will have, then rename the segment.

    Args:
        segment: the file to sum.
        target: the path that the segment will be renamed to; None: it has its name already.

    Raises:
        OSError: the file cannot be read, or the checksum not be written.
    """
    target = Path(segment if target is None else target)
    path = target.with_name(target.name + SUFFIX)
    durable.replace_file(path, f"{_digest(Path(segment))}  {target.name}\n".encode())
    return path


def verify(segment: Path) -> None:
    """Compare a segment with the checksum beside it, if there is one.

    Raises:
        StreamError: it has another content, or the checksum is none.
        OSError: one of the two cannot be read.
    """
    path = segment.with_name(segment.name + SUFFIX)
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST).splitlines()
    except FileNotFoundError:
        return
    wanted = _LINE.fullmatch(lines[0]) if lines else None
    if wanted is None:
        raise StreamError(f"{path} holds no SHA-256: write it with `sha256sum {segment.name} > {path.name}`")
    if _digest(segment) != wanted[1].decode().lower():
        raise StreamError(f"segment {segment} is damaged: it does not match its checksum in {path.name}")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(durable.BLOCK):
            digest.update(block)
    return digest.hexdigest()
