"""Manifests: documents that hold their own checksum and those of a folder's files.

A document is ``{"crc32": "<sum of the body>", "<kind>": body}``. A folder's ``manifest.json`` is a document whose body
has "format_version", "id" (unique to the write) and "files": name -> {"size", "crc32"}. It is written last, so a folder
that has one was written whole. Snapshots, published versions and published graphs differ in the kind and in what else
the body says.

CRC-32 finds damage, not forgery; see `snapshot_writer` for why it was chosen.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import re
import shutil
import stat
import tempfile
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ..errors import CheckpointDamagedError, CheckpointError
from . import durable, strict_json

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
PARTS_VERSION = 2  # of a snapshot that several processes wrote; earlier versions of this package refuse it
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")

_CRC = re.compile("[0-9a-f]{8}")
_MAX_DOCUMENT = 1 << 26
MOST_IN_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4

FileSums = Mapping[str, tuple[int, int]]
"""File name -> (bytes, CRC-32)."""


def seal(kind: str, body: Mapping[str, Any]) -> bytes:
    """Return `body` (plain JSON) as a document; adds the format version it lacks."""
    body = {"format_version": FORMAT_VERSION, **body}
    return json.dumps({"crc32": _body_sum(body), kind: body}, indent=1).encode()


def unseal(path: Path, kind: str) -> dict[str, Any]:
    """Read a document of a kind and return its body, whose content is still to be checked.

    Raises:
        CheckpointDamagedError: missing, cut, altered or no such document.
        CheckpointError: no permission, or written by a newer version of this package.
    """
    content = durable.read_bytes(path, _MAX_DOCUMENT)
    try:
        document = strict_json.parse(content)
        body = document[kind]
        intact = document["crc32"] == _body_sum(body)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointDamagedError(f"{path} is damaged: {error}") from None
    if not intact:
        raise CheckpointDamagedError(f"{path} is damaged: it does not match its own checksum")
    version = body.get("format_version") if isinstance(body, dict) else None
    if type(version) is not int or version < 1:
        raise CheckpointDamagedError(f"{path} is no {kind}: format_version is {version!r}")
    if version > PARTS_VERSION:
        raise CheckpointError(f"{path} has format {version}; this package reads up to {PARTS_VERSION}: update it")
    return body


def digest(body: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a body in hexadecimal; by the checksums in it, it identifies a folder's content."""
    return hashlib.sha256(_canonical({"format_version": FORMAT_VERSION, **body})).hexdigest()


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _body_sum(body: Any) -> str:
    return f"{zlib.crc32(_canonical(body)):08x}"


# -- values of a body ------------------------------------------------------------------------------------------------


def files_json(files: FileSums) -> dict[str, Any]:
    """Return the entry "files" of a body."""
    return {name: {"size": size, "crc32": f"{crc:08x}"} for name, (size, crc) in files.items()}


def files_of(body: Mapping[str, Any]) -> FileSums:
    """Return the files a body lists.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it lists none, or they are no plain names with sums.
    """
    return MappingProxyType(
        {
            named(FILE_NAME, name): (count(entry["size"]), int(named(_CRC, entry["crc32"]), 16))
            for name, entry in body["files"].items()
        }
    )


def named(pattern: re.Pattern[str], value: Any) -> str:
    """Return `value` if it is a string of this pattern, so that a name read from a file cannot leave its folder."""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{value!r} is not accepted as a name")
    return value


def text(value: Any) -> str:
    """Return `value` when it is a string."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no string")
    return value


def count(value: Any) -> int:
    """Return `value` when it is a whole number from 0 to 2**62 - 1."""
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"{value!r} is no count")
    return value


# -- files -----------------------------------------------------------------------------------------------------------


def problem(folder: Path, files: FileSums) -> str | None:
    """Return the first problem in names and sizes of the listed files, or None."""
    for name, (size, _) in files.items():
        try:
            _check_size(folder / name, size)
        except CheckpointError as error:
            return str(error)
    return None


def foreign(folder: Path, files: FileSums) -> list[str]:
    """Return the names in a folder that its manifest does not list."""
    return sorted(set(os.listdir(folder)) - set(files) - {MANIFEST})


def verified(path: Path, size: int, crc: int) -> memoryview | bytes:
    """Return a copy of a file's content, whose size and checksum are right.

    A mapping would show what the file becomes afterwards, and end the process where it is cut. The copy belongs to this
    process alone. It is summed while it is made, so what is used is what was verified.

    Raises:
        CheckpointDamagedError: missing, of another size, altered or unreadable.
        CheckpointError: no permission, no more files may be opened, or there is no room for the copy.
    """
    _check_size(path, size)
    if not size:
        return b""
    try:
        content = _room(size)
    except (OSError, MemoryError) as error:
        raise CheckpointError(f"there is no room for a copy of the {size:,} bytes of {path}: {error}") from error
    seen = end = 0
    try:
        with open(path, "rb", buffering=0) as file:
            for at in _read_ahead(file, content):
                seen = zlib.crc32(content[end:at], seen)
                end = at
    except OSError as error:
        raise durable.read_error(path, error) from error
    if end != size or seen != crc:
        raise CheckpointDamagedError(f"{path} does not match its checksum: its content was altered")
    return content.toreadonly()


def _read_ahead(file: io.FileIO, content: memoryview) -> Iterator[int]:
    """Fill `content` block by block; yield where each ends, while the next is being read."""
    at = file.readinto(content[: durable.BLOCK])
    if at >= len(content):
        yield at
        return
    with ThreadPoolExecutor(1) as reader:  # neither reading nor summing holds the interpreter's lock
        count = at
        while count:
            following = reader.submit(file.readinto, content[at : at + durable.BLOCK])
            yield at
            count = following.result()
            at += count


def _room(size: int) -> memoryview:
    """Return so many bytes in memory; more than a quarter of the machine's in a file that has no name."""
    if size <= MOST_IN_MEMORY:
        return np.empty(size, np.uint8).data
    with tempfile.TemporaryFile() as file:  # the mapping outlives it, and no other process can open it
        os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, not a signal later
        return memoryview(mmap.mmap(file.fileno(), size))


def _check_size(path: Path, size: int) -> None:
    try:
        status = os.stat(path)
    except OSError as error:
        raise durable.read_error(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointDamagedError(f"{path} is not a regular file")
    if status.st_size != size:
        raise CheckpointDamagedError(f"{path} has {status.st_size:,} bytes; its manifest says {size:,}")


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
        self._is_open = False

    def open(self) -> None:
        """Make the folder; the ``with`` block does it otherwise."""
        self.path.mkdir()
        self._is_open = True
        self._lock = durable.lock_folder(self.path)

    def __enter__(self) -> FolderWriter:
        if not self._is_open:
            self.open()
        return self

    def write(self, name: str, blocks: Iterable[durable.Buffer]) -> None:
        """Write a file of the folder and force it to the disk."""
        self._sums[name] = durable.write_file(self.path / name, blocks)

    def adopt(self, name: str) -> None:
        """Take in a file that somebody else wrote into the folder, and force it to the disk."""
        self._sums[name] = durable.sum_and_sync(self.path / name)

    def enlist(self, name: str, size: int, crc: int) -> None:
        """Take in a file that another process wrote and forced to the disk.

        Raises:
            CheckpointDamagedError: it is not there with this size.
        """
        _check_size(self.path / name, size)
        self._sums[name] = size, crc

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
        self.close()

    def close(self) -> None:
        """Remove what has not been renamed."""
        if self._lock is not None:
            os.close(self._lock)
        shutil.rmtree(self.path, ignore_errors=True)
