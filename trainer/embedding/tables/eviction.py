"""Evict expired ids and ids of a full table; undo uncommitted plans."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .spec import DEFAULT_ROW, undo_counting
from .table_rows import TableRows, dirty_column

PINNED_PLANS = 8  # number of latest plans whose rows are never evicted
_SWEEPS_PER_TTL = 32  # number of searches for expired ids per time to live


@dataclass(frozen=True, slots=True)
class Evicted:
    """Evicted ids and their rows, with everything needed to restore them."""

    ids: np.ndarray
    rows: np.ndarray
    values: np.ndarray  # packed rows in the store's format
    dirty: dict[str, np.ndarray]  # for each consumer, a mask of the changed rows
    meta: dict[str, np.ndarray]  # bookkeeping columns


@dataclass(slots=True)
class UndoRecord:
    """The changes of one plan, kept until its rows are trained."""

    step: int  # number of steps planned before this plan
    steps: int  # number of steps of this plan
    numbering: object = None  # the table's numbering before the plan
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))  # distinct rows that the plan uses
    allocated: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # rows, their ids
    evicted: list[Evicted] = field(default_factory=list)
    cells: list[np.ndarray] = field(default_factory=list)  # arguments of `spec.undo_counting`
    meta: dict[str, np.ndarray] = field(default_factory=dict)  # bookkeeping of `rows` before the plan
    counters: dict[str, int] = field(default_factory=dict)  # amounts that the commit adds to the table's counters
    next_row: int = 0  # the table's value before the plan
    last_sweep: float = 0.0  # the table's value before the plan
    started: bool = False  # whether its rows are being trained in place

    def count(self, name: str, amount: int) -> None:
        """Add to a counter that takes effect with the commit."""
        if amount:
            self.counters[name] = self.counters.get(name, 0) + int(amount)


def smallest(keys: np.ndarray, allowed: np.ndarray, count: int) -> np.ndarray:
    """Return the `count` allowed positions with the smallest keys, ascending.

    `keys` is [n], `allowed` bool [n]. Ties go to the lower position. If fewer are allowed, all of them are returned.
    """
    candidates = np.flatnonzero(allowed)
    if len(candidates) <= count:
        return candidates
    values = keys[candidates]
    bound = np.partition(values, count - 1)[count - 1]
    chosen = candidates[values < bound]
    tied = candidates[values == bound][: count - len(chosen)]
    return np.sort(np.concatenate((chosen, tied)))


def pin_and_expire(table: TableRows, rows: np.ndarray, record: UndoRecord, now: float) -> np.ndarray:
    """Mark `rows` as used, evict expired ids; return `rows` with -1 if evicted."""
    table.columns["in_use"][rows[rows >= 0]] = table.ticket
    ttl = table.spec.eviction.ttl if table.spec.eviction is not None else None
    if ttl is None:
        return rows
    # An expired id that occurs again starts from its initial value, even if no sweep has evicted it yet.
    expired = (rows >= 0) & (now - table.columns["last_time"][rows] > ttl) & (rows != DEFAULT_ROW)
    if expired.any():
        evicted = np.unique(rows[expired])
        evicted = evicted[table.columns["plan"][evicted] <= table.plans - PINNED_PLANS]
        _evict(table, evicted, record, "expired")
        rows[np.isin(rows, evicted)] = -1
    if now - table.last_sweep >= ttl / _SWEEPS_PER_TTL:
        table.last_sweep = now
        last_times = table.columns["last_time"][: table.next_row]
        last_times[np.isnan(last_times)] = now  # rows that `put` has added: their time to live begins here
        expired = _evictable(table) & (now - table.columns["last_time"][: table.next_row] > ttl)
        _evict(table, np.flatnonzero(expired), record, "expired")
    return rows


def _evictable(table: TableRows) -> np.ndarray:
    """Return a mask, bool [next_row], of rows that neither this nor recent plans use."""
    span = slice(0, table.next_row)
    columns = table.columns
    allowed = columns["live"][span] & (columns["plan"][span] <= table.plans - PINNED_PLANS)
    allowed &= columns["in_use"][span] != table.ticket
    allowed[DEFAULT_ROW] = False
    return allowed


def evict_least_used(table: TableRows, count: int, record: UndoRecord) -> int:
    """Evict up to `count` least recently or frequently used rows; return how many."""
    key = "frequency" if "frequency" in table.columns else "last_step"
    rows = smallest(table.columns[key][: table.next_row], _evictable(table), count)
    _evict(table, rows, record, "evicted")
    return len(rows)


def _evict(table: TableRows, rows: np.ndarray, record: UndoRecord, counter: str) -> None:
    if not len(rows):
        return
    rows = rows.astype(np.int32)
    columns = table.columns
    meta = {name: columns[name][rows] for name in table.meta_names}
    with table.changing():
        ids = columns["id"][rows]
        dirty = {consumer: columns[dirty_column(consumer)][rows] for consumer in table.tombstones}
        record.evicted.append(Evicted(ids, rows, table.store.stored(rows), dirty, meta))
        table.map.remove(ids)
        columns["live"][rows] = False
        for consumer in table.tombstones:
            columns[dirty_column(consumer)][rows] = False
        table.free = np.sort(np.concatenate((table.free, rows)))
    record.count(counter, len(rows))


def undo(table: TableRows, record: UndoRecord) -> None:
    """Undo the newest uncommitted plan; the caller holds the lock."""
    for name, old in record.meta.items():
        table.columns[name][record.rows] = old
    for rows, ids in reversed(record.allocated):
        table.map.remove(ids)
        table.columns["live"][rows] = table.columns["uncommitted"][rows] = False
    for evicted in reversed(record.evicted):
        table.map.add(evicted.ids, evicted.rows)
        table.store.write_stored(evicted.rows, evicted.values)
        table.record_ids(evicted.rows, evicted.ids)
        table.columns["live"][evicted.rows] = True
        for consumer, dirty in evicted.dirty.items():
            table.columns[dirty_column(consumer)][evicted.rows] = dirty
        for name, old in evicted.meta.items():
            table.columns[name][evicted.rows] = old
    for cells in record.cells:
        assert table.admission.sketch is not None
        undo_counting(table.admission.sketch, cells)
    table.next_row, table.last_sweep = record.next_row, record.last_sweep
    table.step, table.numbering = record.step, record.numbering
    table.plans -= 1
    if record.started:
        # Training in place failed midway: like dense weights, the rows keep the values of the last step.
        table.mark_changed(record.rows[table.columns["live"][record.rows]])
