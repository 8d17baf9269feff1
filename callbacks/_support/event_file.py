"""TensorBoard's event files, written by the calling thread.

tensorboardX's own writer hands events to a thread through a queue of ten. Once a write has failed, the thread is dead
and the eleventh event blocks the caller for ever. Its messages and checksums are used here, not its writer.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

FLUSH_SECONDS = 10.0
FLUSH_BYTES = 1 << 16
_NAME = "events.out.tfevents."


class EventFile:
    """Appends scalars and texts to an event file in `folder`, which is made when missing.

    Events reach the file every 10 seconds, every 64 KiB and at `flush`. When a write fails, the events since the one
    before are dropped and the file ends where it did, so that no reader meets half an event.

    Args:
        folder: folder of the event files of a run.
        purge_step: step from which on readers are to forget what earlier files hold, or None.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self.folder = folder
        self._file: Any = None
        self._events = bytearray()
        self._written = time.monotonic()
        self._header = _record(Event(file_version="brain.Event:2"))
        if purge_step is not None:
            self._header += _record(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def scalar(self, name: str, value: float, step: int) -> None:
        """Add a number; OSError when it is time to write and the file system refuses."""
        from tensorboardX.proto.summary_pb2 import Summary

        self._add_summary(Summary(value=[Summary.Value(tag=name, simple_value=value)]), step)

    def text(self, name: str, text: str, step: int) -> None:
        """Add a text in Markdown; OSError as `scalar`."""
        from tensorboardX.summary import text as summary

        self._add_summary(summary(name, text), step)

    def _add_summary(self, summary: Any, step: int) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._events += _record(Event(step=step, summary=summary))
        if len(self._events) >= FLUSH_BYTES or time.monotonic() - self._written >= FLUSH_SECONDS:
            self.write()

    def write(self) -> None:
        """Write what was added to the file.

        Raises:
            OSError: the file system refused; these events are lost.
        """
        events, self._events, self._written = self._events, bytearray(), time.monotonic()
        if not events:
            return
        if self._file is None:
            self._file = self._open()
        size = self._file.tell()
        view = memoryview(events if size else self._header + events)
        try:
            while len(view):
                view = view[self._file.write(view) :]
        except OSError:
            self._file.truncate(size)
            self._file.seek(size)
            raise

    def _open(self) -> Any:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Readers go by name, and a clock may have been set back since the file before.
        numbers = [name.removeprefix(_NAME).split(".")[0] for name in os.listdir(self.folder) if name.startswith(_NAME)]
        number = max([int(time.time()), *(int(number) + 1 for number in numbers if number.isdecimal())])
        path = self.folder / f"{_NAME}{number:010d}.{socket.gethostname()}.{os.getpid()}"
        return open(path, "xb", buffering=0)

    def flush(self) -> None:
        """Force everything added to the disk; OSError as `write`."""
        self.write()
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write the rest and close the file; OSError as `write`."""
        try:
            self.write()
        finally:
            file, self._file = self._file, None
            if file is not None:
                file.close()


def _record(event: Any) -> bytes:
    """Return an event with the time, its length and the checksums of both, as TensorBoard reads it."""
    from tensorboardX.record_writer import masked_crc32c

    event.wall_time = time.time()
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
    return length + checksums[0] + data + checksums[1]
