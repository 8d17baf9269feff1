"""A table's state as arrays and JSON: all of it, or what changed since the last time; and back.

Taking a state happens between two steps and only remembers what is meant. It is read afterwards, by whoever turns a
`Frozen` into an array, while training goes on; what training is about to change is copied just before
(`row_store.CopyOnWriteView`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..checkpoint.frozen import Frozen
from ..errors import CheckpointDamagedError
from .row_columns import dirty_column
from .row_store import CopyOnWriteView
from .saved_tables import check_identity
from .spec import DEFAULT_ROW
from .table import SparseTable
from .undo_log import Evicted, UndoRecord


class _Shot:
    """What `take` remembers of a table; the columns are read by whoever is first to need them, or to change them."""

    def __init__(self, table: SparseTable, view: CopyOnWriteView, evicted: list[tuple[Evicted, np.ndarray]]) -> None:
        self._table = table
        self._view = view
        self._evicted = evicted
        self._pending = [(plan.rows, plan.meta) for plan in table.pending]
        self._columns: dict[str, np.ndarray] | None = None

    def columns(self) -> dict[str, np.ndarray]:
        """Return rows, ids and bookkeeping."""
        table = self._table
        with table.lock:
            if self._columns is None:
                rows = self._view.rows
                made = {"rows": rows, "ids": table.columns["id"][rows]}
                for name in table.meta_names:
                    made[name] = _before(table.columns[name][rows], name, rows, self._pending)
                for one, mask in self._evicted:
                    more = {"rows": one.rows, "ids": one.ids, **one.meta}
                    made = {name: np.concatenate((made[name], more[name][mask])) for name in made}
                self._columns = made
            return self._columns

    def values(self) -> np.ndarray:
        """Return the packed rows."""
        values = self._view.values()
        return np.concatenate((values, *(one.values[mask] for one, mask in self._evicted))) if self._evicted else values


def take(table: SparseTable, consumer: str, *, full: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (arrays, json) of the table after the last committed step; plans ahead of it do not show.

    Arrays: "rows" int32 [n], "ids" int64 [n], "values" float32 [n, width], one per kind of bookkeeping [n], all
    `Frozen`; "removed" int64 (ids that lost their row), and "sketch".

    Args:
        table: the table; `follow` must have been called for `consumer`.
        consumer: whose delta this is; its account of changes starts anew.
        full: all rows, instead of those changed since the consumer's last state.
    """
    with table.lock:
        pending, columns = list(table.pending), table.columns
        chosen = columns["live"] & ~columns["uncommitted"] if full else columns[dirty_column(consumer)]
        columns[dirty_column(consumer)] = np.zeros(len(chosen), np.bool_)
        evicted = [(one, _changed(one, consumer, full)) for plan in pending for one in plan.evicted]
        evicted = [(one, mask) for one, mask in evicted if mask.any()]
        for plan in pending:
            for one in plan.evicted:
                one.dirty[consumer] = np.zeros(len(one.rows), np.bool_)
        shot = _Shot(table, table.store.view(chosen), evicted)
        table.deferred.append(shot.columns)
        kinds = {"rows": np.int32, "ids": np.int64, **{name: columns[name].dtype for name in table.meta_names}}
        arrays: dict[str, Any] = {
            name: Frozen(functools.partial(_column, shot, name), kind) for name, kind in kinds.items()
        }
        arrays["values"] = Frozen(shot.values, np.float32)
        arrays["removed"] = np.concatenate([np.zeros(0, np.int64), *([] if full else table.tombstones[consumer])])
        table.tombstones[consumer] = []
        if table.admission.sketch is not None:
            arrays["sketch"] = sketch = table.admission.sketch.copy()
            for cells in (cells for plan in pending for cells in plan.cells):
                table.admission.forget(sketch, cells)
        first = (
            pending[0] if pending else UndoRecord(table.step, 0, next_row=table.next_row, last_sweep=table.last_sweep)
        )
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


def _column(shot: _Shot, name: str) -> np.ndarray:
    return shot.columns()[name]


def _changed(evicted: Evicted, consumer: str, full: bool) -> np.ndarray:
    if full or consumer not in evicted.dirty:
        return np.full(len(evicted.rows), full)
    return evicted.dirty[consumer]


def _before(values: np.ndarray, name: str, rows: np.ndarray, pending: list[tuple]) -> np.ndarray:
    """Put the bookkeeping of `rows` (ascending) back to what it was before the pending plans."""
    for touched, meta in reversed(pending):
        if touched is None or not len(rows):
            continue
        places = np.minimum(np.searchsorted(rows, touched), len(rows) - 1)
        same = rows[places] == touched
        values[places[same]] = meta[name][same]
    return values


def restore(table: SparseTable, arrays: Mapping[str, np.ndarray], json: Mapping[str, Any]) -> None:
    """Bring a table to a saved state: a full one replaces everything, a delta is applied to the state before it.

    Raises:
        CheckpointMismatchError: the state belongs to a table of another dimension, optimizer or seed.
        CheckpointDamagedError: a delta does not fit the state it is applied to.
    """
    name = table.spec.name
    check_identity(table, json)
    rows, ids = np.asarray(arrays["rows"], np.int32), np.asarray(arrays["ids"], np.int64)
    with table.changing():
        table.rollback()
        if json["full"]:
            table.clear()
        table.discard(np.asarray(arrays["removed"], np.int64))
        own = rows != DEFAULT_ROW
        present = table.map.get(ids[own])
        fits = (present < 0) | (present == rows[own])
        taken = (rows < len(table.columns["live"])) & own
        taken[taken] = table.columns["live"][rows[taken]] & (table.ids_of(rows[taken]) != ids[taken])
        if not fits.all() or taken.any():
            raise CheckpointDamagedError(f"the delta of table {name!r} does not fit the state before it")
        table.reserve(int(json["next_row"]))
        table.map.add(ids[own][present < 0], rows[own][present < 0])
        table.store.write(rows, np.asarray(arrays["values"], np.float32)[:, : table.width])
        table.name_rows(rows, ids)
        table.columns["live"][rows] = True
        for meta in table.meta_names:
            table.columns[meta][rows] = arrays[meta]
        for consumer in table.tombstones:
            table.columns[dirty_column(consumer)][rows] = True
        if table.admission.sketch is not None:
            table.admission.sketch[...] = arrays["sketch"]
        table.step, table.next_row = int(json["step"]), int(json["next_row"])
        table.last_sweep, table.plans = float(json["last_sweep"]), int(json["plans"])
        table.counters.update(json["counters"])
        table.set_free_rows()


def rewind(table: SparseTable, states: Sequence[tuple[Mapping[str, np.ndarray], Mapping[str, Any]]]) -> None:
    """Put the rows back to the values of earlier states while plans go on: who has a row stays as it is.

    Rows of ids that came later start anew from their first value.

    Args:
        table: the table; its preparing thread may go on meanwhile.
        states: (arrays, json) of a full state and the deltas after it, in order.
    """
    with table.changing():
        live = np.flatnonzero(table.columns["live"][: table.next_row] & ~table.columns["uncommitted"][: table.next_row])
        table.write_first(live, table.ids_of(live))
        table.store.write(np.array([DEFAULT_ROW]), table.packed(np.zeros((1, table.spec.dim), np.float32)))
        for arrays, _ in states:
            ids, values = np.asarray(arrays["ids"], np.int64), np.asarray(arrays["values"], np.float32)
            rows = table.map.get(ids)
            rows[np.asarray(arrays["rows"]) == DEFAULT_ROW] = DEFAULT_ROW
            known = (rows >= 0) & ~table.columns["uncommitted"][rows]
            table.store.write(rows[known], values[known])
        for consumer in table.tombstones:
            table.columns[dirty_column(consumer)][live] = True
