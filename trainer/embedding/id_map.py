"""From ids to row numbers: a vectorised hash table in NumPy that can also forget.

A bucket is eight ids, one cache line. An id lives in its first bucket, in the cell its hash names if that was free,
or, when the bucket was full, in the next of its `_CHOICES` buckets. A lookup therefore reads one line for almost every
id, all ids at once, so that the processor overlaps the cache misses. Every bucket counts the ids that passed it by, so
removal empties a cell and takes the counts back: rotating ids never degrade the table.
"""

from __future__ import annotations

import numpy as np

from trainer.embedding.hashing import mix64

_WAYS = 8
_CHOICES = 32
_MAX_LOAD = 0.7
_BLOCK = 1 << 15
_EMPTY = np.int64(-0x61C8864680B583EB)


class IdMap:
    """Maps int64 ids to int32 row numbers, without collision.

    Args:
        expected: number of ids to make room for at once; the table doubles when it gets too full.
    """

    def __init__(self, expected: int = 0) -> None:
        buckets = 64
        while buckets * _WAYS * _MAX_LOAD < expected:
            buckets *= 2
        self._allocate(buckets)

    def _allocate(self, buckets: int) -> None:
        self._keys = np.full((buckets, _WAYS), _EMPTY, np.int64)
        self._rows = np.zeros((buckets, _WAYS), np.int32)
        self._passed = np.zeros(buckets, np.uint16)
        self._mask = np.uint64(buckets - 1)
        self._size = 0
        # The one id that looks like an empty cell has a place of its own.
        self._odd_row = -1

    def __len__(self) -> int:
        return self._size + (self._odd_row >= 0)

    @property
    def nbytes(self) -> int:
        """Bytes of memory the table takes."""
        return self._keys.nbytes + self._rows.nbytes + self._passed.nbytes

    def _bucket(self, hashes: np.ndarray, choice: int) -> np.ndarray:
        if choice:
            hashes = mix64(hashes ^ np.uint64(choice))
        return (hashes & self._mask).view(np.int64)

    def _start(self, hashes: np.ndarray) -> np.ndarray:
        """Return the cell an id would like best: one of its first bucket."""
        return (self._bucket(hashes, 0) * _WAYS) + (hashes >> np.uint64(61)).view(np.int64)

    def _find(self, ids: np.ndarray) -> np.ndarray:
        """Return the cell of every id, int64 [n]: -1 where it is unknown."""
        cells = np.empty(len(ids), np.int64)
        for start in range(0, len(ids), _BLOCK):
            part = ids[start : start + _BLOCK]
            hashes = mix64(part)
            found = self._start(hashes)
            left = np.flatnonzero(np.take(self._keys.reshape(-1), found, mode="clip") != part)
            found[left] = self._search(part[left], hashes[left])
            cells[start : start + len(part)] = found
        return cells

    def _search(self, ids: np.ndarray, hashes: np.ndarray) -> np.ndarray:
        """Return the cells of ids that are not where they start, comparing whole buckets."""
        found = np.full(len(ids), -1, np.int64)
        left = np.arange(len(ids))
        for choice in range(_CHOICES):
            bucket = self._bucket(hashes[left], choice)
            equal = np.take(self._keys, bucket, axis=0, mode="clip") == ids[left][:, None]
            way = equal.argmax(axis=1)
            hit = equal.reshape(-1)[np.arange(0, equal.size, _WAYS) + way]
            found[left] = np.where(hit, bucket * _WAYS + way, -1)
            left = left[~hit & (self._passed[bucket] > 0)]
            if not len(left):
                break
        return found

    def get(self, ids: np.ndarray) -> np.ndarray:
        """Return the row number of every id, -1 where it is unknown: int32 [n] for int64 [n]."""
        ids = np.ascontiguousarray(ids, np.int64)
        cells = self._find(ids)
        rows = np.where(cells >= 0, np.take(self._rows.reshape(-1), cells, mode="clip"), np.int32(-1))
        if (odd := ids == _EMPTY).any():
            rows[odd] = self._odd_row
        return rows

    def add(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Map `ids` (int64 [n], different from each other and all unknown) to `rows` (int32 [n], none negative)."""
        ids, rows = np.ascontiguousarray(ids, np.int64), np.ascontiguousarray(rows, np.int32)
        if (odd := ids == _EMPTY).any():
            self._odd_row = int(rows[odd][0])
            ids, rows = ids[~odd], rows[~odd]
        while self._size + len(ids) > self._keys.size * _MAX_LOAD:
            self._double()
        self._place(ids, rows)

    def _place(self, ids: np.ndarray, rows: np.ndarray) -> None:
        while True:
            hashes = mix64(ids)
            cells = self._start(hashes)
            _, first = np.unique(cells, return_index=True)
            easy = first[self._keys.reshape(-1)[cells[first]] == _EMPTY]
            self._fill(cells[easy], ids[easy], rows[easy])
            left = np.ones(len(ids), np.bool_)
            left[easy] = False
            ids, rows, hashes = ids[left], rows[left], hashes[left]
            for choice in range(_CHOICES):
                if not len(ids):
                    return
                left = self._place_in(self._bucket(hashes, choice), ids, rows)
                ids, rows, hashes = ids[left], rows[left], hashes[left]
            if len(ids):
                # Their buckets counted them as passing by, but they never got in: rebuilding counts afresh.
                self._double()

    def _place_in(self, bucket: np.ndarray, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Put ids into free cells of their `bucket`, in turn; return the places of those that found none."""
        order = np.argsort(bucket, kind="stable")
        sorted_bucket = bucket[order]
        new_group = np.flatnonzero(np.diff(sorted_bucket, prepend=-1))
        turn = np.arange(len(ids)) - np.repeat(new_group, np.diff(new_group, append=len(ids)))
        taken = self._keys[sorted_bucket] != _EMPTY
        fits = turn < _WAYS - taken.sum(axis=1)
        way = np.argsort(taken, axis=1, kind="stable")[np.arange(len(ids)), np.minimum(turn, _WAYS - 1)]
        self._fill((sorted_bucket * _WAYS + way)[fits], ids[order[fits]], rows[order[fits]])
        np.add.at(self._passed, sorted_bucket[~fits], 1)
        return order[~fits]

    def _fill(self, cells: np.ndarray, ids: np.ndarray, rows: np.ndarray) -> None:
        self._keys.reshape(-1)[cells] = ids
        self._rows.reshape(-1)[cells] = rows
        self._size += len(cells)

    def _double(self) -> None:
        ids, rows, odd = *self._regular_items(), self._odd_row
        self._allocate(2 * len(self._keys))
        self._odd_row = odd
        for start in range(0, len(ids), 1 << 18):
            self._place(ids[start : start + (1 << 18)], rows[start : start + (1 << 18)])

    def remove(self, ids: np.ndarray) -> None:
        """Forget `ids` (int64 [n], different from each other); unknown ones are ignored."""
        ids = np.ascontiguousarray(ids, np.int64)
        if (ids == _EMPTY).any():
            self._odd_row = -1
        cells = self._find(ids)
        known = (cells >= 0) & (ids != _EMPTY)
        ids, cells = ids[known], cells[known]
        self._keys.reshape(-1)[cells] = _EMPTY
        self._size -= len(cells)
        hashes, home = mix64(ids), cells // _WAYS
        for choice in range(_CHOICES):
            bucket = self._bucket(hashes, choice)
            passed = bucket != home
            if not passed.any():
                return
            hashes, home = hashes[passed], home[passed]
            np.subtract.at(self._passed, bucket[passed], 1)

    def _regular_items(self) -> tuple[np.ndarray, np.ndarray]:
        full = self._keys != _EMPTY
        return self._keys[full], self._rows[full]

    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all ids (int64 [n]) and their rows (int32 [n]), in no particular order."""
        ids, rows = self._regular_items()
        if self._odd_row >= 0:
            ids, rows = np.append(ids, _EMPTY), np.append(rows, np.int32(self._odd_row))
        return ids, rows
