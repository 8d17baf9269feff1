"""States of tables whose rows are divided among processes: put together on rank 0, and taken apart again by each.

What is put together is the state of one process, in the same form, so any number of processes can go on from it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint.frozen import Frozen
from ..distributed.group import Group
from .open_rows import ROWS as OPEN_ROWS
from .spec import DEFAULT_ROW
from .table import SparseTable

BLOCK_BYTES = 4 << 20  # of one message of each process
SPOOLED_BYTES = 64 << 20  # arrays from this size on are put together in a file


def gather_table(
    group: Group,
    table: SparseTable,
    arrays: Mapping[str, Any],
    json: Mapping[str, Any],
    sketch_before: np.ndarray | None,
    folder: Path | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return on rank 0 the (arrays, json) of the whole table, and nothing on the others.

    Args:
        group: the processes; all of them call this.
        table: this process's part.
        arrays: its state, as `table_state.take` returned it.
        json: the same.
        sketch_before: admission sketch that every process began with.
        folder: where large arrays are put together in unnamed files; None: where the system keeps temporary files.
    """
    rows = np.asarray(arrays["rows"])
    # the default row is the same everywhere
    chosen = np.ones(len(rows), np.bool_) if group.is_main else rows != DEFAULT_ROW
    counters = list(json["counters"])
    head = [chosen.sum(), len(arrays["removed"]), json["next_row"], *json["counters"].values()]
    heads = group.gather(np.array(head, np.int64))
    found: dict[str, Any] = {}
    for name, array in arrays.items():
        if name == "sketch":
            found[name] = _add_up(group, np.asarray(array), sketch_before)
            continue
        own = np.asarray(array)
        if name == "rows":
            own = table.shards.numbers(own)
        if name != "removed":
            own = own if chosen.all() else own[chosen]
        counts = heads[:, 1 if name == "removed" else 0].tolist()
        found[name] = _put_together(group, own, counts, folder)
        if name == "removed" and group.is_main:
            found[name] = np.asarray(found[name])
    if not group.is_main:
        return {}, {}
    whole = {**json, "processes": group.size, "next_row": 1 + int(heads[:, 2].max() - 1) * group.size}
    whole["counters"] = dict(zip(counters, heads[:, 3:].sum(axis=0).tolist(), strict=True))
    return found, whole


def _put_together(group: Group, own: np.ndarray, counts: list[int], folder: Path | None) -> Any:
    """Return the arrays of all processes one after the other, on rank 0, gathered block by block."""
    columns = own.shape[1:]
    width = math.prod(columns)
    whole = _room(sum(counts), columns, own.dtype, folder) if group.is_main else None
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    block = max(1, BLOCK_BYTES // max(1, width * own.itemsize))
    for first in range(0, max(counts), block):
        lengths = [max(0, min(count - first, block)) for count in counts]
        given = group.gather_known(own[first : first + block].reshape(-1), [length * width for length in lengths])
        if whole is not None:
            for start, length, part in zip(starts, lengths, given, strict=True):
                whole[start + first : start + first + length] = part.reshape(length, *columns)
    # nothing changes it any more, so whoever writes it need not copy it
    return None if whole is None else Frozen(lambda: whole, own.dtype)


def _room(rows: int, columns: tuple[int, ...], dtype: np.dtype, folder: Path | None) -> np.ndarray:
    if rows * math.prod(columns) * dtype.itemsize < SPOOLED_BYTES:
        return np.empty((rows, *columns), dtype)
    there = folder if folder is not None and folder.is_dir() else None
    with tempfile.TemporaryFile(dir=there) as file:  # the mapping outlives it, and nothing else does
        return np.memmap(file, dtype, "w+", shape=(rows, *columns))


def _add_up(group: Group, sketch: np.ndarray, before: np.ndarray | None) -> np.ndarray:
    """Return what all processes have counted since they began, on top of what they began with."""
    total = np.zeros_like(sketch)
    for row in range(len(sketch)):
        base = np.zeros_like(sketch[row]) if before is None else before[row]
        total[row] = base + (group.gather(sketch[row]) - base).sum(axis=0, dtype=sketch.dtype)
    return total


def own_states(tables: Mapping[str, SparseTable], states: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of this process of a full state and the deltas that build on it, which have been checked."""
    own: list[dict[str, Any]] = [{"json": {}, "arrays": {}} for _ in states]
    for name, table in tables.items():
        chain = _Chain(table)
        for part, state in zip(own, states, strict=True):
            prefix = f"{name}/"
            arrays = {
                key.removeprefix(prefix): value for key, value in state["arrays"].items() if key.startswith(prefix)
            }
            arrays, part["json"][name] = chain.part_of(arrays, state["json"][name])
            part["arrays"] |= {prefix + key: value for key, value in arrays.items()}
    return own


class _Chain:
    """Gives rows to the ids of this process, from the first state of a chain to the last.

    As many processes as have written it get back the rows they had. Of other numbers each numbers its rows anew.
    """

    def __init__(self, table: SparseTable) -> None:
        self.shards = table.shards
        self.names = ("values", *table.meta_names)
        self._start_over()

    def _start_over(self) -> None:
        self._ids = np.zeros(0, np.int64)  # ascending, with their rows
        self._rows = np.zeros(0, np.int32)
        self._next = DEFAULT_ROW + 1

    def part_of(self, arrays: Mapping[str, np.ndarray], json: Mapping[str, Any]) -> tuple[dict, dict]:
        """Return (arrays, json) of what this process keeps of a state."""
        shards, rows = self.shards, np.asarray(arrays["rows"])
        ids, removed = np.asarray(arrays["ids"]), np.asarray(arrays["removed"])
        chosen = np.flatnonzero((rows == DEFAULT_ROW) | shards.owned(ids))
        rows, ids = rows[chosen], ids[chosen]
        if json["full"]:
            self._start_over()
        same = (rows == DEFAULT_ROW) | (shards.keepers(rows) == shards.rank)
        if json.get("processes", 1) == shards.size and same.all():
            own, next_row = shards.rows(rows), 1 + -(-(json["next_row"] - 1) // shards.size)
        else:
            own = self._number(ids, rows)
            next_row = self._next
        found = {name: np.asarray(arrays[name])[chosen] for name in self.names}
        found |= {"rows": own, "ids": ids, "removed": removed[shards.owned(removed)]}
        if "sketch" in arrays:
            found["sketch"] = arrays["sketch"]
        counters = {name: value if shards.rank == 0 else 0 for name, value in json["counters"].items()}
        return found, {**json, "next_row": next_row, "counters": counters}

    def _number(self, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the rows of `ids`: those they have had before, even if they lost them in between, or new ones."""
        own = np.zeros(len(ids), np.int32)
        places = np.searchsorted(self._ids, ids)
        known = np.zeros(len(ids), np.bool_)
        if len(self._ids):
            known = (self._ids[np.minimum(places, len(self._ids) - 1)] == ids) & (rows != DEFAULT_ROW)
            own[known] = self._rows[places[known]]
        new = np.flatnonzero(~known & (rows != DEFAULT_ROW))
        new = new[np.argsort(rows[new])]  # in the order they had, by which rows used equally long ago are evicted
        own[new] = np.arange(self._next, self._next + len(new), dtype=np.int32)
        self._next += len(new)
        merged = np.concatenate((self._ids, ids[new]))
        order = np.argsort(merged)
        self._ids, self._rows = merged[order], np.concatenate((self._rows, own[new]))[order]
        return own


def renumbered(
    group: Group, tables: Mapping[str, SparseTable], states: Sequence[Mapping[str, Any]]
) -> dict[str, np.ndarray]:
    """Return the arrays of the last state, the rows of an open accumulation window by their present numbers.

    Called by all processes, once all have restored their parts.
    """
    arrays = dict(states[-1]["arrays"]) if states else {}
    for name, table in tables.items():
        if f"{name}/{OPEN_ROWS}" not in arrays:
            continue
        saved = np.asarray(arrays[f"{name}/{OPEN_ROWS}"])
        ids = np.zeros(len(saved), np.int64)
        for state in states:  # a later one may have given a row to another id
            rows = np.asarray(state["arrays"][f"{name}/rows"])
            order = np.argsort(rows)
            places = (
                order[np.minimum(np.searchsorted(rows, saved, sorter=order), len(order) - 1)] if len(rows) else rows
            )
            known = np.flatnonzero(rows[places] == saved) if len(rows) else rows
            ids[known] = np.asarray(state["arrays"][f"{name}/ids"])[places[known]]
        own = (saved != DEFAULT_ROW) & table.shards.owned(ids)
        numbers = np.zeros(len(saved), np.int32)
        numbers[own] = table.shards.numbers(table.map.get(ids[own]))
        arrays[f"{name}/{OPEN_ROWS}"] = group.total(numbers)
    return arrays
