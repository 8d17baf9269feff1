"""Capture, check and restore a table's state, either full or as a delta.

A state consists of arrays and JSON. `take` only records which rows a state covers. A writer reads the rows later, when
it converts a `LazyArray` to an array while training continues; `row_store.CopyOnWriteView` copies rows that training is
about to change. `check_states` checks saved states before any table changes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...checkpoint.block_arrays import blocks
from ...checkpoint.tensor_file import LazyArray
from ...checks import any_number, whole
from ...errors import CheckpointDamagedError, CheckpointMismatchError
from .eviction import Evicted, UndoRecord
from .id_map import find
from .row_store import CopyOnWriteView
from .spec import DEFAULT_ROW, undo_counting
from .table import SparseTable
from .table_rows import dirty_column

Arrays = Mapping[str, Any]  # values: arrays in memory, `LazyArray`, or `BlockArray`
Columns = tuple[np.ndarray, np.ndarray]  # rows and the ids that they belong to
# A saved state may have this many free rows, plus 100 per saved row, so a forged state cannot reserve unlimited memory.
_MAX_FREE_ROWS = 10**7


def arrays_of(arrays: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the arrays of table `name` from `arrays`, whose keys are ``table/array``."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}


@dataclass(eq=False)
class _Capture:
    """A table's state at the time of `take`, read later or just before it changes."""

    _table: SparseTable
    _view: CopyOnWriteView
    _evicted: list[tuple[Evicted, np.ndarray]]  # rows that uncommitted plans evicted, mask of the rows to include
    _items: int  # numbers per row in stored form
    _pending: list[tuple[np.ndarray, dict[str, np.ndarray]]]  # rows of each uncommitted plan, their old bookkeeping
    _columns: dict[str, np.ndarray] | None = None

    def columns(self) -> dict[str, np.ndarray]:
        """Return rows, ids and bookkeeping columns, read on the first call."""
        table = self._table
        with table.lock:
            if self._columns is None:
                rows = self._view.rows
                columns = {"rows": rows, "ids": table.columns["id"][rows]}
                for name in table.meta_names:
                    columns[name] = self._before_plans(name, rows)
                for evicted, mask in self._evicted:
                    before = {"rows": evicted.rows, "ids": evicted.ids, **evicted.meta}
                    columns = {name: np.concatenate((columns[name], before[name][mask])) for name in columns}
                self._columns = columns
            return self._columns

    def _before_plans(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return column `name` of ascending `rows` as before the uncommitted plans."""
        values = self._table.columns[name][rows]
        for planned, meta in reversed(self._pending):
            if meta:
                indices, same = find(rows, planned, ascending=True)
                values[indices[same]] = meta[name][same]
        return values

    def column(self, name: str) -> np.ndarray:
        return self.columns()[name]

    def values(self) -> np.ndarray:
        values = self._view.values()
        evicted = (e.values[mask, : self._items] for e, mask in self._evicted)
        return np.concatenate((values, *evicted)) if self._evicted else values


def take(
    table: SparseTable, consumer: str, *, full: bool, weights_only: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the table's state after the last committed step, (arrays, json).

    The arrays "rows" int32 [n], "ids" int64 [n], "values" float32 [n, width] and one array [n] per bookkeeping column
    are `LazyArray`. "removed" (int64) lists the ids that lost their row, "sketch" is the admission policy's sketch, if
    it has one. For a float16 table "values" is float16 [n, items]: the weights, then two items per optimizer slot,
    which hold the bits of a float32. Changes by uncommitted plans are left out.

    Args:
        table: the table, which must already track changes for `consumer` (`TableRows.track_changes`).
        consumer: name of the change tracking to use; it is reset.
        full: return all rows, not only those changed since the consumer's last state.
        weights_only: leave out optimizer slots: "values" is [n, dim].
    """
    width = table.spec.dim if weights_only else table.width
    with table.lock:
        pending, columns = list(table.pending), table.columns
        included = columns["live"] & ~columns["uncommitted"] if full else columns[dirty_column(consumer)]
        columns[dirty_column(consumer)] = np.zeros(len(included), np.bool_)
        evicted = []
        for part in (part for plan in pending for part in plan.evicted):
            mask = np.ones(len(part.rows), np.bool_) if full else part.dirty.get(consumer, np.zeros(0, np.bool_))
            if mask.any():
                evicted.append((part, mask))
            part.dirty[consumer] = np.zeros(len(part.rows), np.bool_)
        before = [(plan.rows, plan.meta) for plan in pending]
        capture = _Capture(table, table.store.view(included, width), evicted, table.store.items_of(width), before)
        table.snapshot_readers.append(capture.columns)
        kinds = {"rows": np.int32, "ids": np.int64, **{name: columns[name].dtype for name in table.meta_names}}
        arrays: dict[str, Any] = {
            name: LazyArray(functools.partial(capture.column, name), kind) for name, kind in kinds.items()
        }
        arrays["values"] = LazyArray(capture.values, table.store.dtype)
        arrays["removed"] = np.concatenate([np.zeros(0, np.int64), *([] if full else table.tombstones[consumer])])
        table.tombstones[consumer] = []
        if table.admission.sketch is not None:
            arrays["sketch"] = sketch = table.admission.sketch.copy()
            for cells in (cells for plan in pending for cells in plan.cells):
                undo_counting(sketch, cells)
        first: UndoRecord | SparseTable = pending[0] if pending else table
        return arrays, {
            "full": full,
            "dim": table.spec.dim,
            "width": table.width,
            "dtype": table.spec.dtype,
            "seed": f"{table.seed:016x}",
            "optimizer": table.rule,
            "step": first.step,
            "next_row": first.next_row,
            "last_sweep": first.last_sweep,
            "plans": table.plans - len(pending),
            "counters": dict(table.counters),
        }


# -- checks --------------------------------------------------------------------------------------------------------


def check_states(tables: Mapping[str, SparseTable], states: Sequence[Mapping[str, Any]]) -> None:
    """Check a full state and its deltas, as returned by `SparseTables.take`.

    Arrays are read in blocks. Each process checks only the ids that it owns.

    Raises:
        CheckpointMismatchError: the tables have other names, dimensions, optimizers or seeds.
        CheckpointDamagedError: the states are malformed, or a delta does not fit the states before it.
    """
    for state in states:
        names = set(state["json"]) if isinstance(state["json"], Mapping) else set()
        if missing := sorted(set(tables) ^ names):
            raise CheckpointMismatchError(
                f"the snapshot has the tables {sorted(names)}, the network {sorted(tables)}: "
                f"{', '.join(missing)} has no counterpart; name tables with Embedding(..., name=...)"
            )
    for name, table in tables.items():
        chain = [(arrays_of(state["arrays"], name), state["json"][name]) for state in states]
        try:
            owned = []
            for link, (arrays, json) in enumerate(chain):
                _check_json(table, json, first=link == 0)
                owned.append(_check_arrays(table, arrays, json))
            _check_chain(chain, owned)
            limit = _MAX_FREE_ROWS + 100 * sum(arrays["rows"].shape[0] for arrays, _ in chain)
            rows = max((whole("next_row", json["next_row"], maximum=limit) for _, json in chain), default=0)
            if table.shards.size == 1:  # with several processes, each takes only a part of the rows
                table.reserve(rows)
        except (CheckpointMismatchError, CheckpointDamagedError):
            raise
        except (ValueError, TypeError, KeyError, AttributeError, MemoryError, OverflowError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
            raise CheckpointDamagedError(f"the saved table {name!r} cannot be restored: {reason}") from error


def _check_json(table: SparseTable, json: Mapping[str, Any], *, first: bool) -> None:
    # A read-only table has no optimizer slots and restores only the weights.
    width = json["width"] if table.rule is None and table.width == table.spec.dim else table.width
    saved = {"dtype": "float32", "optimizer": None, **json}  # states of older releases have neither
    optimizer = saved["optimizer"] if None in (table.rule, saved["optimizer"]) else table.rule
    checks = (
        ("dim", table.spec.dim, "dim"),
        ("dtype", table.spec.dtype, "dtype (init_from converts the rows)"),
        ("optimizer", optimizer, "optimizer (init_from takes the weights alone)"),
        ("width", width, "optimizer"),
        ("seed", f"{table.seed:016x}", "name or seed"),
    )
    for key, expected, reason in checks:
        if saved[key] != expected:
            raise CheckpointMismatchError(
                f"table {table.spec.name!r} has {key} {expected}, the saved one {saved[key]}: they differ in {reason}"
            )
    if not isinstance(json["full"], bool) or (first and not json["full"]):
        raise ValueError(f"full is {json['full']!r}")
    for key in ("step", "plans", "updates"):
        whole(key, json[key], 0)
    whole("width", json["width"], table.width)
    whole("next_row", json["next_row"], DEFAULT_ROW + 1, maximum=2**31 - 1)
    any_number("last_sweep", json["last_sweep"])
    for key, value in json["counters"].items():
        whole(f"counter {key}", value, 0)


def check_forms(arrays: Arrays, expected: Mapping[str, tuple[Any, tuple[int, ...]]]) -> None:
    """Check the (dtype, shape) of arrays; raise ValueError or KeyError."""
    for key, (dtype, shape) in expected.items():
        array = arrays[key]
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(f"{key} is {array.dtype} {list(array.shape)}, not {np.dtype(dtype)} {list(shape)}")


def _check_arrays(table: SparseTable, arrays: Arrays, json: Mapping[str, Any]) -> Columns:
    """Check one state's arrays; return the (rows, ids) that this process owns."""
    count = arrays["rows"].shape[0]
    values = table.store.dtype, (count, table.store.items_of(json["width"]))
    expected = {"rows": (np.int32, (count,)), "ids": (np.int64, (count,)), "values": values}
    expected |= {name: (table.columns[name].dtype, (count,)) for name in table.meta_names}
    expected["removed"] = (np.int64, (math.prod(arrays["removed"].shape),))
    if table.admission.sketch is not None:
        parts = arrays["sketch"].shape[-3:-2]  # (number of processes,) in a state written by several processes
        expected["sketch"] = (table.admission.sketch.dtype, (*parts, *table.admission.sketch.shape))
    check_forms(arrays, expected)
    _, rows, ids = owned_columns(table, arrays, int(json["next_row"]))
    has_id = rows != DEFAULT_ROW
    if len(np.unique(rows)) != len(rows) or len(np.unique(ids[has_id])) != np.count_nonzero(has_id):
        raise ValueError("a row or an id occurs twice")
    return rows, ids


def owned_columns(table: SparseTable, arrays: Arrays, next_row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (indices, rows, ids) of the entries that this process owns.

    `indices` are positions in the saved arrays. The default row belongs to every process.

    Raises:
        ValueError: a row of any process lies outside 0 to `next_row` - 1.
    """
    parts: list[tuple[np.ndarray, ...]] = [(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64))]
    for first, rows, ids in blocks(arrays, "rows", "ids"):
        if not 0 <= rows.min() <= rows.max() < next_row:
            raise ValueError(f"rows lie in [{rows.min()}, {rows.max()}], not below next_row {next_row}")
        owned = np.flatnonzero((rows == DEFAULT_ROW) | table.shards.owned(ids))
        parts.append((first + owned, rows[owned], ids[owned]))
    indices, rows, ids = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return indices, rows, ids


def _check_chain(chain: Iterable[tuple[Arrays, Mapping[str, Any]]], owned: Iterable[Columns]) -> None:
    """Check that no delta moves an id to another row, or a row to another id.

    `owned` holds, for each state of `chain`, the (rows, ids) that this process owns.
    """
    known_ids, known_rows = np.zeros(0, np.int64), np.zeros(0, np.int32)
    for (arrays, json), (all_rows, all_ids) in zip(chain, owned, strict=True):
        has_id = all_rows != DEFAULT_ROW
        ids, rows = all_ids[has_id], all_rows[has_id]
        if json["full"] or not len(known_ids):
            known_ids, known_rows = ids, rows
            continue
        remains = ~np.isin(known_ids, np.asarray(arrays["removed"]))
        known_ids, known_rows = known_ids[remains], known_rows[remains]
        indices, again = find(ids, known_ids)
        others = known_rows[~again]
        if (rows[indices[again]] != known_rows[again]).any() or np.isin(others, rows).any():
            raise ValueError("a delta does not fit the state before it")
        known_ids, known_rows = np.concatenate((known_ids[~again], ids)), np.concatenate((others, rows))


# -- restoring -----------------------------------------------------------------------------------------------------


def restore(table: SparseTable, arrays: Arrays, json: Mapping[str, Any]) -> None:
    """Restore a checked state: a full one replaces all rows, a delta its own rows."""
    rows, ids = np.asarray(arrays["rows"], np.int32), np.asarray(arrays["ids"], np.int64)
    with table.changing():
        table.rollback()
        table.open_plans = []
        before, _ = table.items()
        if json["full"]:
            table.clear()
        table.discard(np.asarray(arrays["removed"], np.int64))
        has_id = rows != DEFAULT_ROW
        new = has_id.copy()
        new[has_id] = table.map.get(ids[has_id]) < 0
        table.reserve(int(json["next_row"]))
        table.map.add(ids[new], rows[new])
        for first, values in blocks(arrays, "values"):
            table.store.write_stored(rows[first : first + len(values)], values[:, : table.store.items_of(table.width)])
        table.record_ids(rows, ids)
        table.columns["live"][rows] = True
        for meta in table.meta_names:
            table.columns[meta][rows] = np.asarray(arrays[meta])
        table.mark_changed(rows)
        removed = before[table.map.get(before) < 0]
        for tombstones in table.tombstones.values():
            tombstones.append(removed)  # each consumer's next delta removes these ids
        if table.admission.sketch is not None:
            _restore_sketch(table.admission.sketch, arrays)
        table.step, table.next_row = int(json["step"]), int(json["next_row"])
        table.last_sweep, table.plans = float(json["last_sweep"]), int(json["plans"])
        table.counters.update(json["counters"])
        table.set_free_rows()


def _restore_sketch(sketch: np.ndarray, arrays: Arrays) -> None:
    """Set the sketch to the saved one; sum the sketches of several processes."""
    if len(arrays["sketch"].shape) <= sketch.ndim:
        sketch[...] = np.asarray(arrays["sketch"])
        return
    sketch[...] = 0
    for _, parts in blocks(arrays, "sketch"):
        sketch += parts.sum(0, dtype=sketch.dtype)


def rewind(table: SparseTable, states: Sequence[tuple[Arrays, Mapping[str, Any]]]) -> None:
    """Reset row values to a saved full state and its deltas; planning may continue.

    Ids keep their rows. Rows of ids that were added after the states return to their initial values. So do the rows
    that uncommitted plans have evicted, which come back if these plans are undone.
    """
    with table.changing():
        live = np.flatnonzero(table.columns["live"][: table.next_row] & ~table.columns["uncommitted"][: table.next_row])
        table.write_initial(live, table.ids_of(live))
        table.reset_default_row()
        evicted = [(plan.evicted, index) for plan in table.pending for index in range(len(plan.evicted))]
        evicted_ids = np.concatenate([np.zeros(0, np.int64), *(parts[index].ids for parts, index in evicted)])
        first_values = table.store.encoded(table.initial_values(evicted_ids))
        evicted_values = first_values.copy()
        for arrays, _ in states:
            removed = np.unique(np.asarray(arrays["removed"], np.int64))  # some have come back since
            rows = table.rows_of(removed)
            known = (rows >= 0) & ~table.columns["uncommitted"][rows]
            table.write_initial(rows[known], removed[known])
            _, known = find(removed, evicted_ids)
            evicted_values[known] = first_values[known]
            for _, saved_rows, ids, values in blocks(arrays, "rows", "ids", "values"):
                rows = table.rows_of(ids)
                rows[saved_rows == DEFAULT_ROW] = DEFAULT_ROW
                known = (rows >= 0) & ~table.columns["uncommitted"][rows]
                table.store.write_stored(rows[known], values[known])
                if evicted:
                    own = np.flatnonzero(saved_rows != DEFAULT_ROW)
                    indices, known = find(ids[own], evicted_ids)
                    evicted_values[known, : values.shape[1]] = values[own[indices[known]]]
        table.mark_changed(live)
        end = 0
        for parts, index in evicted:
            part, start = parts[index], end
            end += len(part.ids)
            changed = {consumer: np.ones(end - start, np.bool_) for consumer in table.tombstones}
            parts[index] = replace(part, values=evicted_values[start:end], dirty=changed)
