"""Rows that lose their id, because the table is full or the id was not seen for too long, and plans that are undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .eviction import least
from .row_columns import dirty_column
from .spec import DEFAULT_ROW
from .undo_log import Evicted, UndoRecord

if TYPE_CHECKING:
    from .table import SparseTable

PINNED_PLANS = 8
_TTL_SWEEPS = 32


def pin_and_expire(table: SparseTable, rows: np.ndarray, pending: UndoRecord, now: float) -> np.ndarray:
    """Evict what was not seen for too long, but none of a plan's known `rows`; return these, -1 where late."""
    known = rows[rows >= 0]
    table.columns["in_use"][known] = table.ticket
    ttl = table.spec.eviction.ttl
    if ttl is None:
        return rows
    if len(known):
        # An id that comes back after its time has run out starts anew, swept already or not.
        late = (rows >= 0) & (now - table.columns["last_time"][rows] > ttl) & (rows != DEFAULT_ROW)
        if late.any():
            gone = np.unique(rows[late])
            gone = gone[table.columns["plan"][gone] <= table.plans - PINNED_PLANS]
            _evict(table, gone, pending, "expired")
            rows[np.isin(rows, gone)] = -1
    if now - table.last_sweep >= ttl / _TTL_SWEEPS:
        table.last_sweep = now
        span = slice(0, table.next_row)
        old = _evictable(table) & (now - table.columns["last_time"][span] > ttl)
        _evict(table, np.flatnonzero(old), pending, "expired")
    return rows


def _evictable(table: SparseTable) -> np.ndarray:
    """Return bool [next_row]: rows that neither this plan nor one that may still be in progress refers to."""
    span = slice(0, table.next_row)
    columns = table.columns
    allowed = columns["live"][span] & (columns["plan"][span] <= table.plans - PINNED_PLANS)
    allowed &= columns["in_use"][span] != table.ticket
    allowed[DEFAULT_ROW] = False
    return allowed


def make_room(table: SparseTable, wanted: int, pending: UndoRecord) -> int:
    """Evict up to `wanted` rows that are needed least; return how many."""
    key = "frequency" if table.spec.eviction.when_full == "lfu" else "last_step"
    rows = least(table.columns[key][: table.next_row], _evictable(table), wanted)
    _evict(table, rows, pending, "evicted")
    return len(rows)


def _evict(table: SparseTable, rows: np.ndarray, pending: UndoRecord, counter: str) -> None:
    if not len(rows):
        return
    rows = rows.astype(np.int32)
    columns = table.columns
    meta = {name: columns[name][rows] for name in table.meta_names}
    with table.changing():
        ids = columns["id"][rows]
        dirty = {consumer: columns[dirty_column(consumer)][rows] for consumer in table.tombstones}
        pending.evicted.append(Evicted(ids, rows, table.store.read(rows), dirty, meta))
        table.map.remove(ids)
        columns["live"][rows] = False
        for consumer in table.tombstones:
            columns[dirty_column(consumer)][rows] = False
        table.free = np.sort(np.concatenate((table.free, rows)))
    pending.count(counter, len(rows))


def undo(table: SparseTable, pending: UndoRecord) -> None:
    """Take back the newest plan, which was not committed; the table is locked."""
    if pending.rows is not None:
        for name, old in pending.meta.items():
            table.columns[name][pending.rows] = old
    for rows, ids in reversed(pending.allocated):
        table.map.remove(ids)
        table.columns["live"][rows] = table.columns["uncommitted"][rows] = False
    for evicted in reversed(pending.evicted):
        table.map.add(evicted.ids, evicted.rows)
        table.store.write(evicted.rows, evicted.values)
        table.name_rows(evicted.rows, evicted.ids)
        table.columns["live"][evicted.rows] = True
        for consumer, dirty in evicted.dirty.items():
            table.columns[dirty_column(consumer)][evicted.rows] = dirty
        for name, old in evicted.meta.items():
            table.columns[name][evicted.rows] = old
    for cells in pending.cells:
        table.admission.forget(table.admission.sketch, cells)
    table.next_row, table.last_sweep = pending.next_row, pending.last_sweep
    table.step, table.numbering = pending.start_step, pending.numbering
    table.plans -= 1
    if pending.started:
        # a failure in the middle: like dense weights, the rows are what the last step made of them
        changed = pending.rows[table.columns["live"][pending.rows]]
        for consumer in table.tombstones:
            table.columns[dirty_column(consumer)][changed] = True
