"""A hash table of fixed size from ids to row numbers that can also forget.

A bucket is eight ids, one cache line. An id lives in its first bucket, in the cell its hash names if that was free,
or, when the bucket was full, in the next of its `_CHOICES` buckets. A lookup therefore reads one line for almost every
id, all ids at once, so that the processor overlaps the cache misses. Every bucket counts the ids that passed it by, so
removal empties a cell and takes the counts back: rotating ids never degrade the table.
"""

from __future__ import annotations

import numpy as np

from .hashing import mix64
from .memory import zeros

WAYS = 8
_CHOICES = 32
_BLOCK = 1 << 15
# The one id that cannot be kept. Ids are stored combined with it, so that zero is an empty cell and a new table is
# memory nobody has touched yet.
ODD_ID = np.int64(-0x61C8864680B583EB)


class Buckets:
    """Maps int64 ids to int32 row numbers, without collision. `ODD_ID` must be seen to by whoever uses it.

    Args:
        buckets: number of buckets, a power of two.
    """

    def __init__(self, buckets: int) -> None:
        from . import id_kernels

        self._find_ids, self._place_ids, self._give_rows = (
            kernel.ready() for kernel in (id_kernels.find_ids, id_kernels.place_ids, id_kernels.give_rows)
        )
        self._keys = zeros((buckets, WAYS), np.int64)
        self._rows = zeros((buckets, WAYS), np.int32)
        self._passed = zeros((buckets,), np.uint16)
        self._mask = np.uint64(buckets - 1)

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

    def _bucket(self, hashes: np.ndarray, choice: int) -> np.ndarray:
        if choice:
            hashes = mix64(hashes ^ np.uint64(choice))
        return (hashes & self._mask).view(np.int64)

    def _cells(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        return self._keys.reshape(-1), self._rows.reshape(-1), self._passed, _CHOICES

    def first_bucket(self, ids: np.ndarray) -> np.ndarray:
        """Return the bucket where each of `ids` is looked for first, int64 [n]."""
        return self._bucket(mix64(ids), 0)

    def _start(self, hashes: np.ndarray) -> np.ndarray:
        """Return the cell an id would like best: one of its first bucket."""
        return (self._bucket(hashes, 0) * WAYS) + (hashes >> np.uint64(61)).view(np.int64)

    def _find(self, ids: np.ndarray) -> np.ndarray:
        """Return the cell of every id, int64 [n]: -1 where it is unknown."""
        cells = np.empty(len(ids), np.int64)
        for start in range(0, len(ids), _BLOCK):
            part = ids[start : start + _BLOCK]
            hashes, keys = mix64(part), part ^ ODD_ID
            found = self._start(hashes)
            left = np.flatnonzero(np.take(self._keys.reshape(-1), found, mode="clip") != keys)
            found[left] = self._search(keys[left], hashes[left])
            cells[start : start + len(part)] = found
        return cells

    def _search(self, keys: np.ndarray, hashes: np.ndarray) -> np.ndarray:
        """Return the cells of ids that are not where they start, comparing whole buckets."""
        found = np.full(len(keys), -1, np.int64)
        left = np.arange(len(keys))
        for choice in range(_CHOICES):
            bucket = self._bucket(hashes[left], choice)
            equal = np.take(self._keys, bucket, axis=0, mode="clip") == keys[left][:, None]
            way = equal.argmax(axis=1)
            hit = equal.reshape(-1)[np.arange(0, equal.size, WAYS) + way]
            found[left] = np.where(hit, bucket * WAYS + way, -1)
            left = left[~hit & (self._passed[bucket] > 0)]
            if not len(left):
                break
        return found

    def get(self, ids: np.ndarray) -> np.ndarray:
        """Return the row number of every id, -1 where it is unknown: int32 [n] for int64 [n]."""
        rows = np.empty(len(ids), np.int32)
        ids = ids if ids.flags.carray else np.array(ids)
        self._find_ids(*self._cells(), ids, rows)
        return rows

    def place(self, ids: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Map unknown `ids` to `rows`; return (ids, rows) of those for which none of their buckets has room.

        Buckets go on counting those as passing by, so when there are any, the table should be replaced.
        """
        homeless = np.empty(len(ids), np.int64)
        ids, rows = (array if array.flags.carray else np.array(array) for array in (ids, rows))
        count = self._place_ids(*self._cells(), ids, rows, homeless)
        return ids[homeless[:count]], rows[homeless[:count]]

    def give(self, ids: np.ndarray, first: int, out: np.ndarray) -> np.ndarray:
        """Write the rows of ids into `out`, unknown ones being given those from `first` on; return the places of those.

        From an id on that cannot be placed, or is `ODD_ID`, everything is -1 and nothing is placed.
        """
        places = np.empty(len(ids), np.int64)
        count = self._give_rows(*self._cells(), ids, first, out, places)
        return places[:count]

    def remove(self, ids: np.ndarray) -> int:
        """Forget `ids` (different from each other) and return how many there were; unknown ones are ignored."""
        cells = self._find(ids)
        known = cells >= 0
        ids, cells = ids[known], cells[known]
        self._keys.reshape(-1)[cells] = 0
        hashes, home = mix64(ids), cells // WAYS
        for choice in range(_CHOICES):
            bucket = self._bucket(hashes, choice)
            passed = bucket != home
            if not passed.any():
                break
            hashes, home = hashes[passed], home[passed]
            np.subtract.at(self._passed, bucket[passed], 1)
        return len(cells)

    def items(self, first: int = 0, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids (int64 [n]) and rows (int32 [n]) in the buckets from `first` up to `last`."""
        keys, rows = self._keys[first:last], self._rows[first:last]
        full = keys != 0
        return keys[full] ^ ODD_ID, rows[full]

    def take_out(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the items of the buckets from `first` up to `last`, which are empty then.

        The buckets they passed by go on counting them: others are looked for once too often, never too seldom.
        """
        ids, rows = self.items(first, last)
        self._keys[first:last] = 0
        return ids, rows
