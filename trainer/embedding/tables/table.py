"""One sparse table on the host, planned ahead of its training.

Two threads use a table. The preparing thread runs ahead of training: `plan` gives ids their rows. The training thread
confirms each plan with `commit` once its rows were trained and written back. Everything a plan changes is kept in a
journal until then, so a snapshot shows the state after the last *trained* step, and `rollback` forgets the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from .eviction import UndoRecord, make_room, pin_and_expire, undo
from .hashing import WHOLE, Shards, first_rows
from .id_map import find
from .spec import DEFAULT_ROW, PADDING, TableSpec
from .table_rows import TableRows

_UNKNOWN = -2
# cells of an outgrown id map that a plan moves at least, about 5 ms
CELLS_PER_PLAN = 1 << 15


class SparseTable(TableRows):
    """See the module's text and `TableRows`.

    Attributes:
        pending: a record of every plan that was not committed, oldest first.
    """

    def __init__(self, spec: TableSpec, first_slots: np.ndarray, shards: Shards = WHOLE) -> None:
        super().__init__(spec, first_slots, shards)
        self.pending: deque[UndoRecord] = deque()

    def read_trained(self, ids: np.ndarray, padding: np.ndarray, out: np.ndarray) -> None:
        """Write the weights that `ids` (int64 [n]) had after the last committed plan to `out`, float32 [n, dim].

        That is the default row where an id was unknown. At `padding` (bool [n]) nothing is written.
        """
        with self.lock:
            self.store.read_part(self.lookup(ids, padding), out)
            # plans ahead may have taken their rows already; the earliest such plan kept the trained values
            for evicted in (evicted for plan in reversed(self.pending) for evicted in reversed(plan.evicted)):
                indices, same = find(evicted.ids, ids)
                same &= ~padding
                out[same] = evicted.values[indices[same], : self.spec.dim]

    # -- planning ------------------------------------------------------------------------------------------------

    def plan(
        self, ids: np.ndarray, padding: np.ndarray | None = None, now: float = 0.0, steps: int | None = None
    ) -> np.ndarray:
        """Return the rows to train for `ids` (int64 [steps, n]), int32 [steps, n]; new ids are admitted and given rows.

        Args:
            ids: the ids of every step, in order.
            padding: bool [steps, n], True where there is no id; the rows there are -1.
            now: time in seconds, for a time to live.
            steps: steps that the ids belong to, where they are given without regard to their step.
        """
        parts, n = ids.shape
        steps = parts if steps is None else steps
        flat = np.ascontiguousarray(ids).reshape(-1)
        with self.lock:
            record = self.begin_plan(steps)
            # lookups are slower until it is done, so large plans do a larger part
            self.map.advance(max(CELLS_PER_PLAN, flat.size))
        rows = self.map.get(flat)
        if padding is not None:
            rows[padding.reshape(-1)] = _UNKNOWN
        if self.spec.eviction is not None:
            rows = pin_and_expire(self, rows, record, now)
        unknown = np.flatnonzero(rows == -1)
        if self.spec.admission is None:
            self._give_rows(flat, rows, unknown, record, None)
        else:
            for step in range(parts):
                part = unknown[(unknown >= step * n) & (unknown < (step + 1) * n)]
                rows[part] = self.map.get(flat[part])
                self._give_rows(flat, rows, part[rows[part] < 0], record, self.step + step)
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
            record = self.pending[-1]
            record.rows = rows
            if not self.meta_names:
                return
            record.meta = {name: self.columns[name][rows] for name in self.meta_names}
            last = np.zeros(len(rows) + 1, np.int64)
            for step in range(len(inverse)):
                last[inverse[step]] = record.start_step + step + 1
            self.columns["last_step"][rows] = last[1:]
            self.columns["plan"][rows] = self.plans
            if "frequency" in self.columns:
                self.columns["frequency"][rows] += np.bincount(inverse.reshape(-1), minlength=len(rows) + 1)[1:]
            if "last_time" in self.columns:
                self.columns["last_time"][rows] = now

    def _give_rows(
        self, flat: np.ndarray, rows: np.ndarray, unknown: np.ndarray, record: UndoRecord, step: int | None
    ) -> None:
        """Admit the ids at the indices `unknown` and write their rows into `rows`; refused ones keep -1."""
        if not len(unknown):
            return
        ids, inverse, counts = np.unique(flat[unknown], return_inverse=True, return_counts=True)
        admitted = np.ones(len(ids), np.bool_)
        if step is not None:
            with self.changing():
                admitted, cells = self.admission.admit(ids, counts, step)
                if cells is not None:
                    record.cells.append(cells)
            record.count("refused", len(ids) - admitted.sum())
        given = np.full(len(ids), -1, np.int32)
        given[admitted] = self._allocate(ids[admitted], record)
        rows[unknown] = given[inverse]

    def _allocate(self, ids: np.ndarray, record: UndoRecord) -> np.ndarray:
        """Give each of the new `ids` a row with its first value; int32 [n], -1 for those that find no room."""
        capacity = self.capacity
        room = len(ids) if capacity is None else len(self.free) + capacity + 1 - self.next_row
        eviction = self.spec.eviction
        if capacity is not None and room < len(ids) and eviction is not None and eviction.when_full is not None:
            room += make_room(self, max(len(ids) - room, int(capacity * eviction.share)), record)
        room = max(room, 0)  # fewer processes may have given this one more rows than it may hold
        rows = np.full(len(ids), -1, np.int32)
        fitting = ids[:room]
        record.count("overflowed", len(ids) - len(fitting))
        if not len(fitting):
            return rows
        with self.changing():
            new = self.take_rows(len(fitting))
            self.write_first(new, fitting)
            self.map.add(fitting, new)
            self.name_rows(new, fitting)
            self.columns["live"][new] = True
            self.columns["uncommitted"][new] = True
            for name in self.meta_names:
                self.columns[name][new] = 0
            if "in_use" in self.columns:
                self.columns["in_use"][new] = self.ticket
            record.allocated.append((new, fitting))
        record.count("admitted", len(new))
        rows[: len(new)] = new
        return rows

    # -- training ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Note that the rows of the oldest plan are about to be trained in place."""
        self.pending[0].started = True

    def commit(self, values: np.ndarray | None) -> None:
        """Confirm the oldest plan: write back its trained rows, `values` float32 [u, width] in the plan's order.

        None where they were trained in place.
        """
        with self.lock:
            record = self.pending.popleft()
            if values is not None:
                self.store.write(record.rows, values)
            for rows, _ in record.allocated:
                self.columns["uncommitted"][rows] = False
            self.mark_changed(record.rows)
            for tombstones in self.tombstones.values():
                tombstones.extend(evicted.ids for evicted in record.evicted)
            for name, amount in record.counters.items():
                self.counters[name] += amount

    def rollback(self) -> None:
        """Undo every plan that was not committed; no other thread may be planning."""
        with self.changing():
            while self.pending:
                undo(self, self.pending.pop())
            self.set_free_rows()


def takes(table: Any) -> bool:
    """Return whether it is a whole table of this process that gives every id a row of its own for good."""
    return isinstance(table, SparseTable) and table.spec.keeps_every_id and table.spec.padding is None


def plan_together(
    tables: Sequence[SparseTable], ids: Sequence[np.ndarray], now: float, steps: int | None = None
) -> list[np.ndarray]:
    """Return the rows to train for the ids of each table; see `SparseTable.plan`.

    Args:
        tables: tables that `takes` accepts, all different.
        ids: int64 [steps, n] for each.
        now: time in seconds.
        steps: steps that the ids belong to, where they are given without regard to their step.
    """
    planned = []
    new: dict[tuple, list[tuple[SparseTable, int, np.ndarray]]] = {}
    for table, part in zip(tables, ids, strict=True):
        first = table.next_row
        rows, fresh = _give_rows(table, part, steps)
        if fresh is None:  # its map is being enlarged, or there are free rows to give out again
            rows = table.plan(part, None, now, steps)
        elif len(fresh):
            spec = table.spec
            new.setdefault((spec.dim, spec.initializer, spec.scale), []).append((table, first, fresh))
        planned.append(rows)
    for (dim, initializer, scale), parts in new.items():
        ids_of_all = np.concatenate([fresh for _, _, fresh in parts])
        seeds = np.repeat(np.array([table.seed for table, *_ in parts], np.uint64), [len(part[2]) for part in parts])
        values = first_rows(ids_of_all, dim, seeds, initializer, scale)
        start = 0
        for table, first, fresh in parts:
            table.store.write_range(first, values[start : start + len(fresh)], table.first_slots)
            start += len(fresh)
    return planned


def _give_rows(table: SparseTable, ids: np.ndarray, steps: int | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return (rows, new ids) of `ids` and note the plan; (.., None) where `SparseTable.plan` is needed."""
    flat = np.ascontiguousarray(ids).reshape(-1)
    rows = np.empty(len(flat), np.int32)
    with table.changing():
        new = None if len(table.free) else table.map.give(flat, table.next_row, rows)
        if new is None:
            return flat, None
        fresh = flat[new]
        _note(table, fresh, steps or len(ids))
    return rows.reshape(ids.shape), fresh


def _note(table: SparseTable, fresh: np.ndarray, steps: int) -> None:
    """Note a plan in which the new ids `fresh` got the next rows, in this order."""
    first, last = table.next_row, table.next_row + len(fresh)
    pending = table.begin_plan(steps)
    table.step += steps
    if len(fresh):
        table.reserve(last)
        table.next_row, table.numbering = last, object()
        new = np.arange(first, last, dtype=np.int32)
        table.name_rows(new, fresh)
        for name in ("live", "uncommitted"):
            table.columns[name][first:last] = True
        pending.allocated.append((new, fresh))
        pending.count("admitted", len(fresh))


def plan_alike(table: SparseTable, leader: SparseTable, ids: np.ndarray, rows: np.ndarray, now: float) -> np.ndarray:
    """Return the rows of the ids of `leader`'s latest plan in a table that numbered its rows like it until then.

    Nothing is looked up: known ids have the rows that they have there, new ones get them.

    Args:
        table: one that `takes` accepts.
        leader: another, fed with the same ids.
        ids: the distinct ids of the plan, int64 [u].
        rows: their rows in `leader`, int32 [u].
        now: time in seconds.
    """
    plan = leader.pending[-1]
    first = table.next_row
    new = sum(len(given) for given, _ in plan.allocated)
    if leader.next_row - first != new:  # free rows were given out again
        own = table.plan(ids[None], None, now, steps=plan.steps).reshape(-1)
    else:
        own, spec = rows, table.spec
        fresh = np.concatenate([np.zeros(0, np.int64), *(new_ids for _, new_ids in plan.allocated)])
        with table.changing():
            _note(table, fresh, plan.steps)
            table.map.advance(CELLS_PER_PLAN)
            if new:
                table.map.add(fresh, np.arange(first, first + new, dtype=np.int32))
                values = first_rows(fresh, spec.dim, table.seed, spec.initializer, spec.scale)
                table.store.write_range(first, values, table.first_slots)
    if np.array_equal(own, rows):
        table.numbering = leader.numbering
    return own
