"""Giving rows to the ids of many tables at once, for tables that give every id a row and keep it.

What `SparseTable.plan` does, with fewer calls: a kernel looks an id up and gives it a row where it has none, and the
first values of the new rows of all tables are computed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .hashing import first_rows
from .table import SparseTable
from .undo_log import UndoRecord


def takes(table: Any) -> bool:
    """Return whether it is a whole table of this process that gives every id a row of its own for good."""
    spec = table.spec
    return (
        isinstance(table, SparseTable)
        and spec.capacity is None
        and spec.admission is None
        and spec.eviction is None
        and spec.padding is None
    )


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
    found = []
    new: dict[tuple, list[tuple[SparseTable, int, np.ndarray]]] = {}
    for table, part in zip(tables, ids, strict=True):
        first = table.next_row
        rows, fresh = _give_rows(table, part, steps)
        if fresh is None:  # its map is being enlarged, or there are free rows to give out again
            rows = table.plan(part, None, now, steps)
        elif len(fresh):
            spec = table.spec
            new.setdefault((spec.dim, spec.initializer, spec.scale), []).append((table, first, fresh))
        found.append(rows)
    for (dim, initializer, scale), parts in new.items():
        everyone = np.concatenate([fresh for _, _, fresh in parts])
        seeds = np.repeat(np.array([table.seed for table, *_ in parts], np.uint64), [len(part[2]) for part in parts])
        values = first_rows(everyone, dim, seeds, initializer, scale)
        start = 0
        for table, first, fresh in parts:
            table.store.write_range(first, values[start : start + len(fresh)], table.first_slots)
            start += len(fresh)
    return found


def _give_rows(table: SparseTable, ids: np.ndarray, steps: int | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return (rows, new ids) of `ids` and note the plan; (.., None) where the table has to be asked to plan."""
    flat = np.ascontiguousarray(ids).reshape(-1)
    first = table.next_row
    with table.changing():
        places = None if len(table.free) else table.map.give(flat, first, rows := np.empty(len(flat), np.int32))
        if places is None:
            return flat, None
        pending = UndoRecord(table.step, steps or len(ids), next_row=first, last_sweep=table.last_sweep)
        table.pending.append(pending)
        table.plans += 1
        table.ticket += 1
        table.step += pending.steps
        fresh = flat[places]
        if len(fresh):
            last = first + len(fresh)
            table.reserve(last)
            table.next_row = last
            new = np.arange(first, last, dtype=np.int32)
            table.name_rows(new, fresh)
            for name in ("live", "uncommitted"):
                table.columns[name][first:last] = True
            pending.allocated.append((new, fresh))
            pending.count("admitted", len(fresh))
    return rows.reshape(ids.shape), fresh
