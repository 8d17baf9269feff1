"""Processes and temporary folders that end with the program that began them, even when that one is killed.

A second process, started first, waits until this one has ended in whatever way. Then it kills every process whose
environment carries this program's mark or that works in its folder, stopped ones and children of children included, and
removes the folder, to which all temporary files went. Off Linux only the folder goes: there the mark cannot be read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

MARK = "BENCHMARKS_LIFETIME"
_PATIENCE = 10.0


@contextlib.contextmanager
def guarded(prefix: str) -> Iterator[Path]:
    """Give a folder for temporary files; it and all processes started within end with the block or this process."""
    token = uuid.uuid4().hex
    folder = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
    guard = subprocess.Popen(
        [sys.executable, "-I", __file__, token, str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )
    before = {name: os.environ.get(name) for name in (MARK, "TMPDIR")}, tempfile.tempdir
    os.environ |= {MARK: token, "TMPDIR": str(folder)}
    tempfile.tempdir = None
    try:
        yield folder
    finally:
        for name, value in before[0].items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        tempfile.tempdir = before[1]
        guard.stdin.close()
        guard.wait()


def marked(token: str, folder: Path | None = None) -> list[int]:
    """Return the numbers of the processes that were started with this mark or that work in `folder`.

    A Redis server writes over its environment, but works in the folder of its data.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            marks = (process / "environ").read_bytes().split(b"\0")
            inside = folder is not None and Path(os.readlink(process / "cwd")).is_relative_to(folder)
            if inside or f"{MARK}={token}".encode() in marks:
                found.append(int(process.name))
    return found


def _end(token: str, folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while (left := marked(token, folder)) and time.monotonic() < deadline:
        for number in left:
            with contextlib.suppress(OSError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.05)
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # ends when the other side is closed, by will or by death
    _end(sys.argv[1], Path(sys.argv[2]))
