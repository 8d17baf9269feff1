"""A hash table of fixed size from ids to row numbers that can also forget.

A bucket is eight ids, one cache line. An id lives in its first bucket, in the cell its hash names if that was free,
or, when the bucket was full, in the next of its `_CHOICES` buckets. A lookup therefore reads one line for almost every
id, all ids at once, so that the processor overlaps the cache misses. Every bucket counts the ids that passed it by, so
removal empties a cell and takes the counts back: rotating ids never degrade the table.
"""

from __future__ import annotations

import numpy as np

from ...native.memory import zeros
from .hashing import mix64

WAYS = 8
_CHOICES = 32
# The one id that cannot be kept. Ids are stored combined with it, so that zero is an empty cell and a new table is
# memory not yet touched.
ODD_ID = np.int64(-0x61C8864680B583EB)


class Buckets:
    """Maps int64 ids to int32 row numbers, without collision. The caller keeps the row of `ODD_ID`.

    Args:
        buckets: number of buckets, a power of two.
    """

    def __init__(self, buckets: int) -> None:
        from . import id_kernels

        self._find_ids, self._place_ids, self._give_rows, self._remove_ids = (
            kernel.ready()
            for kernel in (id_kernels.find_ids, id_kernels.place_ids, id_kernels.give_rows, id_kernels.remove_ids)
        )
        self._keys = zeros((buckets, WAYS), np.int64)
        self._rows = zeros((buckets, WAYS), np.int32)
        self._passed = zeros((buckets,), np.uint16)
        self._mask = np.uint64(buckets - 1)
        self._cells = self._keys.reshape(-1), self._rows.reshape(-1), self._passed, _CHOICES

    def __len__(self) -> int:
        """Return the number of buckets."""
        return len(self._passed)

    @property
    def nbytes(self) -> int:
        """Bytes of memory the table takes."""
        return self._keys.nbytes + self._rows.nbytes + self._passed.nbytes

    def touch(self, first: int, last: int) -> None:
        """Have the operating system provide the memory of the buckets from `first` up to `last`, all still empty."""
        for array in (self._keys, self._rows, self._passed):
            array[first:last] = 0

    def first_bucket(self, ids: np.ndarray) -> np.ndarray:
        """Return the bucket that each of `ids` is looked for in first, int64 [n]."""
        return (mix64(ids) & self._mask).view(np.int64)

    def get(self, ids: np.ndarray) -> np.ndarray:
        """Return the row number of every id, -1 where it is unknown: int32 [n] for int64 [n]."""
        rows = np.empty(len(ids), np.int32)
        self._find_ids(*self._cells, _plain(ids), rows)
        return rows

    def place(self, ids: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Map unknown `ids` to `rows`; return (ids, rows) of those for which none of their buckets has room.

        Buckets go on counting those as passing by, so when there are any, the table should be replaced.
        """
        homeless = np.empty(len(ids), np.int64)
        ids, rows = _plain(ids), _plain(rows)
        count = self._place_ids(*self._cells, ids, rows, homeless)
        return ids[homeless[:count]], rows[homeless[:count]]

    def give(self, ids: np.ndarray, first: int, out: np.ndarray) -> np.ndarray:
        """Write the rows of ids into `out`, unknown ones being given those from `first` on; return where these stand.

        From an id on that cannot be placed, or is `ODD_ID`, everything is -1 and nothing is placed.
        """
        new = np.empty(len(ids), np.int64)
        count = self._give_rows(*self._cells, ids, first, out, new)
        return new[:count]

    def remove(self, ids: np.ndarray) -> int:
        """Forget `ids` (different from each other) and return how many were known."""
        return self._remove_ids(*self._cells, _plain(ids))

    def items(self, first: int = 0, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids (int64 [n]) and rows (int32 [n]) in the buckets from `first` up to `last`."""
        keys, rows = self._keys[first:last], self._rows[first:last]
        full = keys != 0
        return keys[full] ^ ODD_ID, rows[full]

    def take_out(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Empty the buckets from `first` up to `last` and return their items.

        The buckets they passed by go on counting them: others are looked for once too often, never too seldom.
        """
        ids, rows = self.items(first, last)
        self._keys[first:last] = 0
        return ids, rows


def _plain(array: np.ndarray) -> np.ndarray:
    return array if array.flags.carray else np.array(array)
