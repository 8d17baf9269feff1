"""A hash table of fixed size from ids to row numbers, vectorised in NumPy, that can also forget.

A bucket is eight ids, one cache line. An id lives in its first bucket, in the cell its hash names if that was free,
or, when the bucket was full, in the next of its `_CHOICES` buckets. A lookup therefore reads one line for almost every
id, all ids at once, so that the processor overlaps the cache misses. Every bucket counts the ids that passed it by, so
removal empties a cell and takes the counts back: rotating ids never degrade the table.
"""

from __future__ import annotations

import numpy as np

from .hashing import mix64

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
        self._keys = np.zeros((buckets, WAYS), np.int64)
        self._rows = np.zeros((buckets, WAYS), np.int32)
        self._passed = np.zeros(buckets, np.uint16)
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
        cells = self._find(ids)
        return np.where(cells >= 0, np.take(self._rows.reshape(-1), cells, mode="clip"), np.int32(-1))

    def place(self, ids: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Map unknown `ids` to `rows`; return (ids, rows) of those for which none of their buckets has room.

        Buckets go on counting those as passing by, so when there are any, the table should be replaced.
        """
        hashes = mix64(ids)
        cells = self._start(hashes)
        _, first = np.unique(cells, return_index=True)
        easy = first[self._keys.reshape(-1)[cells[first]] == 0]
        self._fill(cells[easy], ids[easy], rows[easy])
        left = np.ones(len(ids), np.bool_)
        left[easy] = False
        ids, rows, hashes = ids[left], rows[left], hashes[left]
        for choice in range(_CHOICES):
            if not len(ids):
                break
            left = self._place_in(self._bucket(hashes, choice), ids, rows)
            ids, rows, hashes = ids[left], rows[left], hashes[left]
        return ids, rows

    def _place_in(self, bucket: np.ndarray, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Put ids into free cells of their `bucket`, in turn; return the places of those that found none."""
        order = np.argsort(bucket, kind="stable")
        sorted_bucket = bucket[order]
        new_group = np.flatnonzero(np.diff(sorted_bucket, prepend=-1))
        turn = np.arange(len(ids)) - np.repeat(new_group, np.diff(new_group, append=len(ids)))
        taken = self._keys[sorted_bucket] != 0
        fits = turn < WAYS - taken.sum(axis=1)
        way = np.argsort(taken, axis=1, kind="stable")[np.arange(len(ids)), np.minimum(turn, WAYS - 1)]
        self._fill((sorted_bucket * WAYS + way)[fits], ids[order[fits]], rows[order[fits]])
        np.add.at(self._passed, sorted_bucket[~fits], 1)
        return order[~fits]

    def _fill(self, cells: np.ndarray, ids: np.ndarray, rows: np.ndarray) -> None:
        self._keys.reshape(-1)[cells] = ids ^ ODD_ID
        self._rows.reshape(-1)[cells] = rows

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
