"""Giving rows to the ids of many tables at once, for tables that give every id a row and keep it.

What `SparseTable.plan` does, with fewer calls: a kernel looks an id up and gives it a row where it has none, and the
first values of the new rows of all tables are computed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .hashing import first_rows
from .table import CELLS_PER_PLAN, SparseTable


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
