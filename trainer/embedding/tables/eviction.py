"""Ids that lose their row, because the table is full or they were not seen for too long, and plans that are undone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .spec import DEFAULT_ROW
from .table_rows import TableRows, dirty_column

PINNED_PLANS = 8
_TTL_SWEEPS = 32


@dataclass(frozen=True, slots=True)
class Evicted:
    """Rows taken from their ids, and all that is needed to give them back."""

    ids: np.ndarray
    rows: np.ndarray
    values: np.ndarray
    dirty: dict[str, np.ndarray]
    meta: dict[str, np.ndarray]


@dataclass(slots=True)
class UndoRecord:
    """What one plan changed, kept until its rows are trained."""

    start_step: int
    steps: int
    numbering: object = None  # the table's before it
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    allocated: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # rows, their ids
    evicted: list[Evicted] = field(default_factory=list)
    cells: list[np.ndarray] = field(default_factory=list)
    meta: dict[str, np.ndarray] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    next_row: int = 0
    last_sweep: float = 0.0
    started: bool = False  # its rows are being trained in place

    def count(self, name: str, amount: int) -> None:
        """Add to a counter that becomes valid with the commit."""
        if amount:
            self.counters[name] = self.counters.get(name, 0) + int(amount)


def least(keys: np.ndarray, allowed: np.ndarray, count: int) -> np.ndarray:
    """Return the `count` allowed positions with the smallest key, ascending; of equal keys the lower position wins.

    Args:
        keys: integers [n].
        allowed: bool [n].
        count: how many; fewer are returned when fewer are allowed.
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
    """Evict ids not seen for too long, but none of a plan's known `rows`; return these, -1 where late."""
    table.columns["in_use"][rows[rows >= 0]] = table.ticket
    ttl = table.spec.eviction.ttl if table.spec.eviction is not None else None
    if ttl is None:
        return rows
    # an id that comes back after its time has run out starts from its first value, swept already or not
    late = (rows >= 0) & (now - table.columns["last_time"][rows] > ttl) & (rows != DEFAULT_ROW)
    if late.any():
        gone = np.unique(rows[late])
        gone = gone[table.columns["plan"][gone] <= table.plans - PINNED_PLANS]
        _evict(table, gone, record, "expired")
        rows[np.isin(rows, gone)] = -1
    if now - table.last_sweep >= ttl / _TTL_SWEEPS:
        table.last_sweep = now
        old = _evictable(table) & (now - table.columns["last_time"][: table.next_row] > ttl)
        _evict(table, np.flatnonzero(old), record, "expired")
    return rows


def _evictable(table: TableRows) -> np.ndarray:
    """Return bool [next_row]: rows that neither this plan nor one that may still be in progress refers to."""
    span = slice(0, table.next_row)
    columns = table.columns
    allowed = columns["live"][span] & (columns["plan"][span] <= table.plans - PINNED_PLANS)
    allowed &= columns["in_use"][span] != table.ticket
    allowed[DEFAULT_ROW] = False
    return allowed


def make_room(table: TableRows, wanted: int, record: UndoRecord) -> int:
    """Evict up to `wanted` rows that are needed least; return how many."""
    key = "frequency" if "frequency" in table.columns else "last_step"
    rows = least(table.columns[key][: table.next_row], _evictable(table), wanted)
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
        record.evicted.append(Evicted(ids, rows, table.store.read(rows), dirty, meta))
        table.map.remove(ids)
        columns["live"][rows] = False
        for consumer in table.tombstones:
            columns[dirty_column(consumer)][rows] = False
        table.free = np.sort(np.concatenate((table.free, rows)))
    record.count(counter, len(rows))


def undo(table: TableRows, record: UndoRecord) -> None:
    """Take back the newest plan, which was not committed; the table is locked."""
    for name, old in record.meta.items():
        table.columns[name][record.rows] = old
    for rows, ids in reversed(record.allocated):
        table.map.remove(ids)
        table.columns["live"][rows] = table.columns["uncommitted"][rows] = False
    for evicted in reversed(record.evicted):
        table.map.add(evicted.ids, evicted.rows)
        table.store.write(evicted.rows, evicted.values)
        table.name_rows(evicted.rows, evicted.ids)
        table.columns["live"][evicted.rows] = True
        for consumer, dirty in evicted.dirty.items():
            table.columns[dirty_column(consumer)][evicted.rows] = dirty
        for name, old in evicted.meta.items():
            table.columns[name][evicted.rows] = old
    for cells in record.cells:
        table.admission.forget(cells)
    table.next_row, table.last_sweep = record.next_row, record.last_sweep
    table.step, table.numbering = record.start_step, record.numbering
    table.plans -= 1
    if record.started:
        # a failure in the middle: like dense weights, the rows keep what the last step wrote
        table.mark_changed(record.rows[table.columns["live"][record.rows]])
