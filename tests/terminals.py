"""A real pseudo-terminal for tests of what people see."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import termios


@contextlib.contextmanager
def real_terminal(columns):
    """A pseudo-terminal of this width: a file to write to, and a function that returns what was written."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    seen = bytearray()

    def read():
        while select.select([leader], [], [], 0.2)[0]:
            seen.extend(os.read(leader, 65536))
        return seen.decode()

    with os.fdopen(follower, "w") as file:
        yield file, read
    os.close(leader)
