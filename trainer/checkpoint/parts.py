"""Write folders in parts: each process writes its rows into one shared folder.

Snapshots and published versions of divided tables are written in this way. Rank 0 creates a temporary folder and sends
its path to the other ranks. Rank r writes ``<group>.<r>.safetensors`` there on a background thread, and then a note,
``<group>.<r>.json``, with the size and CRC-32 of that file, or the error. Rank 0 waits for the notes, removes them,
lists the parts in the manifest and renames the folder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..distributed.group import Group
from ..errors import CheckpointError
from . import durable, tensor_file
from .manifest import PARTS_VERSION, TENSOR_SUFFIX, FolderWriter, part_name

IDLE_SECONDS = 120.0  # a part without progress for this long has failed
POLL_SECONDS = 0.02

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """Temporary folder into which all processes write one tensor group."""

    group: str  # name of the tensor group; the tensors of rank r are the group `part_group(r)`
    path: Path  # the folder before it is renamed
    writers: Sequence[tuple[str, int]]  # machine and process id of each rank
    folder: FolderWriter | None  # the writer of the folder on rank 0; None on the others
    what: str = "snapshot"  # "snapshot" or "version", for messages

    def part_group(self, rank: int) -> str:
        """Return the name of a rank's part, stored as a tensor group."""
        return part_name(self.group, rank)

    def collect(self) -> dict[str, Any]:
        """Wait for the other parts and list them; return the manifest's entries.

        Raises:
            CheckpointError: a process failed to write its part, or ended before it was written.
        """
        assert self.folder is not None
        for rank in range(1, len(self.writers)):
            part, note = self.files(rank)
            sums = self._read_note(rank, part, note)
            self.folder.add_written(part.name, sums["size"], sums["crc32"])
        return {"format_version": PARTS_VERSION, "parts": {self.group: len(self.writers)}}

    def _read_note(self, rank: int, part: Path, note: Path) -> dict[str, Any]:
        """Wait for a rank's note, remove it and return its content."""
        host, process = self.writers[rank]
        seen, idle_since = (-1, -1), time.monotonic()
        while True:
            # Check this before the note, because a process may end right after it wrote its note.
            has_ended = host == _host_id() and not durable.process_alive(process)
            if note.exists():
                found = json.loads(durable.read_bytes(note))
                break
            state = (-1, -1)
            with contextlib.suppress(FileNotFoundError):  # the part was not started, or was removed after an error
                status = part.stat()
                state = (status.st_size, status.st_mtime_ns)
            if state != seen:
                seen, idle_since = state, time.monotonic()
            if has_ended or time.monotonic() - idle_since > IDLE_SECONDS:
                reason = "has ended" if has_ended else f"shows no progress for {IDLE_SECONDS:g} s"
                raise CheckpointError(f"rank {rank} {reason} before its part {part} was written")
            time.sleep(POLL_SECONDS)
        note.unlink()
        if "error" in found:
            raise CheckpointError(f"rank {rank}: {found['error']}")
        return found

    def files(self, rank: int) -> tuple[Path, Path]:
        """Return the paths of a rank's part and of its note."""
        return self.path / (self.part_group(rank) + TENSOR_SUFFIX), self.path / f"{self.part_group(rank)}.json"


def open_parts(processes: Group, final: Path, group: str, what: str = "snapshot") -> Parts | None:
    """Create the temporary folder of `final` on rank 0; a collective call.

    Args:
        processes: all processes of the job.
        final: final path of the folder; rank 0's value is used.
        group: the tensor group that is written in parts.
        what: kind of folder, for messages.

    Returns:
        The folder, or None if a process cannot write to it, for example because the file system is not shared.

    Raises:
        CheckpointError: on all processes, if rank 0 cannot create the folder.
    """
    folder = FolderWriter(final) if processes.is_main else None

    def make() -> str:
        assert folder is not None
        with durable.writing(what, final):
            final.parent.mkdir(parents=True, exist_ok=True)
            folder.open()
        return str(folder.path)

    path = Path(processes.from_main(make))
    found = processes.gather_json([_host_id(), os.getpid(), os.access(path, os.W_OK | os.X_OK)])
    cannot_write = [rank for rank, (_, _, may_write) in enumerate(found) if not may_write]
    if not cannot_write:
        return Parts(group, path, [(host, process) for host, process, _ in found], folder, what)
    if folder is not None:
        folder.close()
        _logger.warning(
            "rank %d cannot write to %s, a folder that rank 0 created: rank 0 collects the rows of all processes "
            "instead, while they wait; keep %ss on a file system that all processes share",
            cannot_write[0],
            path,
            what,
        )
    return None


def _host_id() -> str:
    """Return the host and PID namespace, within which process ids are unique."""
    namespace = Path("/proc/self/ns/pid")
    return f"{socket.gethostname()} {os.readlink(namespace) if namespace.exists() else ''}"


class WriterThread:
    """Thread that writes one snapshot or part at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def run(self, write: Callable[..., Any], *arguments: Any) -> None:
        """Wait for the last write, then call `write` in a thread.

        The caller must not change the arrays in `arguments` before the write ends.
        """
        self.wait()
        # Not a daemon thread, so that the interpreter finishes the write before it exits.
        self._thread = threading.Thread(target=write, args=arguments, name="snapshot-writer")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the write in flight."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def write_part(parts: Parts, rank: int, tensors: Mapping[str, Any]) -> bool:
    """Write a part and its note; report a failure in the note and the log.

    Returns:
        Whether the part was written.
    """
    part, note = parts.files(rank)
    try:
        size, crc = durable.write_file(part, tensor_file.blocks(tensors))
        found: dict[str, Any] = {"size": size, "crc32": crc}
    except Exception as error:
        _logger.warning("the part %s of a %s cannot be written: %s", part, parts.what, error)
        if isinstance(error, OSError):
            error = durable.write_error(f"part of a {parts.what}", part, error)
        found = {"error": str(error) if isinstance(error, CheckpointError) else repr(error)}
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)  # makes room for the note if the disk is full
    try:
        durable.replace_file(note, json.dumps(found).encode())
    except OSError as error:
        _logger.warning("rank 0 cannot be notified by %s: %s", note, error)
    return "error" not in found
