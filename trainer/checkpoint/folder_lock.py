"""Lock a folder for one writer, until the writer's process ends.

The file ``.lock`` in the folder names the holder. Between processes of one machine, the kernel's advisory lock on that
file decides; the kernel drops it when the process ends. On some network file systems that lock does not work between
hosts. Therefore the holder also updates the file's time every `HEARTBEAT` seconds, and counts as dead after
`DEAD_AFTER` seconds without an update. Reading a folder needs no lock.

The package `filelock` is not used because it neither names the holder nor frees the lock of a dead host.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import weakref
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, FolderInUseError
from . import durable

LOCK = ".lock"
HEARTBEAT = 5.0
DEAD_AFTER = 60.0

_TRIES = 20
_PAUSE = 0.05
_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLock:
    """Exclusive right to write to `folder`, a resolved path; see `claim`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / LOCK
        self._descriptor: int | None = None
        self._released = threading.Event()
        self._created: list[Path] = []

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            FolderInUseError: another writer holds the lock; the message names the writer.
            OSError: the file system reports an error.
        """
        for _ in range(_TRIES):
            descriptor = self._create() or self._take_over()
            if descriptor is not None:
                break
            time.sleep(_PAUSE)  # another writer is creating, taking over or releasing the lock
        else:
            raise FolderInUseError(f"other writers keep taking and releasing the lock of {self.folder}")
        self._descriptor = descriptor  # set before the write, so that `release` closes it if the write fails
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        record = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "boot": _boot()}
        os.write(descriptor, json.dumps(record).encode())
        _held.add(self)
        self._released = threading.Event()
        arguments = (descriptor, self._released)
        threading.Thread(target=_send_heartbeats, args=arguments, name="folder-lock", daemon=True).start()

    def _create(self) -> int | None:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return None
        for _ in range(_TRIES):
            with contextlib.suppress(BlockingIOError):  # another process has locked the file to examine it
                durable.lock_file(descriptor)
                return descriptor
            time.sleep(_PAUSE)
        os.close(descriptor)
        return None

    def _take_over(self) -> int | None:
        """Remove the lock file of a dead writer; return None, because no lock is held yet."""
        try:
            descriptor = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            record = _read_record(descriptor)
            # Seconds since the last heartbeat, by the file system's clock.
            age = max(0.0, durable.probe(self.folder) - os.fstat(descriptor).st_mtime)
            if record is None and age < _PAUSE * _TRIES / 2:
                return None  # the file was just created and has no record yet
            try:
                kernel_locked = durable.lock_file(descriptor)
            except BlockingIOError:
                raise self._refusal(record, age) from None
            if self._is_at_path(descriptor):
                if _may_be_alive(record, age, kernel_locked):
                    raise self._refusal(record, age)
                self._path.unlink(missing_ok=True)
            return None
        finally:
            os.close(descriptor)

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _refusal(self, record: dict[str, Any] | None, age: float) -> FolderInUseError:
        holder = "another process"
        if record is not None:
            holder = f"process {record['pid']} on {record['host']}, which took it at {record['since']}"
            if record["boot"] != _boot():
                holder += f" (last heard of {age:.0f} s ago; taken for dead after {DEAD_AFTER:.0f} s)"
        return FolderInUseError(
            f"{self.folder} is being written by {holder}; a folder has one writer at a time: wait for it, stop it, or "
            "choose another folder"
        )

    def check(self) -> None:
        """Check that the lock is still held.

        Another host may have taken the lock over while this process was suspended.

        Raises:
            FolderInUseError: another writer holds the lock.
            CheckpointError: the folder is no longer writable.
        """
        with durable.writing("lock", self._path):
            if self._descriptor is not None and not self._is_at_path(self._descriptor):
                self._drop()
                self.acquire()

    def _drop(self) -> None:
        self._released.set()
        _held.discard(self)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # the descriptor is closed even if this fails
                os.close(descriptor)

    def release(self) -> None:
        """Release the lock; remove the folders created for it if they are empty."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                if self._is_at_path(self._descriptor):
                    self._path.unlink()
            self._drop()
        for folder in self._created:
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._created = []

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def claim(folder: str | os.PathLike[str], what: str) -> FolderLock:
    """Create a folder if missing, check that it is writable, and take its lock.

    Args:
        folder: path of the folder; links are resolved.
        what: purpose of the folder for messages, such as "checkpoint folder".

    Raises:
        ConfigurationError: the folder cannot be created or written; the message says why and what to do.
        FolderInUseError: another writer holds the lock; the message names the writer.
    """
    path = durable.resolve_path(folder)
    lock = FolderLock(path)
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        lock._created = missing
        durable.probe(path)
        lock.acquire()
    except BaseException as error:
        lock.release()
        if isinstance(error, OSError):
            raise ConfigurationError(str(durable.write_error(what, path, error))) from error
        raise
    return lock


def _may_be_alive(record: dict[str, Any] | None, age: float, kernel_locked: bool) -> bool:
    """Return whether the holder may be alive although the kernel's lock is free."""
    if record is None:
        return not kernel_locked and age < DEAD_AFTER
    same_boot = record["boot"] == _boot()
    if same_boot and (kernel_locked or not durable.process_alive(record["pid"])):
        return False
    return age < DEAD_AFTER


def _read_record(descriptor: int) -> dict[str, Any] | None:
    try:
        record = json.loads(os.read(descriptor, 4096))
        return {"pid": int(record["pid"]), **{key: str(record[key]) for key in ("host", "since", "boot")}}
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _boot() -> str:
    """Return an id of this machine's current boot; the host name if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return socket.gethostname()


def _send_heartbeats(descriptor: int, ended: threading.Event) -> None:
    while not ended.wait(HEARTBEAT):
        with contextlib.suppress(OSError):
            os.utime(descriptor)


def _after_fork() -> None:
    """Drop the locks in a forked child, where they would outlive the parent process."""
    for lock in list(_held):
        if lock._descriptor is not None:
            os.close(lock._descriptor)
            lock._descriptor = None
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)
