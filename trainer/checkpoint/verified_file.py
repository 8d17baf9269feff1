"""Read a large verified file in blocks, each checked again when it is used."""

from __future__ import annotations

import os
import weakref
import zlib
from pathlib import Path

import numpy as np

from ..errors import CheckpointDamagedError
from . import durable
from .manifest import check_size

BLOCK = 4 << 20  # bytes


class VerifiedFile:
    """An open file whose size and checksum have been verified.

    The checksum up to the end of every block is kept, so that bytes read later are those that were verified. The open
    file stays readable when its folder is removed.

    Args:
        path: the file.
        size: its bytes.
        crc: its CRC-32.

    Raises:
        CheckpointDamagedError: missing, of another size, altered or unreadable.
        CheckpointError: no permission, or too many open files.
    """

    def __init__(self, path: Path, size: int, crc: int) -> None:
        check_size(path, size)
        self.path, self.size = path, size
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise durable.read_error(path, error) from error
        weakref.finalize(self, os.close, self._descriptor)
        self._sums = [0]
        for number in range(-(-size // BLOCK)):
            self._sums.append(zlib.crc32(self._block(number), self._sums[-1]))
        if self._sums[-1] != crc:
            raise CheckpointDamagedError(f"{path} does not match its checksum: its content was altered")

    def _block(self, number: int) -> bytes:
        start = number * BLOCK
        try:
            block = os.pread(self._descriptor, min(BLOCK, self.size - start), start)
        except OSError as error:
            raise durable.read_error(self.path, error) from error
        if len(block) != min(BLOCK, self.size - start):
            raise CheckpointDamagedError(f"{self.path} was cut off while it was read")
        return block

    def read(self, begin: int, end: int) -> np.ndarray:
        """Return the bytes from `begin` to `end`, uint8 [n].

        Raises:
            CheckpointDamagedError: the file has been altered since it was verified.
        """
        out = np.empty(end - begin, np.uint8)
        for number in range(begin // BLOCK, -(-end // BLOCK)):
            block = self._block(number)
            if zlib.crc32(block, self._sums[number]) != self._sums[number + 1]:
                raise CheckpointDamagedError(f"{self.path} was altered while it was read")
            start = number * BLOCK
            first, last = max(begin, start), min(end, start + len(block))
            out[first - begin : last - begin] = np.frombuffer(block, np.uint8)[first - start : last - start]
        return out
