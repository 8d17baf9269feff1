"""Read arrays from files in blocks, so that large files need little memory."""

from __future__ import annotations

import math
import os
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointDamagedError
from . import durable
from .manifest import check_size

BLOCK_BYTES = 4 << 20
CHECKED_BYTES = 4 << 20  # bytes of a file per stored checksum


class VerifiedFile:
    """An open file whose size and checksum have been verified.

    The checksums of its blocks are kept in memory, to verify later reads too. The open file stays readable if its
    folder is removed. Raises the errors of `manifest.read_verified`.
    """

    def __init__(self, path: Path, size: int, crc: int) -> None:
        check_size(path, size)
        self.path, self.size = path, size
        with durable.reading(path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self._sums = [0]
        for number in range(-(-size // CHECKED_BYTES)):
            self._sums.append(zlib.crc32(self._block(number), self._sums[-1]))
        if self._sums[-1] != crc:
            raise CheckpointDamagedError(f"{path} does not match its checksum: its content was altered")

    def _block(self, number: int) -> bytes:
        start = number * CHECKED_BYTES
        with durable.reading(self.path):
            block = os.pread(self._descriptor, min(CHECKED_BYTES, self.size - start), start)
        if len(block) != min(CHECKED_BYTES, self.size - start):
            raise CheckpointDamagedError(f"{self.path} was cut off while it was read")
        return block

    def read(self, begin: int, end: int) -> np.ndarray:
        """Return the bytes from `begin` to `end`, uint8 [n].

        Raises:
            CheckpointDamagedError: the file has been altered since it was verified.
        """
        out = np.empty(end - begin, np.uint8)
        for number in range(begin // CHECKED_BYTES, -(-end // CHECKED_BYTES)):
            block = self._block(number)
            if zlib.crc32(block, self._sums[number]) != self._sums[number + 1]:
                raise CheckpointDamagedError(f"{self.path} was altered while it was read")
            start = number * CHECKED_BYTES
            first, last = max(begin, start), min(end, start + len(block))
            out[first - begin : last - begin] = np.frombuffer(block, np.uint8)[first - start : last - start]
        return out


class BlockArray:
    """An array that is read in ranges of items; NumPy functions read all of it."""

    dtype: np.dtype
    shape: tuple[int, ...]

    def read(self, first: int, last: int) -> np.ndarray:
        """Return the items from `first` to `last` along axis 0."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = self.read(0, len(self))
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Return the items at ascending `indices`, int [n]; reads only their blocks."""
        out = np.empty((len(indices), *self.shape[1:]), self.dtype)
        at = 0
        while at < len(indices):
            first = int(indices[at])
            last = min(first + items_per_block(self), len(self))
            end = at + int(np.searchsorted(indices[at:], last))
            last = int(indices[end - 1]) + 1
            out[at:end] = self.read(first, last)[indices[at:end] - first]
            at = end
        return out


class StoredArray(BlockArray):
    """An array of one or more axes, stored at offset `begin` of a verified file."""

    def __init__(self, file: VerifiedFile, dtype: np.dtype, shape: Sequence[int], begin: int) -> None:
        self._file, self._begin = file, begin
        self.dtype, self.shape = dtype, tuple(shape)
        self._item = math.prod(shape[1:]) * dtype.itemsize

    def read(self, first: int, last: int) -> np.ndarray:
        """Return the items from `first` to `last` along axis 0."""
        content = self._file.read(self._begin + first * self._item, self._begin + last * self._item)
        return content.view(self.dtype).reshape(last - first, *self.shape[1:])


class JoinedArray(BlockArray):
    """Arrays joined along axis 0.

    Raises:
        ValueError: the arrays differ in dtype or in another axis.
    """

    def __init__(self, pieces: Sequence[Any]) -> None:
        first = pieces[0]
        self._pieces = list(pieces)
        self._starts = np.cumsum([0, *map(len, pieces)])
        self.dtype = first.dtype
        self.shape = (int(self._starts[-1]), *first.shape[1:])
        for piece in pieces:
            if piece.dtype != first.dtype or piece.shape[1:] != first.shape[1:]:
                raise ValueError(
                    f"cannot join {first.dtype} {list(first.shape)} and {piece.dtype} {list(piece.shape)}: dtype and "
                    "all axes but the first must be equal"
                )

    def read(self, first: int, last: int) -> np.ndarray:
        """Return the items from `first` to `last` along axis 0."""
        parts = [np.empty((0, *self.shape[1:]), self.dtype)]
        for piece, start in zip(self._pieces, self._starts.tolist(), strict=False):
            begin, end = max(first - start, 0), min(last - start, len(piece))
            if begin < end:
                parts.append(read(piece, begin, end))
        return parts[1] if len(parts) == 2 else np.concatenate(parts)


class TakenArray(BlockArray):
    """The items of another array at ascending `indices`, read when needed."""

    def __init__(self, source: BlockArray, indices: np.ndarray) -> None:
        self._source, self._indices = source, indices
        self.dtype, self.shape = source.dtype, (len(indices), *source.shape[1:])

    def read(self, first: int, last: int) -> np.ndarray:
        """Return the items from `first` to `last` along axis 0."""
        return self._source.take(self._indices[first:last])


def read(array: Any, first: int, last: int) -> np.ndarray:
    """Return the items from `first` to `last` of an array of any kind."""
    return array.read(first, last) if isinstance(array, BlockArray) else np.asarray(array)[first:last]


def taken(array: Any, indices: np.ndarray) -> Any:
    """Return the items at ascending `indices`, int [n]; a `BlockArray` is read lazily."""
    return TakenArray(array, indices) if isinstance(array, BlockArray) else np.asarray(array)[indices]


def items_per_block(array: Any) -> int:
    """Return how many items of an array fit into `BLOCK_BYTES`, at least one."""
    return max(1, BLOCK_BYTES // max(1, math.prod(array.shape[1:]) * np.dtype(array.dtype).itemsize))


def blocks(arrays: Mapping[str, Any], *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield (index of the first item, block of each array) for arrays of equal length."""
    size = min(items_per_block(arrays[name]) for name in names)
    count = arrays[names[0]].shape[0]
    for first in range(0, count, size):
        last = min(count, first + size)
        yield (first, *(read(arrays[name], first, last) for name in names))
