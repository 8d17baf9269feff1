"""`IdMap`: ids to row numbers, in a hash table that grows incrementally.

A table that gets too full is replaced by one at least twice as large: first the memory of the new one is allocated,
then the ids move bucket by bucket. Every call that adds ids does a part of this work, and so does `advance`. Meanwhile
an id is in exactly one of the two tables, and lookups search both.

A bucket holds eight ids, one cache line. An id is in its first bucket, in the cell that its hash selects if that was
free, or, when the bucket was full, in the next of its `CHOICES` buckets. A lookup therefore reads one line for almost
every id, and all ids at once, so the cache misses overlap. Every bucket counts the ids that overflowed it. Removal
empties the cell and decrements these counts, so rotating ids never degrade the table.
"""

from __future__ import annotations

import numpy as np

from ...native.memory import zeros
from .hashing import mix64

WAYS = 8
CHOICES = 32
# The one id that a table cannot store. Ids are stored combined with it, so that zero is an empty cell and a new table
# is untouched memory.
ODD_ID = np.int64(-0x61C8864680B583EB)


class Buckets:
    """Maps int64 ids to int32 rows without collisions, in a power of two of buckets.

    The caller stores the row of `ODD_ID`.
    """

    def __init__(self, buckets: int) -> None:
        from . import id_kernels

        self._find_ids, self._insert_ids, self._get_or_add_ids, self._remove_ids = (
            kernel.ready()
            for kernel in (id_kernels.find_ids, id_kernels.insert_ids, id_kernels.get_or_add_ids, id_kernels.remove_ids)
        )
        self._keys = zeros((buckets, WAYS), np.int64)
        self._rows = zeros((buckets, WAYS), np.int32)
        self._passed = zeros((buckets,), np.uint16)
        self._mask = np.uint64(buckets - 1)
        self._cells = self._keys.reshape(-1), self._rows.reshape(-1), self._passed, CHOICES

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """Addresses of ids, rows and overflow counts, and the bucket mask, for kernels."""
        arrays = (self._keys, self._rows, self._passed)
        keys, rows, passed = (array.__array_interface__["data"][0] for array in arrays)
        return keys, rows, passed, len(self) - 1

    def __len__(self) -> int:
        """Return the number of buckets."""
        return len(self._passed)

    @property
    def nbytes(self) -> int:
        """Memory of the table in bytes."""
        return self._keys.nbytes + self._rows.nbytes + self._passed.nbytes

    def touch(self, first: int, last: int) -> None:
        """Allocate the memory of the buckets from `first` up to `last`, all still empty."""
        for array in (self._keys, self._rows, self._passed):
            array[first:last] = 0

    def first_bucket(self, ids: np.ndarray) -> np.ndarray:
        """Return the first bucket of each of `ids`, int64 [n]."""
        return (mix64(ids) & self._mask).view(np.int64)

    def get(self, ids: np.ndarray) -> np.ndarray:
        """Return the row number of every id, int32 [n] for int64 [n]; -1 where unknown."""
        rows = np.empty(len(ids), np.int32)
        self._find_ids(*self._cells, _plain(ids), rows)
        return rows

    def insert(self, ids: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Map unknown `ids` to `rows`; return the (ids, rows) whose buckets are full.

        Buckets keep counting those as overflowed, so if there are any, the table should be replaced.
        """
        overflow = np.empty(len(ids), np.int64)
        ids, rows = _plain(ids), _plain(rows)
        count = self._insert_ids(*self._cells, ids, rows, overflow)
        return ids[overflow[:count]], rows[overflow[:count]]

    def get_or_add(self, ids: np.ndarray, first: int, out: np.ndarray) -> np.ndarray:
        """Write the rows of ids into `out`, new ones from `first` on; return new indices.

        Stops at an id that finds no room or is `ODD_ID`: `out` is -1 from there on, and no later id is stored.
        """
        new = np.empty(len(ids), np.int64)
        count = self._get_or_add_ids(*self._cells, ids, first, out, new)
        return new[:count]

    def remove(self, ids: np.ndarray) -> int:
        """Remove `ids` (all different) and return how many were known."""
        return self._remove_ids(*self._cells, _plain(ids))

    def items(self, first: int = 0, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids (int64 [n]) and rows (int32 [n]) of buckets `first` to `last`."""
        keys, rows = self._keys[first:last], self._rows[first:last]
        full = keys != 0
        return keys[full] ^ ODD_ID, rows[full]

    def take_out(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Empty the buckets from `first` up to `last` and return their items.

        Buckets that they overflowed keep counting them: lookups then probe too many buckets, never too few.
        """
        ids, rows = self.items(first, last)
        self._keys[first:last] = 0
        return ids, rows


def _plain(array: np.ndarray) -> np.ndarray:
    return array if array.flags.carray else np.array(array)


_MAX_LOAD = 0.7
# The new table's memory is allocated incrementally up to this load; above it a table is replaced at once.
_LAST_LOAD = 0.75
# Cells of the outgrown table moved per new id: it is empty long before the new table is full.
_CELLS_PER_ID = 4
# Allocating the memory of a cell takes a tenth of the time of moving its id.
_TOUCHED_PER_CELL = 10
_BLOCK = 1 << 18


class IdMap:
    """Maps int64 ids to int32 row numbers, without collisions.

    Lookups change nothing, so any number of threads may run them at once. There is room for the `expected` ids; the
    table doubles when it gets too full.
    """

    def __init__(self, expected: int = 0, step: int = 1 << 12) -> None:
        self._step = step  # least number of cells of an outgrown table that each call to `add` moves; see `advance`
        self._table = Buckets(_enough_buckets(64, expected))
        self._next: Buckets | None = None
        self._outgrown: Buckets | None = None
        self._done = 0  # buckets of `_next` with memory, or emptied buckets of `_outgrown`
        self._odd_row = -1  # the row of `ODD_ID`
        self._size = 0  # counted here: an id that is being moved is briefly in neither table

    def __len__(self) -> int:
        return self._size + (self._odd_row >= 0)

    def _tables(self) -> tuple[Buckets, ...]:
        return (self._table,) if self._outgrown is None else (self._table, self._outgrown)

    def described(self) -> list[int]:
        """Return the map's description for `id_kernels.find_rows`; valid until a change.

        That is the row of `ODD_ID`, the number of tables, and of both tables the `Buckets.addresses`.
        """
        tables = self._tables()
        addresses = [address for table in (*tables, *tables)[:2] for address in table.addresses]
        return [self._odd_row, len(tables), *addresses]

    @property
    def growing(self) -> bool:
        """Whether the table is still growing."""
        return self._next is not None or self._outgrown is not None

    @property
    def nbytes(self) -> int:
        """Memory of the tables in bytes."""
        tables = (*self._tables(), self._next)
        return sum(table.nbytes for table in tables if table is not None)

    def get(self, ids: np.ndarray) -> np.ndarray:
        """Return the row number of every id, int32 [n] for int64 [n]; -1 where unknown."""
        ids = np.ascontiguousarray(ids, np.int64)
        rows = self._table.get(ids) if self._outgrown is None else self._get_from_both(ids, self._outgrown)
        if (odd := ids == ODD_ID).any():
            rows[odd] = self._odd_row
        return rows

    def _get_from_both(self, ids: np.ndarray, outgrown: Buckets) -> np.ndarray:
        rows = np.empty(len(ids), np.int32)
        moved = outgrown.first_bucket(ids) < self._done
        # The likelier table first: almost every id is or was in its first bucket.
        for chosen, likely, other in ((moved, self._table, outgrown), (~moved, outgrown, self._table)):
            part = ids[chosen]
            own = likely.get(part)
            missing = np.flatnonzero(own < 0)
            own[missing] = other.get(part[missing])
            rows[chosen] = own
        return rows

    def add(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Map distinct unknown `ids` (int64 [n]) to `rows` (int32 [n], >= 0)."""
        ids, rows = np.ascontiguousarray(ids, np.int64), np.ascontiguousarray(rows, np.int32)
        if (odd := ids == ODD_ID).any():
            self._odd_row = int(rows[odd][0])
            ids, rows = ids[~odd], rows[~odd]
        self._make_room(len(ids))
        self._insert(ids, rows)
        self._size += len(ids)

    def get_or_add(self, ids: np.ndarray, first: int, out: np.ndarray) -> np.ndarray | None:
        """Give unknown `ids` the rows from `first` on, in the order of first occurrence.

        Ids (int64 [n], contiguous) may repeat; `out` (int32 [n]) receives the row of each. Returns the index of each
        new id's first occurrence, int64, ascending; None if the map lacks room or is growing, and nothing has changed.
        """
        if self.growing or self._size + len(ids) > len(self._table) * WAYS * _MAX_LOAD:
            return None
        new = self._table.get_or_add(ids, first, out)
        self._size += len(new)
        if len(out) and out[-1] < 0:
            rest = int(np.argmax(out < 0))  # nothing was stored from here on
            new = np.concatenate((new, rest + self._get_or_add_rest(ids[rest:], first + len(new), out[rest:])))
        return new

    def _get_or_add_rest(self, ids: np.ndarray, first: int, out: np.ndarray) -> np.ndarray:
        out[:] = self.get(ids)
        unknown = np.flatnonzero(out < 0)
        new, at, inverse = np.unique(ids[unknown], return_index=True, return_inverse=True)
        rows = np.empty(len(new), np.int32)
        rows[np.argsort(at)] = np.arange(first, first + len(new), dtype=np.int32)
        self.add(new, rows)
        out[unknown] = rows[inverse]
        return unknown[np.sort(at)]

    def _make_room(self, more: int) -> None:
        self.advance(_CELLS_PER_ID * more + self._step)
        cells = len(self._table) * WAYS
        if self._size + more > cells * _LAST_LOAD:
            self._next = None
            while self._outgrown is not None:
                self._move_buckets(self._outgrown, _BLOCK)
            self._replace_by(Buckets(_enough_buckets(len(self._table), self._size + more)))
        elif self._size + more > cells * _MAX_LOAD and not self.growing:
            self._next, self._done = Buckets(2 * len(self._table)), 0

    def advance(self, cells: int) -> None:
        """Do part of any pending growth: as much work as moving the ids of `cells` cells."""
        while cells > 0 and self.growing:
            part = min(cells, _BLOCK)
            if self._next is not None:
                self._provide(self._next, part)
            elif self._outgrown is not None:
                self._move_buckets(self._outgrown, part)
            cells -= part

    def _provide(self, table: Buckets, cells: int) -> None:
        first, self._done = self._done, min(self._done + 1 + cells * _TOUCHED_PER_CELL // WAYS, len(table))
        table.touch(first, self._done)
        if self._done == len(table):
            self._replace_by(table)

    def _replace_by(self, table: Buckets) -> None:
        self._outgrown, self._table, self._next, self._done = self._table, table, None, 0

    def _move_buckets(self, old: Buckets, cells: int) -> None:
        first, self._done = self._done, min(self._done + 1 + cells // WAYS, len(old))
        ids, rows = old.take_out(first, self._done)
        if self._done == len(old):
            self._outgrown = None
        self._insert(ids, rows)

    def _insert(self, ids: np.ndarray, rows: np.ndarray) -> None:
        ids, rows = self._table.insert(ids, rows)
        if len(ids):
            self._rebuild(ids, rows)

    def _rebuild(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Move `ids` that found no room, and all others, into one larger table."""
        parts = [(ids, rows), *(table.items() for table in self._tables())]
        ids, rows = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        buckets = len(self._table)
        overflow = ids
        while len(overflow):
            buckets *= 2
            table = Buckets(buckets)
            for start in range(0, len(ids), _BLOCK):
                overflow, _ = table.insert(ids[start : start + _BLOCK], rows[start : start + _BLOCK])
                if len(overflow):
                    break
        self._table, self._next, self._outgrown = table, None, None

    def remove(self, ids: np.ndarray) -> None:
        """Remove `ids` (int64 [n], all different); unknown ids are ignored."""
        ids = np.ascontiguousarray(ids, np.int64)
        if (odd := ids == ODD_ID).any():
            self._odd_row = -1
            ids = ids[~odd]
        self._size -= sum(table.remove(ids) for table in self._tables())

    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all ids (int64 [n]) and their rows (int32 [n]), in no particular order."""
        parts = [table.items() for table in self._tables()]
        if self._odd_row >= 0:
            parts.append((np.array([ODD_ID]), np.array([self._odd_row], np.int32)))
        ids, rows = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return ids, rows


def _enough_buckets(buckets: int, ids: int) -> int:
    """Return `buckets`, doubled until there is room for `ids`."""
    while buckets * WAYS * _MAX_LOAD < ids:
        buckets *= 2
    return buckets


def find(keys: np.ndarray, values: np.ndarray, *, ascending: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Look up `values` in `keys`; return (index, int64 [n]; known, bool [n])."""
    if not len(keys):
        return np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
    order = None if ascending else np.argsort(keys)
    indices = np.minimum(np.searchsorted(keys, values, sorter=order), len(keys) - 1)
    if order is not None:
        indices = order[indices]
    return indices, keys[indices] == values
