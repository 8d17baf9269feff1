"""Arrays that are read block by block, so that memory does not grow with them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .verified_file import VerifiedFile

BLOCK_BYTES = 4 << 20


class BlockArray:
    """An array that is read by ranges of items.

    NumPy functions read all of it.

    Attributes:
        dtype: type of the elements.
        shape: of the array.
    """

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
        """Return the items at ascending `indices`, int [n].

        Only blocks that have some are read.
        """
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
    """An array in a verified file.

    Args:
        file: the file.
        dtype: type of the elements.
        shape: of the array, with an axis at least.
        begin: where its bytes begin.
    """

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

    Args:
        pieces: arrays of one dtype and of equal shapes but for axis 0.

    Raises:
        ValueError: they differ.
    """

    def __init__(self, pieces: Sequence[Any]) -> None:
        first = pieces[0]
        self._pieces = list(pieces)
        self._starts = np.cumsum([0, *map(len, pieces)])
        self.dtype = first.dtype
        self.shape = (int(self._starts[-1]), *first.shape[1:])
        for piece in pieces:
            if piece.dtype != first.dtype or piece.shape[1:] != first.shape[1:]:
                raise ValueError(f"{piece.dtype} {list(piece.shape)} beside {first.dtype} {list(first.shape)}")

    def read(self, first: int, last: int) -> np.ndarray:
        """Return the items from `first` to `last` along axis 0."""
        parts = [np.empty((0, *self.shape[1:]), self.dtype)]
        for piece, start in zip(self._pieces, self._starts.tolist(), strict=False):
            begin, end = max(first - start, 0), min(last - start, len(piece))
            if begin < end:
                parts.append(read(piece, begin, end))
        return parts[1] if len(parts) == 2 else np.concatenate(parts)


class TakenArray(BlockArray):
    """Some items of another array, read when they are needed.

    Args:
        source: the other array.
        indices: ascending, int [n].
    """

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
    """Return the items at ascending `indices`, int [n].

    Those of a `BlockArray` are read when they are needed.
    """
    return TakenArray(array, indices) if isinstance(array, BlockArray) else np.asarray(array)[indices]


def items_per_block(array: Any) -> int:
    """Return how many items of an array `BLOCK_BYTES` hold, at least one."""
    return max(1, BLOCK_BYTES // max(1, math.prod(array.shape[1:]) * np.dtype(array.dtype).itemsize))


def blocks(arrays: Mapping[str, Any], *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield (index of the first item, block of each named array).

    The arrays have one length.
    """
    size = min(items_per_block(arrays[name]) for name in names)
    count = arrays[names[0]].shape[0]
    for first in range(0, count, size):
        last = min(count, first + size)
        yield (first, *(read(arrays[name], first, last) for name in names))
