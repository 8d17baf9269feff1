"""Memory that grows in place without copying (Linux only), and padded sizes."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

# Linux provides pages of this size on request. With smaller pages, the processor reads several levels of page tables to
# find a random row of a large table, which takes longer than reading the row.
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

    An existing file of that name is replaced by a new one. A process that has the old file open, such as a training
    that runs at the same time, keeps the content of the old file.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._map: mmap.mmap | None = None
        self._file = None if path is None else _new_file(Path(path))

    def grow(self, size: int) -> int:
        """Grow to at least `size` bytes; return the new size.

        Drop the arrays from `array` first. While one of them is in use, `grow` copies the content to a new mapping
        instead, and the array keeps the old mapping.
        """
        # Linux aligns a mapping to huge pages only if its size is a multiple of `HUGE_PAGE`.
        page = HUGE_PAGE if size >= HUGE_PAGE and self._file is None else mmap.PAGESIZE
        size = -(-size // page) * page
        if self._map is None:
            self._map = self._new_map(size)
        elif size > len(self._map):
            try:
                self._map.resize(size)
            except BufferError:  # an array is in use and would be left dangling
                old, self._map = self._map, self._new_map(size)
                if self._file is None:
                    self._map[: len(old)] = old[:]
        return len(self._map)

    def _new_map(self, size: int) -> mmap.mmap:
        if self._file is None:
            # A private mapping, because growing a shared anonymous one leaves its new pages unusable.
            new = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            advice = mmap.MADV_HUGEPAGE  # stays in effect when the mapping grows or moves
        else:
            if self._map is not None:
                self._map.flush()
            os.ftruncate(self._file.fileno(), size)
            new = mmap.mmap(self._file.fileno(), size)
            advice = mmap.MADV_RANDOM  # otherwise, changing one row may write 2 MB to the disk
        with contextlib.suppress(OSError):  # the Linux kernel was built without huge pages
            new.madvise(advice)
        return new

    def array(self, dtype: np.dtype | type, count: int) -> np.ndarray:
        """Return the first `count` elements as an array [count] over this memory."""
        assert self._map is not None  # there is none before `grow`
        return np.frombuffer(self._map, dtype, count)

    def close(self) -> None:
        """Release the memory or the file; arrays from `array` must be gone."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._file is not None:
            self._file.close()
            self._file = None


def _new_file(path: Path) -> BinaryIO:
    """Create a file; an existing one of that name is removed first."""
    path = path.resolve()  # a link may lead to another disk
    while True:
        with contextlib.suppress(FileExistsError):  # another process may have created it in between
            path.unlink(missing_ok=True)
            return open(path, "x+b")


class Columns(dict[str, np.ndarray]):
    """Arrays [rows] by name; each can be replaced by one of equal length and dtype.

    Columns with elements of eight bytes grow in place. Smaller ones are copied when they grow, because a snapshot may
    still use the old array of changed rows.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._length = rows
        self._memory: dict[str, Memory] = {}

    def add(self, name: str, dtype: np.dtype | type) -> None:
        """Add a column of zeros."""
        if np.dtype(dtype).itemsize < 8:
            self[name] = np.zeros(self._length, dtype)
        else:
            self._memory[name] = Memory()
            self._map_column(name, np.dtype(dtype))

    def _map_column(self, name: str, dtype: np.dtype) -> None:
        self._memory[name].grow(self._length * dtype.itemsize)
        self[name] = self._memory[name].array(dtype, self._length)

    def reserve(self, rows: int) -> None:
        """Grow to at least `rows` rows; no other thread may be using a column."""
        if rows <= self._length:
            return
        length, self._length = self._length, max(rows, 2 * self._length)
        for name in list(self):
            dtype = self[name].dtype
            if name in self._memory:
                self[name] = np.zeros(0, dtype)  # drop the old array, so that its memory can move
                self._map_column(name, dtype)
            else:
                grown = np.zeros(self._length, dtype)  # pages that are never written take no memory
                grown[:length] = self[name]
                self[name] = grown


def bucket(count: int, per_octave: int = 1, *, minimum: int = 1, coarse: int = 0) -> int:
    """Round `count` up to one of few sizes, so that few programs are compiled.

    The sizes are the powers of two. For counts above `coarse`, the range between two powers of two is divided into
    `per_octave` equal steps. All sizes are multiples of `minimum`.

    Args:
        count: number that has to fit, >= 0.
        per_octave: number of sizes per factor of two, a power of two.
        minimum: smallest size, a power of two.
        coarse: count up to which only powers of two are used.
    """
    octave = 1 << max(0, (count - 1).bit_length() - 1)
    step = max(minimum, octave // (per_octave if count > coarse else 1))
    return -(-max(1, count) // step) * step
