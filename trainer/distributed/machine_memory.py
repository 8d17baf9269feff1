"""Memory through which processes of one machine receive each other's messages.

Each process writes to two files without a name (memfd): one for even exchanges, one for odd ones. The others map them
by `/proc/PID/fd`, which fails for another machine, container or user. A process that begins exchange n + 2 has the
messages of exchange n + 1 from all others, so that they have read those of exchange n: no acknowledgement is needed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from collections.abc import Sequence
from typing import Any

VARIABLE = "TRAINER_SHARED_MEMORY"  # "0": processes of one machine use their connections alone
LIMIT = 1 << 26  # bytes of an exchange in memory; what is beyond takes the connection
_NAME = "trainer-messages"
_OTHER_PROCESS = "another process has that number here"
_TOKEN_BYTES = 16
_ALIGNMENT = 64


class _Memory:
    """Two mapped files: of even and of odd exchanges."""

    def __init__(self) -> None:
        self._files: list[int] = []
        self._maps: list[mmap.mmap] = []

    def close(self) -> None:
        """Release the memory; mappings elsewhere and views of messages stay valid."""
        for file in self._files:
            with contextlib.suppress(OSError):
                os.close(file)
        self._files.clear()
        self._maps.clear()


class Outbox(_Memory):
    """Messages of this process."""

    def __init__(self) -> None:
        super().__init__()
        self._end = _ALIGNMENT
        self.address: list[Any] | None = None  # [process id, [file descriptor and token of each]]; None: no memory
        if os.environ.get(VARIABLE) == "0":
            return
        tokens = [secrets.token_bytes(_TOKEN_BYTES) for _ in range(2)]
        try:
            for token in tokens:
                self._files.append(os.memfd_create(_NAME))
                os.ftruncate(self._files[-1], mmap.PAGESIZE)
                self._maps.append(mmap.mmap(self._files[-1], mmap.PAGESIZE))
                self._maps[-1][:_TOKEN_BYTES] = token
        except OSError:
            self.close()
            return
        self.address = [os.getpid(), [[file, token.hex()] for file, token in zip(self._files, tokens, strict=True)]]

    def begin(self) -> None:
        """Start an exchange."""
        self._end = _ALIGNMENT

    def write(self, number: int, pieces: Sequence[memoryview]) -> int:
        """Write a message of exchange `number`; return its offset, 0 if there is no room."""
        start, turn = self._end, number % 2
        end = start + sum(piece.nbytes for piece in pieces)
        if end > LIMIT or (end > len(self._maps[turn]) and not self._grow(turn, end)):
            return 0
        position = start
        memory = memoryview(self._maps[turn])
        for piece in pieces:
            memory[position : position + piece.nbytes] = piece
            position += piece.nbytes
        self._end = -(-end // _ALIGNMENT) * _ALIGNMENT
        return start

    def _grow(self, turn: int, length: int) -> bool:
        length = max(mmap.PAGESIZE, 1 << (length - 1).bit_length())
        try:
            os.ftruncate(self._files[turn], length)
            self._maps[turn] = mmap.mmap(self._files[turn], length)
        except OSError:
            return False
        return True


class Inbox(_Memory):
    """Messages of another process of this machine, which gives its `Outbox.address`.

    Raises:
        OSError: the process is not on this machine, or its files cannot be opened.
    """

    def __init__(self, address: Sequence[Any]) -> None:
        super().__init__()
        process, files = address
        try:
            for file, token in files:
                path = f"/proc/{process}/fd/{file}"
                if not os.readlink(path).startswith(f"/memfd:{_NAME}"):  # opening a device could have effects
                    raise OSError(_OTHER_PROCESS)
                self._files.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
                if os.pread(self._files[-1], _TOKEN_BYTES, 0) != bytes.fromhex(token):
                    raise OSError(_OTHER_PROCESS)
                self._maps.append(mmap.mmap(self._files[-1], mmap.PAGESIZE))
        except (OSError, ValueError) as error:
            self.close()
            raise OSError(f"no memory is shared with process {process} ({error})") from error

    def read(self, number: int, offset: int, length: int) -> memoryview:
        """Return a message of exchange `number`, valid until the next exchange begins."""
        turn = number % 2
        if offset + length > len(self._maps[turn]):
            self._maps[turn] = mmap.mmap(self._files[turn], 0)
        return memoryview(self._maps[turn])[offset : offset + length]


def open_inboxes(rank: int, addresses: Sequence[Sequence[Any] | None]) -> dict[int, Inbox]:
    """Return the inboxes of the other ranks on this machine."""
    inboxes: dict[int, Inbox] = {}
    for peer, address in enumerate(addresses):
        if address is not None and addresses[rank] is not None and peer != rank:
            with contextlib.suppress(OSError):
                inboxes[peer] = Inbox(address)
    return inboxes
