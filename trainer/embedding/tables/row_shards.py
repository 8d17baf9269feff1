"""Which process keeps an id's row, and the numbers that rows have among all processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .hashing import mix64

VIRTUAL_SHARDS = 1024
# bits of the hash that `buckets` uses neither for the bucket nor for the cell in it
_SHIFT = np.uint64(40)


@dataclass(frozen=True)
class Shards:
    """One process's part of the rows of every table.

    An id belongs to one of 1,024 virtual shards by its hash alone, and shard s to process s % `size`. A process numbers
    its rows from 1; among all processes row r of process p has the number (r - 1) * size + p + 1. Row 0, the default
    row, is kept by every process and is the same on all, as all train it alike.

    Attributes:
        rank: number of the process.
        size: processes.
    """

    rank: int = 0
    size: int = 1

    def owners(self, ids: np.ndarray) -> np.ndarray:
        """Return the process that keeps the row of each id (int64 [n]): int64 [n]."""
        shards = (mix64(ids) >> _SHIFT) & np.uint64(VIRTUAL_SHARDS - 1)
        return shards.view(np.int64) % self.size

    def owned(self, ids: np.ndarray) -> np.ndarray:
        """Return which of `ids` (int64 [n]) have their rows in this process: bool [n]."""
        return self.owners(ids) == self.rank

    def capacity(self, total: int | None) -> int | None:
        """Return how many of `total` rows this process may hold; the parts add up to the total."""
        return None if total is None else total // self.size + (self.rank < total % self.size)

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers among all processes of this one's `rows` (int32 [n]): int32 [n]; 0 stays 0."""
        return np.where(rows > 0, (rows - 1) * self.size + (self.rank + 1), 0).astype(np.int32)

    def keepers(self, numbers: np.ndarray) -> np.ndarray:
        """Return the process that keeps each row, given the numbers among all (none of them 0): [n]."""
        return (numbers - 1) % self.size

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Return the keeper's own row numbers, given the numbers among all: int32 [n]; 0 stays 0."""
        return ((numbers + (self.size - 1)) // self.size).astype(np.int32)


WHOLE = Shards()
