"""`IdMap`: a hash table that maps ids to row numbers.

A bucket is one cache line with cells for eight ids. Every id has a sequence of `CHOICES` buckets and is stored in the
first of them that has a free cell. Almost every lookup therefore reads a single cache line, and the cache misses of a
batch of lookups overlap. Every bucket counts the ids that found it full. Removing an id empties its cell and decrements
these counts, so lookups stay fast when ids come and go. A map that gets too full moves to a table of twice the size.
"""

from __future__ import annotations

import copy

import numpy as np

from ...native.memory import zeros

WAYS = 8  # cells per bucket
CHOICES = 32  # buckets per id
# A cell's key is the XOR of its id and this number. Key zero means an empty cell, so a new table needs no
# initialization, and `Buckets` cannot store this one id.
ZERO_KEY_ID = np.int64(-0x61C8864680B583EB)


class Buckets:
    """Maps int64 ids to int32 rows; the number of buckets is a power of two.

    The caller stores the row of `ZERO_KEY_ID` itself.
    """

    def __init__(self, buckets: int) -> None:
        from . import id_kernels

        self._find_ids, self._insert_ids, self._get_or_add_ids, self._remove_ids = (
            kernel.ready()
            for kernel in (id_kernels.find_ids, id_kernels.insert_ids, id_kernels.get_or_add_ids, id_kernels.remove_ids)
        )
        self._keys = zeros((buckets, WAYS), np.int64)
        self._rows = zeros((buckets, WAYS), np.int32)
        self._full_counts = zeros((buckets,), np.uint16)
        self._cells = self._keys.reshape(-1), self._rows.reshape(-1), self._full_counts, CHOICES

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """Addresses of keys, rows and full counts, and the bucket mask, for kernels."""
        arrays = (self._keys, self._rows, self._full_counts)
        keys, rows, full_counts = (array.__array_interface__["data"][0] for array in arrays)
        return keys, rows, full_counts, len(self) - 1

    def __len__(self) -> int:
        """Return the number of buckets."""
        return len(self._full_counts)

    @property
    def nbytes(self) -> int:
        """Memory of the table in bytes."""
        return self._keys.nbytes + self._rows.nbytes + self._full_counts.nbytes

    def copy(self) -> Buckets:
        """Return a copy that changes independently."""
        result = Buckets(len(self))
        result._keys[:], result._rows[:], result._full_counts[:] = self._keys, self._rows, self._full_counts
        return result

    def get(self, ids: np.ndarray) -> np.ndarray:
        """Return the row number of every id, int32 [n] for int64 [n]; -1 where unknown."""
        rows = np.empty(len(ids), np.int32)
        self._find_ids(*self._cells, _carray(ids), rows)
        return rows

    def insert(self, ids: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Map unknown `ids` to `rows`; return the (ids, rows) that found no free cell.

        Replace the table if there are any, because their buckets have already counted them.
        """
        overflow = np.empty(len(ids), np.int64)
        ids, rows = _carray(ids), _carray(rows)
        count = self._insert_ids(*self._cells, ids, rows, overflow)
        return ids[overflow[:count]], rows[overflow[:count]]

    def get_or_add(self, ids: np.ndarray, first: int, out: np.ndarray) -> np.ndarray:
        """Write the rows of `ids` into `out`; return the indices of the ids that are new.

        New ids get the rows from `first` on. Stops at the first id that finds no free cell or is `ZERO_KEY_ID`: `out`
        is -1 from there on, and no later id is stored.
        """
        new = np.empty(len(ids), np.int64)
        count = self._get_or_add_ids(*self._cells, ids, first, out, new)
        return new[:count]

    def remove(self, ids: np.ndarray) -> int:
        """Remove `ids` (all different) and return how many were known."""
        return self._remove_ids(*self._cells, _carray(ids))

    def items(self, first: int = 0, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids (int64 [n]) and rows (int32 [n]) of buckets `first` to `last`."""
        keys, rows = self._keys[first:last], self._rows[first:last]
        full = keys != 0
        return keys[full] ^ ZERO_KEY_ID, rows[full]


def _carray(array: np.ndarray) -> np.ndarray:
    return array if array.flags.carray else np.array(array)


_MAX_LOAD = 0.7  # largest share of cells in use
_BLOCK = 1 << 15  # buckets to move at once


class IdMap:
    """Maps int64 ids to int32 row numbers, exactly.

    Any number of threads may look up ids while one other thread adds some. The table starts with room for `expected`
    ids and doubles when it gets too full.
    """

    users = 1  # number of sparse tables that use this map, see `TableRows.share_ids`

    def __init__(self, expected: int = 0) -> None:
        self._table = Buckets(_enough_buckets(64, expected))
        self._zero_key_row = -1  # the row of `ZERO_KEY_ID`
        self._size = 0  # number of ids other than `ZERO_KEY_ID`

    def __len__(self) -> int:
        return self._size + (self._zero_key_row >= 0)

    def copy(self) -> IdMap:
        """Return a copy that changes independently."""
        result = copy.copy(self)
        result._table, result.users = self._table.copy(), 1
        return result

    def kernel_arguments(self) -> list[int]:
        """Return the row of `ZERO_KEY_ID` and `Buckets.addresses`, for kernels.

        The result is valid until the map changes.
        """
        return [self._zero_key_row, *self._table.addresses]

    @property
    def nbytes(self) -> int:
        """Memory of the table in bytes."""
        return self._table.nbytes

    def get(self, ids: np.ndarray) -> np.ndarray:
        """Return the row number of every id, int32 [n] for int64 [n]; -1 where unknown."""
        ids = np.ascontiguousarray(ids, np.int64)
        rows = self._table.get(ids)
        if (has_zero_key := ids == ZERO_KEY_ID).any():
            rows[has_zero_key] = self._zero_key_row
        return rows

    def add(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Map distinct unknown `ids` (int64 [n]) to `rows` (int32 [n], >= 0)."""
        ids, rows = np.ascontiguousarray(ids, np.int64), np.ascontiguousarray(rows, np.int32)
        if (has_zero_key := ids == ZERO_KEY_ID).any():
            self._zero_key_row = int(rows[has_zero_key][0])
            ids, rows = ids[~has_zero_key], rows[~has_zero_key]
        if not self._has_room(len(ids)):
            self._replace(_enough_buckets(2 * len(self._table), self._size + len(ids)))
        self._size += len(ids)
        ids, rows = self._table.insert(ids, rows)
        while len(ids):  # ids whose buckets are all full
            self._replace(2 * len(self._table))
            ids, rows = self._table.insert(ids, rows)

    def _has_room(self, count: int) -> bool:
        return self._size + count <= len(self._table) * WAYS * _MAX_LOAD

    def _replace(self, buckets: int) -> None:
        """Move all ids to a new table with at least `buckets` buckets."""
        table, overflow = Buckets(buckets), np.zeros(0)
        for first in range(0, len(self._table), _BLOCK):
            overflow, _ = table.insert(*self._table.items(first, first + _BLOCK))
            if len(overflow):
                self._replace(2 * buckets)
                return
        self._table = table

    def get_or_add(self, ids: np.ndarray, first: int, out: np.ndarray) -> np.ndarray | None:
        """Give unknown `ids` the rows from `first` on, in the order of first occurrence.

        Ids (int64 [n], contiguous) may repeat; `out` (int32 [n]) receives the row of each. Returns the ascending
        indices (int64) at which new ids first occur, or None, without any change, if the map may be too small.
        """
        if not self._has_room(len(ids)):
            return None
        new = self._table.get_or_add(ids, first, out)
        self._size += len(new)
        if len(out) and out[-1] < 0:
            rest = int(np.argmax(out < 0))  # no id from here on was stored
            new = np.concatenate((new, rest + self._get_or_add_rest(ids[rest:], first + len(new), out[rest:])))
        return new

    def _get_or_add_rest(self, ids: np.ndarray, first: int, out: np.ndarray) -> np.ndarray:
        out[:] = self.get(ids)
        unknown = np.flatnonzero(out < 0)
        new, first_at, inverse = np.unique(ids[unknown], return_index=True, return_inverse=True)
        rows = np.empty(len(new), np.int32)
        rows[np.argsort(first_at)] = np.arange(first, first + len(new), dtype=np.int32)
        self.add(new, rows)
        out[unknown] = rows[inverse]
        return unknown[np.sort(first_at)]

    def remove(self, ids: np.ndarray) -> None:
        """Remove `ids` (int64 [n], all different); unknown ids are ignored."""
        ids = np.ascontiguousarray(ids, np.int64)
        if (has_zero_key := ids == ZERO_KEY_ID).any():
            self._zero_key_row = -1
            ids = ids[~has_zero_key]
        self._size -= self._table.remove(ids)

    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all ids (int64 [n]) and their rows (int32 [n]), in no particular order."""
        ids, rows = self._table.items()
        if self._zero_key_row >= 0:
            ids, rows = np.append(ids, ZERO_KEY_ID), np.append(rows, np.int32(self._zero_key_row))
        return ids, rows


def _enough_buckets(buckets: int, ids: int) -> int:
    """Return `buckets`, doubled until there is room for `ids`."""
    while buckets * WAYS * _MAX_LOAD < ids:
        buckets *= 2
    return buckets


def find(keys: np.ndarray, values: np.ndarray, *, ascending: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Look up `values` in distinct `keys`; return (indices int64 [n], known bool [n]).

    An index is only valid where `known` is True. `ascending` says that `keys` are sorted.
    """
    if not len(keys):
        return np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
    order = None if ascending else np.argsort(keys)
    indices = np.minimum(np.searchsorted(keys, values, sorter=order), len(keys) - 1)
    if order is not None:
        indices = order[indices]
    return indices, keys[indices] == values
