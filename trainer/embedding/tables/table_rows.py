"""`TableRows`: a host table's ids, row values and change tracking."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import numpy as np

from ...native.memory import Columns
from .hashing import UNSHARDED, Shards, initial_rows, stable_seed
from .id_map import IdMap
from .row_store import RowStore
from .spec import DEFAULT_ROW, PADDING, Admission, TableSpec

_BLOCK = 1 << 15  # rows to write at once


def dirty_column(consumer: str) -> str:
    """Return the column that marks rows changed since the consumer's last state."""
    return f"dirty.{consumer}"


class TableRows:
    """A table's ids, rows and bookkeeping; `SparseTable` adds planning and training.

    Attributes:
        rule: name of the row optimizer whose slots the rows have; None if the table is only read.
    """

    rule: str | None = None

    def __init__(self, spec: TableSpec, first_slots: np.ndarray, shards: Shards = UNSHARDED) -> None:
        self.spec = spec
        self.shards = shards  # the part of the ids that this process owns
        self.capacity = shards.capacity(spec.capacity)
        self.first_slots = np.asarray(first_slots, np.float32)  # optimizer slots of a new row
        self.width = spec.dim + len(self.first_slots)
        self.seed = stable_seed(spec.seed, spec.name)
        self.lock = threading.RLock()
        path = f"{spec.path}.{shards.rank}" if spec.path is not None and shards.size > 1 else spec.path
        self.store = RowStore(self.width, 1024, path, 0 if spec.dtype == "float32" else spec.dim)
        self.map = IdMap(min(self.capacity or 0, 1 << 20))
        self.admission = Admission(spec.admission, self.seed)
        self.columns = Columns(1024)  # bookkeeping of every row, such as its last use and whether it has changed
        for name in ("live", "uncommitted"):  # uncommitted: allocated by a plan that is not trained yet
            self.columns.add(name, np.bool_)
        self.meta_names: tuple[str, ...] = ()  # columns saved in snapshots
        if spec.eviction is not None or self.store.halves:
            self.columns.add("id", np.int64)
        if spec.eviction is not None:
            self.meta_names = ("plan", "last_step", *(["frequency"] if spec.eviction.when_full == "lfu" else []))
            for name in ("in_use", *self.meta_names):
                self.columns.add(name, np.int64)
            if spec.eviction.ttl is not None:
                self.columns.add("last_time", np.float64)
                self.meta_names += ("last_time",)
        self.next_row = DEFAULT_ROW + 1
        self.numbering = object()  # tables that give every id the same row share this object
        self.free = np.zeros(0, np.int32)  # rows below `next_row` without an id
        self.step = 0  # number of steps planned so far
        self.last_sweep = 0.0  # time of the latest search for expired ids
        self.plans = 0  # number of plans so far
        self.ticket = 0  # number of the latest plan; `plans` decreases when a plan is undone, `ticket` never does
        self.counters = dict.fromkeys(("admitted", "evicted", "expired", "overflowed", "refused"), 0)
        self.snapshot_readers: list[Callable[[], object]] = []  # called before their data changes
        self.tombstones: dict[str, list[np.ndarray]] = {}  # consumer -> ids that lost their row since its last delta
        self.columns["live"][DEFAULT_ROW] = True
        self.reset_default_row()

    def __len__(self) -> int:
        """Return the number of ids that have their own row."""
        return min(len(self.map), self.next_row - 1)  # a shared map may be ahead, see `share_ids`

    @property
    def nbytes(self) -> int:
        """Bytes in use: rows up to the highest, bookkeeping, id map and sketch."""
        sketch = 0 if self.admission.sketch is None else self.admission.sketch.nbytes
        columns = sum(column.nbytes for column in self.columns.values())
        return self.next_row * self.store.words * 4 + columns + self.map.nbytes // self.map.users + sketch

    def packed(self, weights: np.ndarray) -> np.ndarray:
        """Append the slots of new rows to `weights`, float32 [n, dim] -> [n, width]."""
        slots = np.broadcast_to(self.first_slots, (len(weights), len(self.first_slots)))
        return np.concatenate((weights, slots), axis=1)

    def reset_default_row(self) -> None:
        """Reset the default row: zero weights, and slots with their initial values."""
        self.store.write(np.array([DEFAULT_ROW]), self.packed(np.zeros((1, self.spec.dim), np.float32)))

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock during a change; call the pending snapshot readers first."""
        with self.lock:
            for read in self.snapshot_readers:
                read()
            self.snapshot_readers.clear()
            yield

    def reserve(self, rows: int) -> None:
        """Allocate at least `rows` rows."""
        with self.lock, self.store.lock:
            self.store.reserve(rows)
            self.columns.reserve(rows)

    # -- ids -----------------------------------------------------------------------------------------------------

    def has_same_rows(self, other: TableRows) -> bool:
        """Return whether `other` gives every id, known or new, the same row as this table."""
        if self.numbering is not other.numbering:
            if (self.next_row, len(self)) != (other.next_row, len(other)):
                return False
            ids, rows = self.items()
            if not np.array_equal(other.map.get(ids), rows):
                return False
            self.numbering = other.numbering
        return True

    def share_ids(self, other: TableRows) -> None:
        """Use `other`'s id map from now on; both tables must give every id the same row.

        Each plan of `other` must be repeated in this table before the next one (`table.plan_same_rows`). Until then the
        map is ahead of this table: rows from `next_row` on are not in use here. So it is after `put` in one of the
        tables, until the others have received the same ids. Does nothing if a table has free rows.
        """
        if self.map is not other.map and not len(self.free) and not len(other.free):
            with self.lock:
                self.map.users -= 1
                self.map = other.map
                self.map.users += 1

    @property
    def map_is_ahead(self) -> bool:
        """Whether the map contains ids that this table does not have yet, see `share_ids`."""
        return len(self.map) >= self.next_row

    def own_ids(self) -> None:
        """Stop sharing the id map, and remove ids that this table does not have from it.

        Call this before a change that the other tables do not repeat.
        """
        with self.lock:
            if self.map.users > 1:
                self.map.users -= 1
                self.map = self.map.copy()
            if self.map_is_ahead:
                ids, rows = self.map.items()
                self.map.remove(ids[rows >= self.next_row])

    def _add_ids(self, ids: np.ndarray) -> np.ndarray:
        """Give new ids (int64 [n]) rows, int32 [n].

        A shared map stays shared while all of its tables get the same ids in the same order.
        """
        if self.map.users > 1 or self.map_is_ahead:
            expected = np.arange(self.next_row, self.next_row + len(ids), dtype=np.int32)
            if np.array_equal(self.map.get(ids), expected):  # another table was given these ids before
                return self.take_rows(len(ids))
            if self.map_is_ahead:
                self.own_ids()
        rows = self.take_rows(len(ids))
        self.map.add(ids, rows)
        return rows

    def clear(self) -> None:
        """Remove every id."""
        with self.changing():
            self.map.users -= 1
            self.map = IdMap()
            for column in self.columns.values():
                column[:] = 0
            self.columns["live"][DEFAULT_ROW] = True
            self.next_row = DEFAULT_ROW + 1
            self.numbering = object()
            self.set_free_rows()

    def take_rows(self, count: int) -> np.ndarray:
        """Return `count` rows for new ids, free ones first; the caller holds the lock."""
        free, self.free = self.free[:count], self.free[count:]
        rows = np.concatenate((free, np.arange(self.next_row, self.next_row + count - len(free), dtype=np.int32)))
        self.next_row += count - len(free)
        self.numbering = object()
        self.reserve(self.next_row)
        return rows

    def put(self, ids: np.ndarray, weights: np.ndarray) -> None:
        """Set the weights (float32 [n, dim]) of distinct `ids` (int64 [n]), new or known.

        Not allowed with uncommitted plans. Ids owned by other processes are skipped.
        """
        weights = np.asarray(weights, np.float32)
        if self.shards.size > 1:
            is_owned = self.shards.owned(ids)
            ids, weights = ids[is_owned], weights[is_owned]
        with self.changing():
            rows = self.rows_of(ids)
            new = np.flatnonzero(rows < 0)
            rows[new] = self._add_ids(ids[new])
            for name in self.meta_names:
                self.columns[name][rows[new]] = np.nan if name == "last_time" else 0  # not sighted yet
            for start in range(0, len(rows), _BLOCK):
                block = slice(start, start + _BLOCK)
                self.store.write(rows[block], self.packed(weights[block]))
            self.record_ids(rows, ids)
            self.columns["live"][rows] = True
            self.mark_changed(rows)

    def rebuild(self, first_slots: np.ndarray, shards: Shards) -> tuple[np.ndarray, np.ndarray]:
        """Empty the table, change its slots and shards; return its ids and weights.

        Ids are int64 [n], weights float32 [n, dim]. The default row keeps its weights. All users of this object see the
        change. Not allowed with uncommitted plans.
        """
        ids, rows = self.items()
        weights = np.empty((1 + len(rows), self.spec.dim), np.float32)
        self.store.read_part(np.append(DEFAULT_ROW, rows), weights)
        self.store.close()
        self.map.users -= 1
        self.__init__(self.spec, first_slots, shards)  # type: ignore[misc]  # also resets the fields of subclasses
        self.store.write(np.array([DEFAULT_ROW]), self.packed(weights[:1]))
        return ids, weights[1:]

    def discard(self, ids: np.ndarray) -> None:
        """Remove `ids` and their rows, if known; not allowed with uncommitted plans."""
        ids = np.unique(ids)
        with self.changing():
            self.own_ids()
            rows = self.map.get(ids)
            self.map.remove(ids)
            self.columns["live"][rows[rows >= 0]] = False
            self.numbering = object()
            self.set_free_rows()

    def set_free_rows(self) -> None:
        """Find the free rows, ascending, so that a restored table assigns the same ones."""
        self.free = np.flatnonzero(~self.columns["live"][: self.next_row]).astype(np.int32)

    def record_ids(self, rows: np.ndarray, ids: np.ndarray) -> None:
        """Record the ids (int64 [n]) of `rows` (int32 [n]) if the table has an id column."""
        if "id" in self.columns:
            self.columns["id"][rows] = ids

    def ids_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the ids of `rows` (int32 [n]), int64 [n]; undefined for free rows."""
        if "id" in self.columns:
            return self.columns["id"][rows]
        ids, id_rows = self.items()
        id_of = np.zeros(len(self.columns["live"]), np.int64)
        id_of[id_rows] = ids
        return id_of[rows]

    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all ids (int64 [n]) and their rows (int32 [n]), in no particular order."""
        ids, rows = self.map.items()
        known = rows < self.next_row
        return (ids, rows) if known.all() else (ids[known], rows[known])

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the rows of `ids` (int64 [n]), int32 [n]; -1 where unknown."""
        rows = self.map.get(ids)
        rows[rows >= self.next_row] = -1
        return rows

    def lookup(self, ids: np.ndarray, padding: np.ndarray | None = None) -> np.ndarray:
        """Return the rows of `ids` for reading, int32 [n].

        Ids without a trained row get the default row, entries where `padding` (bool [n]) is True get -1.
        """
        with self.lock:
            rows = self.rows_of(ids)
            rows[(rows < 0) | self.columns["uncommitted"][rows]] = DEFAULT_ROW
        if padding is not None:
            rows[padding] = PADDING
        return rows

    def rounding_keys(self, rows: np.ndarray) -> np.ndarray:
        """Return a stochastic rounding key for each of `rows` (int32 [n]), uint64 [n]."""
        from . import kernels  # imports Numba

        keys = np.empty(len(rows), np.uint64)
        # Not `self.lock`, which planning holds for a long time. `reserve` takes both before it moves the columns.
        with self.store.lock:
            kernels.draw_keys.ready()(self.columns["id"], rows, np.uint64(self.seed), keys)
        return keys

    def write_initial(self, rows: np.ndarray, ids: np.ndarray) -> None:
        """Set `rows` to the initial values of `ids`, slots included, block by block."""
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            self.store.write(rows[block], self.initial_values(ids[block]))

    def initial_values(self, ids: np.ndarray) -> np.ndarray:
        """Return the initial values of `ids`, slots included, float32 [n, width]."""
        spec = self.spec
        return self.packed(initial_rows(ids, spec.dim, self.seed, spec.initializer, spec.scale))

    # -- changes -------------------------------------------------------------------------------------------------

    def track_changes(self, consumer: str) -> None:
        """Start tracking changes for `consumer`, with all current rows marked as changed."""
        with self.lock:
            if consumer not in self.tombstones:
                if "id" not in self.columns:
                    self.columns.add("id", np.int64)
                    ids, rows = self.items()
                    self.columns["id"][rows] = ids
                self.tombstones[consumer] = []
                self.columns[dirty_column(consumer)] = self.columns["live"] & ~self.columns["uncommitted"]

    def mark_changed(self, rows: np.ndarray) -> None:
        """Mark `rows` (int32 [n]) as changed for all consumers."""
        for consumer in self.tombstones:
            self.columns[dirty_column(consumer)][rows] = True

    def count_changed(self, consumer: str) -> int:
        """Return how many rows changed since the consumer's last state; at first all."""
        if consumer not in self.tombstones:
            return len(self) + 1
        return int(np.count_nonzero(self.columns[dirty_column(consumer)]))
