"""One sparse table on the host: which id has which row, the rows, and what changed since the last snapshot.

Two threads use a table. The preparing thread runs ahead of training: `plan` gives ids their rows. The training thread
confirms each plan with `commit` once its rows were trained and written back. Everything a plan changes is kept in a
journal until then, so a snapshot shows the state after the last *trained* step, and `rollback` forgets the rest.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from .admission import Admission
from .evicted_rows import make_room, pin_and_expire, undo
from .hashing import first_rows, stable_seed
from .id_map import IdMap
from .row_columns import Columns, dirty_column
from .row_owners import WHOLE, Shards
from .row_store import RowStore
from .spec import DEFAULT_ROW, TableSpec
from .undo_log import UndoRecord

PADDING = -1
_UNKNOWN = -2
_FIRST_BLOCK = 1 << 15
# cells of an outgrown id map that a plan takes over at least, about 5 ms
CELLS_A_PLAN = 1 << 15


class SparseTable:
    """See the module's text.

    Args:
        spec: what the table is.
        first_slots: optimizer slots of a new row, float32 [slots].
        shards: the part of the ids that is kept here; the others are other processes'.

    Attributes:
        numbering: tables with the same one give every id the same row; see `numbers_like`.
    """

    COUNTERS = ("admitted", "evicted", "expired", "overflowed", "refused")

    def __init__(self, spec: TableSpec, first_slots: np.ndarray, shards: Shards = WHOLE) -> None:
        self.spec = spec
        self.shards = shards
        self.capacity = shards.capacity(spec.capacity)
        self.first_slots = np.asarray(first_slots, np.float32)
        self.width = spec.dim + len(self.first_slots)
        self.seed = stable_seed(spec.seed, spec.name)
        self.lock = threading.RLock()
        path = f"{spec.path}.{shards.rank}" if spec.path is not None and shards.size > 1 else spec.path
        self.store = RowStore(self.width, 1024, path)
        self.map = IdMap(min(self.capacity or 0, 1 << 20))
        self.admission = Admission(spec.admission, self.seed)
        self.columns = Columns(1024)
        for name in ("live", "uncommitted"):
            self.columns.add(name, np.bool_)
        self.meta_names: tuple[str, ...] = ()
        if spec.eviction is not None:
            for name in ("id", "in_use", "plan", "last_step"):
                self.columns.add(name, np.int64)
            self.meta_names += ("plan", "last_step")
            if spec.eviction.when_full == "lfu":
                self.columns.add("frequency", np.int64)
                self.meta_names += ("frequency",)
            if spec.eviction.ttl is not None:
                self.columns.add("last_time", np.float64)
                self.meta_names += ("last_time",)
        self.next_row = DEFAULT_ROW + 1
        self.numbering = object()
        self.free = np.zeros(0, np.int32)
        self.step = 0
        self.last_sweep = 0.0
        self.plans = 0
        # unlike `plans` it never goes back, so what an undone plan used is not taken for in use
        self.ticket = 0
        self.pending: deque[UndoRecord] = deque()
        self.counters = dict.fromkeys(self.COUNTERS, 0)
        self.deferred: list[Callable[[], object]] = []
        # for every consumer of changes: ids that lost their row since its last delta
        self.tombstones: dict[str, list[np.ndarray]] = {}
        self.columns["live"][DEFAULT_ROW] = True
        self.store.write(np.array([DEFAULT_ROW]), self.packed(np.zeros((1, spec.dim), np.float32)))

    def __len__(self) -> int:
        """Return the number of ids that have a row of their own."""
        return len(self.map)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use: rows up to the highest in use, bookkeeping, id map and sketch."""
        sketch = self.admission.sketch
        columns = sum(column.nbytes for column in self.columns.values())
        return self.next_row * self.width * 4 + columns + self.map.nbytes + (0 if sketch is None else sketch.nbytes)

    def packed(self, weights: np.ndarray) -> np.ndarray:
        """Return `weights` (float32 [n, dim]) with the slots of new rows behind them, [n, width]."""
        slots = np.broadcast_to(self.first_slots, (len(weights), len(self.first_slots)))
        return np.concatenate((weights, slots), axis=1)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock to change what a deferred reader of this table still has to see as it is."""
        with self.lock:
            for read in self.deferred:
                read()
            self.deferred.clear()
            yield

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows."""
        with self.lock:
            self.store.reserve(rows)
            self.columns.reserve(rows)

    def numbers_like(self, other: SparseTable) -> bool:
        """Return whether `other` gives every id the row it has here, and new ids will get the same rows."""
        if self.numbering is not other.numbering:
            if (self.next_row, len(self)) != (other.next_row, len(other)):
                return False
            ids, rows = self.map.items()
            if not np.array_equal(other.map.get(ids), rows):
                return False
            self.numbering = other.numbering
        return True

    def clear(self) -> None:
        """Forget every id."""
        with self.changing():
            self.map = IdMap()
            for column in self.columns.values():
                column[:] = 0
            self.columns["live"][DEFAULT_ROW] = True
            self.next_row = DEFAULT_ROW + 1
            self.numbering = object()
            self.set_free_rows()

    def put(self, ids: np.ndarray, weights: np.ndarray) -> None:
        """Set the weights of `ids` (int64 [n], all different), float32 [n, dim]; unknown ids are given rows.

        Not for a table whose plans are under way. Ids whose rows other processes keep are left out.
        """
        weights = np.asarray(weights, np.float32)
        if self.shards.size > 1:
            own = self.shards.owned(ids)
            ids, weights = ids[own], weights[own]
        with self.changing():
            rows = self.map.get(ids)
            new = np.flatnonzero(rows < 0)
            free, self.free = self.free[: len(new)], self.free[len(new) :]
            fresh = np.arange(self.next_row, self.next_row + len(new) - len(free), dtype=np.int32)
            rows[new] = np.concatenate((free, fresh))
            self.next_row += len(fresh)
            self.numbering = object()
            self.reserve(self.next_row)
            self.map.add(ids[new], rows[new])
            for start in range(0, len(rows), _FIRST_BLOCK):
                block = slice(start, start + _FIRST_BLOCK)
                self.store.write(rows[block], self.packed(weights[block]))
            self.name_rows(rows, ids)
            self.columns["live"][rows] = True
            for consumer in self.tombstones:
                self.columns[dirty_column(consumer)][rows] = True

    def begin_anew(self, first_slots: np.ndarray, shards: Shards) -> tuple[np.ndarray, np.ndarray]:
        """Become an empty table with these slots and shards; return what there was: ids, int64 [n], and weights.

        Whoever has the table sees the new rows then; not while plans are under way.
        """
        ids, rows = self.map.items()
        weights = np.empty((len(rows), self.spec.dim), np.float32)
        self.store.read_part(rows, weights)
        self.store.close()
        self.__init__(self.spec, first_slots, shards)
        return ids, weights

    def discard(self, ids: np.ndarray) -> None:
        """Take the rows of `ids` (int64 [n]) from them; unknown ids are ignored. Not while plans are under way."""
        ids = np.unique(ids)
        with self.changing():
            rows = self.map.get(ids)
            self.map.remove(ids)
            self.columns["live"][rows[rows >= 0]] = False
            self.numbering = object()
            self.set_free_rows()

    def follow(self, consumer: str) -> None:
        """Keep account of changed rows for `consumer` from now on; everything there is counts as changed."""
        with self.lock:
            if consumer not in self.tombstones:
                if "id" not in self.columns:
                    self.columns.add("id", np.int64)
                    ids, rows = self.map.items()
                    self.columns["id"][rows] = ids
                self.tombstones[consumer] = []
                self.columns[dirty_column(consumer)] = self.columns["live"] & ~self.columns["uncommitted"]

    def name_rows(self, rows: np.ndarray, ids: np.ndarray) -> None:
        """Note which `ids` (int64 [n]) `rows` (int32 [n]) belong to, if anybody has to know: who evicts or follows."""
        if "id" in self.columns:
            self.columns["id"][rows] = ids

    def ids_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the ids that `rows` (int32 [n]) belong to, int64 [n], whatever they are where there is none."""
        if "id" in self.columns:
            return self.columns["id"][rows]
        ids, own = self.map.items()
        found = np.zeros(len(self.columns["live"]), np.int64)
        found[own] = ids
        return found[rows]

    def changed(self, consumer: str) -> int:
        """Return the number of rows changed since the consumer's last state."""
        if consumer not in self.tombstones:
            return len(self) + 1
        return int(np.count_nonzero(self.columns[dirty_column(consumer)]))

    # -- reading -------------------------------------------------------------------------------------------------

    def lookup(self, ids: np.ndarray, padding: np.ndarray | None = None) -> np.ndarray:
        """Return the rows of trained ids, int32 [n]: the default row where unknown, -1 where `padding` (bool [n])."""
        with self.lock:
            rows = self.map.get(ids)
            rows[(rows < 0) | self.columns["uncommitted"][rows]] = DEFAULT_ROW
        if padding is not None:
            rows[padding] = PADDING
        return rows

    def read_trained(self, ids: np.ndarray, padding: np.ndarray, out: np.ndarray) -> None:
        """Write the weights that `ids` (int64 [n]) had after the last committed plan to `out`, float32 [n, dim].

        That is the default row where an id was unknown. At `padding` (bool [n]) nothing is written.
        """
        with self.lock:
            self.store.read_part(self.lookup(ids, padding), out)
            # plans ahead may have taken their rows already; what the earliest one found is what was trained
            for evicted in (one for plan in reversed(self.pending) for one in reversed(plan.evicted)):
                order = np.argsort(evicted.ids)
                places = order[np.minimum(np.searchsorted(evicted.ids, ids, sorter=order), len(order) - 1)]
                same = (evicted.ids[places] == ids) & ~padding
                out[same] = evicted.values[places[same], : self.spec.dim]

    # -- planning ------------------------------------------------------------------------------------------------

    def plan(
        self, ids: np.ndarray, padding: np.ndarray | None = None, now: float = 0.0, steps: int | None = None
    ) -> np.ndarray:
        """Return the rows to train for `ids` (int64 [steps, n]), int32 [steps, n]; new ids are admitted and given rows.

        Args:
            ids: the ids of every step, in order.
            padding: bool [steps, n], True where there is no id; such places get -1.
            now: time in seconds, for a time to live.
            steps: steps that the ids belong to, where they are given without regard to their step.
        """
        parts, n = ids.shape
        steps = parts if steps is None else steps
        flat = np.ascontiguousarray(ids).reshape(-1)
        with self.lock:
            pending = self.begin_plan(steps)
            # lookups are slower until it is done, so large plans do a larger part
            self.map.advance(max(CELLS_A_PLAN, flat.size))
        rows = self.map.get(flat)
        if padding is not None:
            rows[padding.reshape(-1)] = _UNKNOWN
        if self.spec.eviction is not None:
            rows = pin_and_expire(self, rows, pending, now)
        unknown = np.flatnonzero(rows == -1)
        if len(unknown):
            if self.spec.admission is None:
                self._give_rows(flat, rows, unknown, pending, None)
            else:
                for step in range(parts):
                    part = unknown[(unknown >= step * n) & (unknown < (step + 1) * n)]
                    rows[part] = self.map.get(flat[part])
                    self._give_rows(flat, rows, part[rows[part] < 0], pending, self.step + step)
        rows[rows == -1] = DEFAULT_ROW
        rows[rows == _UNKNOWN] = PADDING
        self.step += steps
        return rows.reshape(parts, n)

    def begin_plan(self, steps: int) -> UndoRecord:
        """Return the record, kept until `commit`, of a plan for so many steps that is about to be made."""
        record = UndoRecord(self.step, steps, self.numbering, next_row=self.next_row, last_sweep=self.last_sweep)
        self.pending.append(record)
        self.plans += 1
        self.ticket += 1
        return record

    def record(self, rows: np.ndarray, inverse: np.ndarray, now: float) -> None:
        """Note the sightings of the latest plan: its distinct `rows` [u] and `inverse` [steps, n] (`UniqueIndexer`)."""
        with self.changing():
            pending = self.pending[-1]
            pending.rows = rows
            if not self.meta_names:
                return
            pending.meta = {name: self.columns[name][rows] for name in self.meta_names}
            last = np.zeros(len(rows) + 1, np.int64)
            for step in range(len(inverse)):
                last[inverse[step]] = pending.start_step + step + 1
            self.columns["last_step"][rows] = last[1:]
            self.columns["plan"][rows] = self.plans
            if "frequency" in self.columns:
                self.columns["frequency"][rows] += np.bincount(inverse.reshape(-1), minlength=len(rows) + 1)[1:]
            if "last_time" in self.columns:
                self.columns["last_time"][rows] = now

    def _give_rows(
        self, flat: np.ndarray, rows: np.ndarray, places: np.ndarray, pending: UndoRecord, step: int | None
    ) -> None:
        """Admit the unknown ids at `places` and write their rows into `rows`; refused ones keep -1."""
        if not len(places):
            return
        ids, inverse, counts = np.unique(flat[places], return_inverse=True, return_counts=True)
        if step is not None:
            with self.changing():
                admitted, cells = self.admission.admit(ids, counts, step)
                if cells is not None:
                    pending.cells.append(cells)
            pending.count("refused", len(ids) - admitted.sum())
        else:
            admitted = np.ones(len(ids), np.bool_)
        given = np.full(len(ids), -1, np.int32)
        given[admitted] = self._allocate(ids[admitted], pending)
        rows[places] = given[inverse]

    def _allocate(self, ids: np.ndarray, pending: UndoRecord) -> np.ndarray:
        """Give each of the new `ids` a row with its first value; int32 [n], -1 for those that find no room."""
        capacity = self.capacity
        room = len(ids) if capacity is None else len(self.free) + capacity + 1 - self.next_row
        if room < len(ids) and self.spec.eviction is not None and self.spec.eviction.when_full is not None:
            wanted = max(len(ids) - room, int(capacity * self.spec.eviction.share))
            room += make_room(self, wanted, pending)
        room = max(room, 0)  # fewer processes may have given this one more rows than it may hold
        rows = np.full(len(ids), -1, np.int32)
        fitting = ids[:room] if room < len(ids) else ids
        pending.count("overflowed", len(ids) - len(fitting))
        if not len(fitting):
            return rows
        from_free = self.free[: len(fitting)]
        fresh = np.arange(self.next_row, self.next_row + len(fitting) - len(from_free), dtype=np.int32)
        new = np.concatenate((from_free, fresh))
        self.reserve(self.next_row + len(fresh))
        with self.changing():
            self.write_first(new, fitting)
            self.free = self.free[len(from_free) :]
            self.next_row += len(fresh)
            self.numbering = object()
            self.map.add(fitting, new)
            self.name_rows(new, fitting)
            self.columns["live"][new] = True
            self.columns["uncommitted"][new] = True
            for name in self.meta_names:
                self.columns[name][new] = 0
            if "in_use" in self.columns:
                self.columns["in_use"][new] = self.ticket
            pending.allocated.append((new, fitting))
        pending.count("admitted", len(new))
        rows[: len(new)] = new
        return rows

    def write_first(self, rows: np.ndarray, ids: np.ndarray) -> None:
        """Give `rows` the first values of `ids`, slots included; block by block to keep memory small."""
        spec = self.spec
        for start in range(0, len(rows), _FIRST_BLOCK):
            block = slice(start, start + _FIRST_BLOCK)
            weights = first_rows(ids[block], spec.dim, self.seed, spec.initializer, spec.scale)
            self.store.write(rows[block], self.packed(weights))

    # -- training ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Note that the rows of the oldest plan are about to be trained in place."""
        self.pending[0].started = True

    def commit(self, values: np.ndarray | None) -> None:
        """Confirm the oldest plan: write back its trained rows, `values` float32 [u, width] in the plan's order.

        None where they were trained in place.
        """
        with self.lock:
            pending = self.pending.popleft()
            if values is not None:
                self.store.write(pending.rows, values)
            for rows, _ in pending.allocated:
                self.columns["uncommitted"][rows] = False
            for consumer, tombstones in self.tombstones.items():
                self.columns[dirty_column(consumer)][pending.rows] = True
                tombstones.extend(evicted.ids for evicted in pending.evicted)
            for name, amount in pending.counters.items():
                self.counters[name] += amount

    def rollback(self) -> None:
        """Undo every plan that was not committed; no other thread may be planning."""
        with self.changing():
            while self.pending:
                pending = self.pending.pop()
                undo(self, pending)
            self.set_free_rows()

    def set_free_rows(self) -> None:
        """Derive the free rows from the live ones: ascending, so that a restored table gives out the same rows."""
        self.free = np.flatnonzero(~self.columns["live"][: self.next_row]).astype(np.int32)
