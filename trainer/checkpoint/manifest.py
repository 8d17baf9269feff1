"""Manifests: a folder's checksums, with a checksum of the manifest itself.

A document is ``{"crc32": "<checksum of the body>", "<kind>": body}``. A folder's ``manifest.json`` is a document whose
body has "format_version", "id" (new for every write) and "files": name -> {"size", "crc32"}. It is written last, so a
folder with a manifest is complete. Snapshots, published versions and published graphs have different kinds and add
their own entries to the body.

Functions that read raise CheckpointDamagedError if a file is missing, altered or malformed. They raise CheckpointError
if there is no permission or not enough memory, or if a newer version of this package wrote the file.

CRC-32 detects damage, not forgery; see `snapshot_writer` for why it was chosen.
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
PARTS_VERSION = 2  # format of folders written by several processes; earlier versions of this package refuse them
CALIBRATED_VERSION = 3  # format of published versions with a calibration, which releases before 0.6 would leave out
TENSOR_SUFFIX = ".safetensors"
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")

_CRC = re.compile("[0-9a-f]{8}")
_MAX_DOCUMENT = 1 << 26
MAX_IN_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4

FileSums = Mapping[str, tuple[int, int]]
"""File name -> (bytes, CRC-32)."""


def seal(kind: str, body: Mapping[str, Any]) -> bytes:
    """Return the bytes of a document with this body (plain JSON) and a format version."""
    body = {"format_version": FORMAT_VERSION, **body}
    return json.dumps({"crc32": _body_sum(body), kind: body}, indent=1).encode()


def unseal(path: Path | str, kind: str, content: bytes | None = None) -> dict[str, Any]:
    """Return the body of a document: of `content`, its bytes, or else of the file.

    The checksum and the format version are checked; the other entries of the body are not.
    """
    content = durable.read_bytes(Path(path), _MAX_DOCUMENT) if content is None else content
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
        raise CheckpointDamagedError(f"{path} is not a {kind}: format_version is {version!r}")
    if version > CALIBRATED_VERSION:
        raise CheckpointError(f"{path} has format {version}; this package reads up to {CALIBRATED_VERSION}: update it")
    return body


def digest(body: Mapping[str, Any]) -> str:
    """Return the hexadecimal SHA-256 of a manifest's body; it identifies the folder."""
    return hashlib.sha256(_canonical({"format_version": FORMAT_VERSION, **body})).hexdigest()


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _body_sum(body: Any) -> str:
    return f"{zlib.crc32(_canonical(body)):08x}"


# -- values of a body ------------------------------------------------------------------------------------------------


def files_of(body: Mapping[str, Any]) -> FileSums:
    """Return the files a body lists.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: the list is missing or malformed.
    """
    return MappingProxyType(
        {
            checked_name(FILE_NAME, name): (checked_count(entry["size"]), int(checked_name(_CRC, entry["crc32"]), 16))
            for name, entry in body["files"].items()
        }
    )


def part_name(group: str, rank: int) -> str:
    """Return the name of a rank's part of a tensor group."""
    return f"{group}.{rank}"


def part_counts(body: Mapping[str, Any], files: FileSums) -> Mapping[str, int]:
    """Return the number of parts of each tensor group written by several processes.

    Raises:
        ValueError, TypeError, AttributeError: the entry is malformed, or `files` lacks a part.
    """
    parts = {str(group): checked_count(number) for group, number in body.get("parts", {}).items()}
    for group, number in parts.items():
        names = [part_name(group, rank) + TENSOR_SUFFIX for rank in range(min(number, len(files) + 1))]
        if not names or not files.keys() >= set(names):
            raise ValueError(f"not all parts of {group!r} are listed")
    return parts


def checked_name(pattern: re.Pattern[str], value: Any) -> str:
    """Return `value` if it matches the pattern, which keeps names inside the folder."""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{value!r} is not accepted as a name")
    return value


def checked_text(value: Any) -> str:
    """Return `value` if it is a string."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    return value


def checked_count(value: Any) -> int:
    """Return `value` if it is a whole number from 0 to 2**62 - 1."""
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"{value!r} is not a count")
    return value


# -- files -----------------------------------------------------------------------------------------------------------


def find_problem(folder: Path, files: FileSums) -> str | None:
    """Check that the files exist with their sizes; return the first problem, or None."""
    for name, (size, _) in files.items():
        try:
            check_size(folder / name, size)
        except CheckpointError as error:
            return str(error)
    return None


def unlisted_files(folder: Path, files: FileSums) -> list[str]:
    """Return the names in a folder that its manifest does not list."""
    return sorted(set(os.listdir(folder)) - set(files) - {MANIFEST})


def read_verified(path: Path, size: int, crc: int) -> memoryview | bytes:
    """Return a copy of a file's content after checking size and checksum.

    The checksum is computed on the copy, so the returned bytes are the verified ones. A memory map of the file would
    show later changes, and would crash the process if the file were truncated.
    """
    check_size(path, size)
    if not size:
        return b""
    try:
        content = _allocate(size)
    except (OSError, MemoryError) as error:
        raise CheckpointError(f"there is no room for a copy of the {size:,} bytes of {path}: {error}") from error
    seen = end = 0
    with durable.reading(path), open(path, "rb", buffering=0) as file:
        for at in _read_ahead(file, content):
            seen = zlib.crc32(content[end:at], seen)
            end = at
    if end != size or seen != crc:
        raise CheckpointDamagedError(f"{path} does not match its checksum: its content was altered")
    return content.toreadonly()


def _read_ahead(file: io.FileIO, content: memoryview) -> Iterator[int]:
    """Read into `content` by blocks; yield each block's end while reading the next."""
    at = file.readinto(content[: durable.BLOCK])
    if at >= len(content):
        yield at
        return
    with ThreadPoolExecutor(1) as reader:  # reads and checksums run in parallel, because both release the GIL
        count = at
        while count:
            following = reader.submit(file.readinto, content[at : at + durable.BLOCK])
            yield at
            count = following.result()
            at += count


def _allocate(size: int) -> memoryview:
    """Return a buffer: memory, or a mapped temporary file above `MAX_IN_MEMORY`."""
    if size <= MAX_IN_MEMORY:
        return np.empty(size, np.uint8).data
    with tempfile.TemporaryFile() as file:  # the mapping stays valid after the file is closed
        os.posix_fallocate(file.fileno(), 0, size)  # a full disk raises an error here instead of SIGBUS later
        return memoryview(mmap.mmap(file.fileno(), size))


def check_size(path: Path, size: int) -> None:
    """Check that `path` is a regular file of `size` bytes."""
    with durable.reading(path):
        status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointDamagedError(f"{path} is not a regular file")
    if status.st_size != size:
        raise CheckpointDamagedError(f"{path} has {status.st_size:,} bytes; its manifest says {size:,}")


class FolderWriter:
    """Writes a folder under a hidden name next to `final`.

    Leaving a ``with`` block removes the folder unless it was renamed. All methods may raise OSError.
    """

    def __init__(self, final: Path) -> None:
        self.path = durable.temporary_name(final, "tmp")  # hidden path of the folder; rename it after `seal`
        self._sums: dict[str, tuple[int, int]] = {}
        self._lock: int | None = None

    def open(self) -> FolderWriter:
        """Create the folder; a ``with`` block also does this."""
        self.path.mkdir(exist_ok=True)
        if self._lock is None:
            self._lock = durable.lock_folder(self.path)
        return self

    def __enter__(self) -> FolderWriter:
        return self.open()

    def write(self, name: str, blocks: Iterable[durable.Buffer]) -> None:
        """Write a file into the folder and sync it to the disk."""
        self._sums[name] = durable.write_file(self.path / name, blocks)

    def adopt(self, name: str) -> None:
        """Add a file that other code wrote into the folder; sync it to the disk."""
        self._sums[name] = durable.checksum_and_sync(self.path / name)

    def add_written(self, name: str, size: int, crc: int) -> None:
        """Add a file that another process wrote and synced to the disk; check its size."""
        check_size(self.path / name, size)
        self._sums[name] = size, crc

    def seal(self, kind: str, body: Mapping[str, Any], identity: str | None = None) -> dict[str, Any]:
        """Write the manifest, sync the folder and return the manifest's body.

        Adds the entries "files" and "id" to the body. The id is `identity`, or a generated one if that is None.
        """
        files = {name: {"size": size, "crc32": f"{crc:08x}"} for name, (size, crc) in self._sums.items()}
        body = {**body, "id": identity or uuid.uuid4().hex, "files": files}
        durable.write_file(self.path / MANIFEST, [seal(kind, body)])
        durable.sync_folder(self.path)
        return body

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder unless it was renamed."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
        shutil.rmtree(self.path, ignore_errors=True)
