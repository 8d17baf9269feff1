"""A table's state as arrays and JSON: all of it, or what changed since the last time; and back.

Taking a state is quick and happens between two steps; the rows themselves are copied afterwards, by whoever turns the
`FrozenRows` into an array, while training goes on (`store.Cut`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.embedding.store import Cut
from trainer.embedding.table import DEFAULT_ROW, Evicted, Pending, SparseTable
from trainer.errors import CheckpointDamagedError, CheckpointMismatchError


class FrozenRows:
    """Rows as they were at one moment, float32 [n, width]: an array for whoever asks for one, on any thread.

    Attributes:
        frozen: tells writers that no copy is needed to protect it from changes.
    """

    frozen = True
    dtype = np.dtype(np.float32)

    def __init__(self, cut: Cut, more: np.ndarray) -> None:
        self._cut = cut
        self._more = more
        self._values: np.ndarray | None = None
        self.shape = (len(cut.rows) + len(more), more.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self._values is None:
            values = self._cut.values()
            self._values = np.concatenate((values, self._more)) if len(self._more) else values
        return self._values if dtype is None else self._values.astype(dtype, copy=False)

    def release(self) -> None:
        """Give up rows that will not be asked for."""
        self._cut.release()


def take(table: SparseTable, follower: str, *, full: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (arrays, json) of the table after the last committed step; plans ahead of it do not show.

    Arrays: "rows" int32 [n], "ids" int64 [n], "values" (`FrozenRows`, [n, width]), one per kind of bookkeeping [n],
    "removed" int64 (ids that lost their row), and "sketch".

    Args:
        table: the table; `follow` must have been called for `follower`.
        follower: whose delta this is; its account of changes starts anew.
        full: all rows, instead of those changed since the follower's last state.
    """
    with table.lock:
        pending = list(table.pending)
        columns, dirty = table.columns, table.columns[f"dirty.{follower}"]
        span = slice(0, table.next_row)
        chosen = columns["live"][span] & ~columns["unborn"][span] if full else dirty[span]
        rows = np.flatnonzero(chosen).astype(np.int32)
        evicted = [(one, _changed(one, follower, full)) for plan in pending for one in plan.evicted]
        arrays: dict[str, Any] = {
            "rows": _joined(rows, [one.rows[mask] for one, mask in evicted]),
            "ids": _joined(columns["id"][rows], [one.ids[mask] for one, mask in evicted]),
        }
        for name in table.meta_names:
            values = _before(columns[name][rows], name, rows, pending)
            arrays[name] = _joined(values, [one.meta[name][mask] for one, mask in evicted])
        more = [one.values[mask] for one, mask in evicted]
        arrays["values"] = FrozenRows(table.store.cut(rows), _joined(np.empty((0, table.width), np.float32), more))
        arrays["removed"] = _joined(np.zeros(0, np.int64), [] if full else table.tombstones[follower])
        if table.admission.sketch is not None:
            arrays["sketch"] = sketch = table.admission.sketch.copy()
            for cells in (cells for plan in pending for cells in plan.cells):
                table.admission.forget(sketch, cells)
        dirty[:] = False
        for one, _ in evicted:
            one.dirty[follower] = np.zeros(len(one.rows), np.bool_)
        table.tombstones[follower] = []
        first = pending[0] if pending else Pending(table.step, 0, next_row=table.next_row, last_sweep=table.last_sweep)
        return arrays, {
            "full": full,
            "dim": table.spec.dim,
            "width": table.width,
            "seed": f"{table.seed:016x}",
            "step": first.start_step,
            "next_row": first.next_row,
            "last_sweep": first.last_sweep,
            "plans": table.plans - len(pending),
            "counters": dict(table.counters),
        }


def _changed(evicted: Evicted, follower: str, full: bool) -> np.ndarray:
    if full or follower not in evicted.dirty:
        return np.full(len(evicted.rows), full)
    return evicted.dirty[follower]


def _joined(first: np.ndarray, more: list[np.ndarray]) -> np.ndarray:
    return np.concatenate((first, *more)) if more else first


def _before(values: np.ndarray, name: str, rows: np.ndarray, pending: list[Pending]) -> np.ndarray:
    """Put the bookkeeping of `rows` (ascending) back to what it was before the pending plans."""
    for plan in reversed(pending):
        if plan.rows is None or not len(rows):
            continue
        places = np.minimum(np.searchsorted(rows, plan.rows), len(rows) - 1)
        same = rows[places] == plan.rows
        values[places[same]] = plan.meta[name][same]
    return values


def restore(table: SparseTable, arrays: Mapping[str, np.ndarray], json: Mapping[str, Any]) -> None:
    """Bring a table to a saved state: a full one replaces everything, a delta is applied to the state before it.

    Raises:
        CheckpointMismatchError: the state belongs to a table of another dimension, optimizer or seed.
        CheckpointDamagedError: a delta does not fit the state it is applied to.
    """
    name = table.spec.name
    checks = (
        ("dim", table.spec.dim, "dim"),
        ("width", table.width, "optimizer"),
        ("seed", f"{table.seed:016x}", "name"),
    )
    for what, own, reason in checks:
        if json[what] != own:
            raise CheckpointMismatchError(
                f"table {name!r} has {what} {own}, the saved one {json[what]}: they differ in {reason}"
                f"{' or seed' if what == 'seed' else ''}"
            )
    rows, ids = np.asarray(arrays["rows"], np.int32), np.asarray(arrays["ids"], np.int64)
    with table.lock:
        table.rollback()
        if json["full"]:
            table.clear()
        _remove(table, np.asarray(arrays["removed"], np.int64))
        own = rows != DEFAULT_ROW
        present = table.map.get(ids[own])
        fits = (present < 0) | (present == rows[own])
        taken = (rows < len(table.columns["live"])) & own
        taken[taken] = table.columns["live"][rows[taken]] & (table.columns["id"][rows[taken]] != ids[taken])
        if not fits.all() or taken.any():
            raise CheckpointDamagedError(f"the delta of table {name!r} does not fit the state before it")
        table.reserve(int(json["next_row"]))
        table.map.add(ids[own][present < 0], rows[own][present < 0])
        table.store.write(rows, np.asarray(arrays["values"], np.float32))
        table.columns["id"][rows] = ids
        table.columns["live"][rows] = True
        for meta in table.meta_names:
            table.columns[meta][rows] = arrays[meta]
        for follower in table.tombstones:
            table.columns[f"dirty.{follower}"][rows] = True
        if table.admission.sketch is not None:
            table.admission.sketch[...] = arrays["sketch"]
        table.step, table.next_row = int(json["step"]), int(json["next_row"])
        table.last_sweep, table.plans = float(json["last_sweep"]), int(json["plans"])
        table.counters.update(json["counters"])
        table.set_free_rows()


def _remove(table: SparseTable, ids: np.ndarray) -> None:
    ids = np.unique(ids)
    rows = table.map.get(ids)
    table.map.remove(ids)
    table.columns["live"][rows[rows >= 0]] = False
