"""`SparseTable`: one sparse table on the host, planned ahead of training.

Two threads use a table. The preparing thread runs ahead: `plan` assigns rows to ids. The training thread calls `commit`
once a plan's rows are trained and written back. Until then, an `UndoRecord` keeps everything the plan changed. A
snapshot therefore shows the state after the last *trained* step, and `rollback` can undo the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from .eviction import UndoRecord, evict_least_used, pin_and_expire, undo
from .hashing import UNSHARDED, Shards, initial_rows
from .id_map import find
from .spec import DEFAULT_ROW, PADDING, TableSpec, undo_counting
from .table_rows import TableRows

_PADDING_MARK = -2  # marks padding in `plan`, where -1 marks unknown ids


class SparseTable(TableRows):
    """A table with planning and training; see the module docstring and `TableRows`."""

    def __init__(self, spec: TableSpec, first_slots: np.ndarray, shards: Shards = UNSHARDED) -> None:
        super().__init__(spec, first_slots, shards)
        self.pending: deque[UndoRecord] = deque()  # records of uncommitted plans, oldest first
        self.open_plans: list[UndoRecord] = []  # of the trained plans of an update that is not complete

    def read_trained(self, ids: np.ndarray, padding: np.ndarray, out: np.ndarray) -> None:
        """Write the trained weights of `ids` (int64 [n]) to `out`, float32 [n, dim].

        These are the weights after the last committed plan; unknown ids get the default row. Nothing is written where
        `padding` (bool [n]) is True.
        """
        with self.lock:
            self.store.read_part(self.lookup(ids, padding), out)
            # Uncommitted plans may have evicted some of the ids; the earliest such plan holds their trained values.
            for evicted in (evicted for plan in reversed(self.pending) for evicted in reversed(plan.evicted)):
                indices, same = find(evicted.ids, ids)
                same &= ~padding
                out[same] = evicted.values[indices[same], : self.spec.dim]

    # -- planning ------------------------------------------------------------------------------------------------

    def plan(
        self, ids: np.ndarray, padding: np.ndarray | None = None, now: float = 0.0, steps: int | None = None
    ) -> np.ndarray:
        """Admit new ids; return the row to train for each id, int32 [steps, n].

        Args:
            ids: the ids of every step, in order, int64 [steps, n].
            padding: bool [steps, n], True where there is no id; the rows there are -1.
            now: time in seconds, for time to live.
            steps: number of steps, if `ids` holds the distinct ids of several steps, [1, n].
        """
        parts, n = ids.shape
        steps = parts if steps is None else steps
        flat = np.ascontiguousarray(ids).reshape(-1)
        with self.lock:
            record = self.begin_plan(steps)
        rows = self.map.get(flat)
        if padding is not None:
            rows[padding.reshape(-1)] = _PADDING_MARK
        if self.spec.eviction is not None:
            rows = pin_and_expire(self, rows, record, now)
        unknown = np.flatnonzero(rows == -1)
        if self.spec.admission is None:
            self._admit(flat, rows, unknown, record, None)
        else:
            for step in range(parts):
                part = unknown[(unknown >= step * n) & (unknown < (step + 1) * n)]
                rows[part] = self.map.get(flat[part])
                self._admit(flat, rows, part[rows[part] < 0], record, self.step + step)
        rows[rows == -1] = DEFAULT_ROW
        rows[rows == _PADDING_MARK] = PADDING
        self.step += steps
        return rows.reshape(parts, n)

    def begin_plan(self, steps: int) -> UndoRecord:
        """Start the undo record of a plan for `steps` steps, kept until `commit`."""
        record = UndoRecord(self.step, steps, self.numbering, next_row=self.next_row, last_sweep=self.last_sweep)
        self.pending.append(record)
        self.plans += 1
        self.ticket += 1
        return record

    def record(self, rows: np.ndarray, inverse: np.ndarray, now: float) -> None:
        """Record the latest plan's rows and when they are used.

        `rows` (distinct) and `inverse` (numbers [steps, n]) are results of a `UniqueIndexer`.
        """
        with self.changing():
            record = self.pending[-1]
            record.rows = rows
            if not self.meta_names:
                return
            record.meta = {name: self.columns[name][rows] for name in self.meta_names}
            last = np.zeros(len(rows) + 1, np.int64)
            for step, numbers in enumerate(inverse, record.step + 1):
                last[numbers] = step
            # The rows of an open accumulation keep their last step if this plan does not use them.
            self.columns["last_step"][rows] = np.maximum(self.columns["last_step"][rows], last[1:])
            self.columns["plan"][rows] = self.plans
            if "frequency" in self.columns:
                self.columns["frequency"][rows] += np.bincount(inverse.reshape(-1), minlength=len(rows) + 1)[1:]
            if "last_time" in self.columns:
                # A late event or a clock set back must not make a row older; NaN: not sighted yet.
                self.columns["last_time"][rows] = np.fmax(self.columns["last_time"][rows], now)

    def _admit(
        self, flat: np.ndarray, rows: np.ndarray, unknown: np.ndarray, record: UndoRecord, step: int | None
    ) -> None:
        """Admit the ids at the indices `unknown`; write their rows, -1 if rejected."""
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
        assigned = np.full(len(ids), -1, np.int32)
        assigned[admitted] = self._allocate(ids[admitted], record)
        rows[unknown] = assigned[inverse]

    def _allocate(self, ids: np.ndarray, record: UndoRecord) -> np.ndarray:
        """Allocate and initialize rows for new ids, int32 [n]; -1 where none is left."""
        capacity = self.capacity
        room = len(ids) if capacity is None else len(self.free) + capacity + 1 - self.next_row
        eviction = self.spec.eviction
        if capacity is not None and room < len(ids) and eviction is not None and eviction.when_full is not None:
            room += evict_least_used(self, max(len(ids) - room, int(capacity * eviction.share)), record)
        room = max(room, 0)  # after a restore with fewer processes, this table may exceed its share
        rows = np.full(len(ids), -1, np.int32)
        fitting = ids[:room]
        record.count("overflowed", len(ids) - len(fitting))
        if not len(fitting):
            return rows
        with self.changing():
            new = self.take_rows(len(fitting))
            self.write_initial(new, fitting)
            self.map.add(fitting, new)
            self.record_ids(new, fitting)
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
        """Mark the oldest plan as started: its rows are about to be trained in place."""
        self.pending[0].started = True

    def commit(self, values: np.ndarray | None) -> None:
        """Commit the oldest plan and write its trained rows.

        `values` is float32 [u, width], in the order of the plan's rows, or None if they were trained in place.
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
            self.open_plans.append(record)
            for name, amount in record.counters.items():
                self.counters[name] += amount

    def forget_open_plans(self) -> None:
        """Undo the sightings of an incomplete update; no thread may be planning."""
        with self.changing():
            for record in reversed(self.open_plans):
                for cells in record.cells:
                    assert self.admission.sketch is not None
                    undo_counting(self.admission.sketch, cells)
                if "frequency" in record.meta:  # no row of an open accumulation was evicted since
                    self.columns["frequency"][record.rows] = record.meta["frequency"]
                self.step = record.step
            self.open_plans = []

    def rollback(self) -> None:
        """Undo all uncommitted plans; no other thread may be planning."""
        with self.changing():
            while self.pending:
                undo(self, self.pending.pop())
            self.set_free_rows()


def can_plan_together(table: Any) -> bool:
    """Return whether a table is unsharded, keeps every id and has no padding."""
    return isinstance(table, SparseTable) and table.spec.keeps_every_id and table.spec.padding is None


def plan_together(tables: Sequence[SparseTable], ids: Sequence[np.ndarray], now: float) -> list[np.ndarray]:
    """Plan several tables in one pass, as `SparseTable.plan`; return their rows.

    The tables must be distinct and accepted by `can_plan_together`. `ids` has an int64 array [steps, n] per table.
    """
    planned = []
    new: dict[tuple, list[tuple[SparseTable, int, np.ndarray]]] = {}
    for table, part in zip(tables, ids, strict=True):
        first = table.next_row
        rows, new_ids = _get_or_add_rows(table, part)
        if new_ids is None:  # the id map may be too small, or there are free rows to reuse
            rows = table.plan(part, None, now)
        elif len(new_ids):
            spec = table.spec
            new.setdefault((spec.dim, spec.initializer, spec.scale), []).append((table, first, new_ids))
        planned.append(rows)
    for (dim, initializer, scale), parts in new.items():
        ids_of_all = np.concatenate([new_ids for _, _, new_ids in parts])
        seeds = np.repeat(np.array([table.seed for table, *_ in parts], np.uint64), [len(part[2]) for part in parts])
        values = initial_rows(ids_of_all, dim, seeds, initializer, scale)
        start = 0
        for table, first, new_ids in parts:
            table.store.write_range(first, values[start : start + len(new_ids)], table.first_slots)
            start += len(new_ids)
    return planned


def _get_or_add_rows(table: SparseTable, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Record a plan; return (rows, new ids), or (ids, None) if impossible."""
    flat = np.ascontiguousarray(ids).reshape(-1)
    rows = np.empty(len(flat), np.int32)
    with table.changing():
        new = None if len(table.free) else table.map.get_or_add(flat, table.next_row, rows)
        if new is None:
            return flat, None
        new_ids = flat[new]
        _record_plan(table, new_ids, len(ids))
    return rows.reshape(ids.shape), new_ids


def _record_plan(table: SparseTable, new_ids: np.ndarray, steps: int) -> None:
    """Record a plan that assigned the next rows to `new_ids`, in this order."""
    first, last = table.next_row, table.next_row + len(new_ids)
    pending = table.begin_plan(steps)
    table.step += steps
    if len(new_ids):
        table.reserve(last)
        table.next_row, table.numbering = last, object()
        rows = np.arange(first, last, dtype=np.int32)
        table.record_ids(rows, new_ids)
        for name in ("live", "uncommitted"):
            table.columns[name][first:last] = True
        pending.allocated.append((rows, new_ids))
        pending.count("admitted", len(new_ids))


def plan_same_rows(
    table: SparseTable, leader: SparseTable, ids: np.ndarray, rows: np.ndarray, now: float
) -> np.ndarray:
    """Repeat `leader`'s latest plan in a table with equal row numbers; return rows.

    Needs no lookup: known ids have the same rows in both tables, and new ids get the same rows. The tables may share
    their id map. `ids` are the distinct ids of the plan, int64 [u], and `rows` their rows in `leader`.
    `can_plan_together` must accept the table.
    """
    plan = leader.pending[-1]
    first = table.next_row
    new = sum(len(allocated) for allocated, _ in plan.allocated)
    if leader.next_row - first != new:  # the leader reused free rows
        planned = table.plan(ids[None], None, now, steps=plan.steps).reshape(-1)
    else:
        planned, spec = rows, table.spec
        leader_ids = np.concatenate([np.zeros(0, np.int64), *(new_ids for _, new_ids in plan.allocated)])
        with table.changing():
            _record_plan(table, leader_ids, plan.steps)
            if new:
                if table.map is not leader.map:
                    table.map.add(leader_ids, np.arange(first, first + new, dtype=np.int32))
                values = initial_rows(leader_ids, spec.dim, table.seed, spec.initializer, spec.scale)
                table.store.write_range(first, values, table.first_slots)
    if np.array_equal(planned, rows):
        table.numbering = leader.numbering
    return planned
