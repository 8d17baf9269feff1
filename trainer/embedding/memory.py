"""Memory that grows in place: what nobody has written to costs nothing, and what is there is not copied."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import sys
from pathlib import Path

import numpy as np

# Linux keeps memory in pages of this size where it is asked to: a random row of a large table is then found without
# reading several levels of page tables first, which takes longer than reading the row.
HUGE_PAGE = 1 << 21


def zeros(shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
    """Return an array of zeros for random access, in `HUGE_PAGE` pages if it is large."""
    count = math.prod(shape)
    if count * np.dtype(dtype).itemsize < HUGE_PAGE:
        return np.zeros(shape, dtype)
    memory = Memory()
    memory.grow(count * np.dtype(dtype).itemsize)
    return memory.array(dtype, count).reshape(shape)


class Memory:
    """Bytes, zero at first, in anonymous memory or in a mapped file.

    Args:
        path: file to map; None for anonymous memory.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._map: mmap.mmap | None = None
        self._file = None
        if path is not None:
            self._file = open(path, "w+b")  # noqa: SIM115 - lives as long as the mapping

    def grow(self, size: int) -> int:
        """Make room for at least `size` bytes and return how many there are.

        Drop the arrays from `array` first: while one is in use the content is copied to another place instead, and
        that array goes on showing the old one.
        """
        # only mappings of whole huge pages begin at the start of one
        page = HUGE_PAGE if size >= HUGE_PAGE and self._file is None else mmap.PAGESIZE
        size = -(-size // page) * page
        if self._map is None:
            self._map = self._new_map(size)
        elif size > len(self._map) and not self._moved(size):
            self._map = self._copied_map(size)
        return len(self._map)

    def _moved(self, size: int) -> bool:
        if not sys.platform.startswith("linux"):
            return False
        try:
            self._map.resize(size)
        except BufferError:  # somebody holds an array: moving its memory away would leave it dangling
            return False
        return True

    def _new_map(self, size: int) -> mmap.mmap:
        if self._file is not None:
            os.ftruncate(self._file.fileno(), size)
            mapped = mmap.mmap(self._file.fileno(), size)
            if hasattr(mmap, "MADV_RANDOM"):  # else one row that changes may have 2 MB around it written to the disk
                with contextlib.suppress(OSError):
                    mapped.madvise(mmap.MADV_RANDOM)
            return mapped
        if sys.platform == "win32":
            return mmap.mmap(-1, size)
        # A private mapping, because growing a shared anonymous one leaves its new pages unusable.
        new = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel built without them
                new.madvise(mmap.MADV_HUGEPAGE)  # also when it has grown or moved
        return new

    def _copied_map(self, size: int) -> mmap.mmap:
        old = self._map
        if self._file is not None:
            old.flush()
            return self._new_map(size)
        new = self._new_map(size)
        new[: len(old)] = old[:]
        return new

    def array(self, dtype: np.dtype | type, count: int) -> np.ndarray:
        """Return the first `count` elements of type `dtype` as an array [count] over this memory."""
        return np.frombuffer(self._map, dtype, count)

    def close(self) -> None:
        """Release the memory or the file; arrays from `array` must be gone."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._file is not None:
            self._file.close()
            self._file = None
