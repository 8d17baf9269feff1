"""Write files durably and atomically; error messages give advice.

Functions that write raise OSError if the file system reports an error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
import stat
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import CheckpointDamagedError, CheckpointError, ConfigurationError

Buffer = bytes | bytearray | memoryview

BLOCK = 1 << 20
"""Bytes per write and checksum update; a block this small is still in the CPU cache for the checksum."""

FRESH_SECONDS = 60.0
"""An unlocked temporary file younger than this is kept if its writer may still be alive."""

_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO, errno.EINVAL, errno.ENXIO}
"""Error numbers that mean a damaged file or disk, unlike missing permission or too many open files."""

_DENIED = (errno.EACCES, errno.EPERM)
_ADVICE = {
    errno.ENOSPC: "free space on that file system, keep fewer snapshots, or choose another folder",
    errno.EDQUOT: "the quota is used up: delete files or choose another folder",
    errno.EFBIG: "the file exceeds the size limit of this process or file system (see 'ulimit -f')",
    errno.EROFS: "the file system is mounted read-only: remount it or choose another folder",
    **dict.fromkeys(_DENIED, "give this user write permission on the folder or choose another one"),
    errno.ENOTDIR: "a part of the path is a file: choose another folder",
    errno.EEXIST: "the path is a file where a folder is needed: choose another folder",
    errno.EIO: "the disk reports an input/output error: check the disk and choose another folder",
    errno.EMFILE: "too many files are open in this process: raise 'ulimit -n'",
    errno.ENAMETOOLONG: "choose a shorter path",
}


def write_error(what: str, path: Path, error: OSError) -> CheckpointError:
    """Return the error for a failed write of `what`, with errno text and advice."""
    code = errno.errorcode.get(error.errno or 0, "unknown")
    text = f"cannot write {what} {path}: {error.strerror or error} ({code})"
    if error.errno == errno.ENOSPC:
        with contextlib.suppress(OSError):
            existing = next(folder for folder in (path, *path.parents) if folder.exists())
            text += f", {shutil.disk_usage(existing).free:,} bytes free"
    advice = _ADVICE.get(error.errno or 0)
    return CheckpointError(f"{text}; {advice}" if advice else text)


@contextlib.contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """Raise `write_error` for an OSError inside the context."""
    try:
        yield
    except OSError as error:
        raise write_error(what, path, error) from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError into a CheckpointError, or CheckpointDamagedError for bad files."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise CheckpointDamagedError(f"{path} is missing") from error
        text = f"cannot read {path}: {error.strerror or error}"
        if error.errno in _DAMAGE:
            raise CheckpointDamagedError(text) from error
        advice = "give this user read permission" if error.errno in _DENIED else _ADVICE.get(error.errno or 0)
        raise CheckpointError(f"{text}; {advice}" if advice else text) from error


def resolve_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path without links, for comparison and display.

    Raises:
        ConfigurationError: the path is too long or has a byte that no file system allows.
    """
    try:
        real = Path(os.path.realpath(path))
        os.lstat(real)
    except ValueError as error:
        raise ConfigurationError(f"{str(path)[:200]!r} cannot be a path: {error}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ConfigurationError(f"{str(path)[:200]!r}... cannot be a path: {error.strerror}") from None
    return real


def probe(folder: Path) -> float:
    """Write and remove a small file; return its time by the file system's clock."""
    path = temporary_name(folder / "probe", "tmp")
    try:
        write_file(path, [bytes(BLOCK >> 8)])
        return os.stat(path).st_mtime
    finally:
        path.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Sync the entries of a folder to the disk, if the file system supports it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # unsupported on some network file systems
            raise
    finally:
        os.close(descriptor)


def write_file(path: Path, blocks: Iterable[Buffer]) -> tuple[int, int]:
    """Write `blocks` to a new file and sync it to the disk.

    Returns:
        Size in bytes and CRC-32 of the content, computed while writing.
    """
    size = crc = 0
    with open(path, "xb", buffering=0) as file:
        for block in blocks:
            view = memoryview(block).cast("B")
            for start in range(0, len(view), BLOCK):
                piece = view[start : start + BLOCK]
                crc = zlib.crc32(piece, crc)
                while len(piece):  # a raw write may be partial
                    written = file.write(piece) or 0
                    size += written
                    piece = piece[written:]
        os.fsync(file.fileno())
    return size, crc


def checksum_and_sync(path: Path) -> tuple[int, int]:
    """Sync an existing file to the disk; return its size and CRC-32."""
    size = crc = 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
        os.fsync(file.fileno())
    return size, crc


def read_bytes(path: Path, limit: int = 1 << 28) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    Raises:
        CheckpointDamagedError: the file is missing, not a regular file, too large or damaged.
        CheckpointError: there is no permission to read the file.
    """
    with reading(path):
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
            raise CheckpointDamagedError(f"{path} is not a regular file")
        if status.st_size > limit:
            raise CheckpointDamagedError(f"{path} has {status.st_size:,} bytes; at most {limit:,} are expected")
        return path.read_bytes()


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of `path` atomically; an error leaves the old content."""
    aside = temporary_name(path, "tmp")
    try:
        write_file(aside, [content])
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def temporary_name(path: Path, kind: str) -> Path:
    """Return a hidden, unique name next to `path`: ``.name.host.pid.uuid.kind``."""
    return path.parent / f".{path.name}.{_host()}.{os.getpid()}.{uuid.uuid4().hex[:12]}.{kind}"


_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.\d{1,10}\.[0-9a-f]{12}\.(tmp|replaced|removed)")


def parse_temporary_name(temporary: Path) -> tuple[str, str] | None:
    """Return (final name, kind) of a `temporary_name`; None for any other name."""
    match = _TEMPORARY.fullmatch(temporary.name)
    return (match[1], match[2]) if match else None


def lock_file(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file or folder; return whether the file system supports locks.

    The lock is exclusive, or `shared` for reading. The kernel drops it when the process ends.

    Raises:
        BlockingIOError: another process holds the lock, or this process holds it through another descriptor.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def lock_folder(path: Path, *, shared: bool = False) -> int:
    """Open and lock a folder (see `lock_file`); return the descriptor."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        lock_file(descriptor, shared=shared)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_stale(temporary: Path, *, has_lock: bool = False) -> bool:
    """Return whether a temporary file is unlocked, and its writer dead or long idle.

    With `has_lock`, the caller holds the folder's lock (see `folder_lock`), so every unlocked file is stale.
    """
    try:
        os.close(lock_folder(temporary))
        changed = os.stat(temporary)
    except OSError:  # held by a live writer, or just removed
        return False
    host, pid = temporary.name.split(".")[-4:-2]
    if has_lock or (host == _host() and not process_alive(int(pid))):
        return True
    return time.time() - max(changed.st_mtime, changed.st_ctime) > FRESH_SECONDS


def process_alive(pid: int) -> bool:
    """Return whether a process with this id runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
