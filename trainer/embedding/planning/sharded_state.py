"""States of tables whose rows are divided among processes: joined on rank 0, and divided again by each.

The joined state has the form of one process's, so any number of processes can go on from it.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...checkpoint.tensor_file import Frozen
from ...distributed.group import Group
from ..tables.id_map import find
from ..tables.spec import DEFAULT_ROW
from ..tables.table import SparseTable
from ..tables.table_state import arrays_of

OPEN_ROWS = "accumulated_rows"  # of an unfinished accumulation: in a state, the rows whose gradients it holds
BLOCK_BYTES = 4 << 20  # of one message of each process
SPOOLED_BYTES = 64 << 20  # arrays from this size on are joined in a file


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
        folder: where large arrays are joined in unnamed files; None: where the system keeps temporary files.
    """
    rows = np.asarray(arrays["rows"])
    # the default row is the same everywhere
    chosen = np.ones(len(rows), np.bool_) if group.is_main else rows != DEFAULT_ROW
    heads = group.gather(
        np.array([chosen.sum(), len(arrays["removed"]), json["next_row"], *json["counters"].values()], np.int64)
    )
    joined: dict[str, Any] = {}
    for name, array in arrays.items():
        own = np.asarray(array)
        if name == "sketch":
            joined[name] = _add_up(group, own, sketch_before)
        elif name == "removed":
            joined[name] = _join(group, own, heads[:, 1].tolist(), None)
        else:
            own = table.shards.numbers(own) if name == "rows" else own
            whole = _join(group, own if chosen.all() else own[chosen], heads[:, 0].tolist(), folder)
            # it does not change any more, so a writer need not copy it
            joined[name] = Frozen(functools.partial(np.asarray, whole), own.dtype)
    if not group.is_main:
        return {}, {}
    counters = dict(zip(json["counters"], heads[:, 3:].sum(axis=0).tolist(), strict=True))
    next_row = 1 + int(heads[:, 2].max() - 1) * group.size
    return joined, {**json, "processes": group.size, "next_row": next_row, "counters": counters}


def _join(group: Group, own: np.ndarray, counts: list[int], folder: Path | None) -> np.ndarray | None:
    """Return the arrays of all processes one after the other, on rank 0, gathered block by block."""
    columns = own.shape[1:]
    width = math.prod(columns)
    whole = _allocate((sum(counts), *columns), own.dtype, folder) if group.is_main else None
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    block = max(1, BLOCK_BYTES // max(1, width * own.itemsize))
    for first in range(0, max(counts), block):
        lengths = [max(0, min(count - first, block)) for count in counts]
        parts = group.gather_known(own[first : first + block].reshape(-1), [length * width for length in lengths])
        if whole is not None:
            for start, length, part in zip(starts, lengths, parts, strict=True):
                whole[start + first : start + first + length] = part.reshape(length, *columns)
    return whole


def _allocate(shape: tuple[int, ...], dtype: np.dtype, folder: Path | None) -> np.ndarray:
    if math.prod(shape) * dtype.itemsize < SPOOLED_BYTES:
        return np.empty(shape, dtype)
    existing = folder if folder is not None and folder.is_dir() else None
    with tempfile.TemporaryFile(dir=existing) as file:  # the mapping outlives it, and nothing else does
        return np.memmap(file, dtype, "w+", shape=shape)


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
            arrays, part["json"][name] = chain.part_of(arrays_of(state["arrays"], name), state["json"][name])
            part["arrays"] |= {f"{name}/{key}": value for key, value in arrays.items()}
    return own


class _Chain:
    """Gives rows to the ids of this process, from the first state of a chain to the last.

    As many processes as wrote it get back the rows they had. With another number of processes each numbers its own.
    """

    def __init__(self, table: SparseTable) -> None:
        self.shards = table.shards
        self.names = ("values", *table.meta_names)
        self._start_over()

    def _start_over(self) -> None:
        self._ids = np.zeros(0, np.int64)
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
        part = {name: np.asarray(arrays[name])[chosen] for name in self.names}
        part |= {"rows": own, "ids": ids, "removed": removed[shards.owned(removed)]}
        if "sketch" in arrays:
            part["sketch"] = arrays["sketch"]
        counters = {name: value if shards.rank == 0 else 0 for name, value in json["counters"].items()}
        return part, {**json, "next_row": next_row, "counters": counters}

    def _number(self, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the rows of `ids`: those they have had before, even if they lost them in between, or new ones."""
        own = np.zeros(len(ids), np.int32)
        indices, known = find(self._ids, ids)
        known &= rows != DEFAULT_ROW
        own[known] = self._rows[indices[known]]
        new = np.flatnonzero(~known & (rows != DEFAULT_ROW))
        new = new[np.argsort(rows[new])]  # in their former order, by which rows used equally long ago are evicted
        own[new] = np.arange(self._next, self._next + len(new), dtype=np.int32)
        self._next += len(new)
        self._ids, self._rows = np.concatenate((self._ids, ids[new])), np.concatenate((self._rows, own[new]))
        return own


def renumbered(
    group: Group, tables: Mapping[str, SparseTable], states: Sequence[Mapping[str, Any]]
) -> dict[str, np.ndarray]:
    """Return the arrays of the last state, the rows of an unfinished accumulation by their present numbers.

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
            indices, known = find(rows, saved)
            ids[known] = np.asarray(state["arrays"][f"{name}/ids"])[indices[known]]
        own = (saved != DEFAULT_ROW) & table.shards.owned(ids)
        numbers = np.zeros(len(saved), np.int32)
        numbers[own] = table.shards.numbers(table.map.get(ids[own]))
        arrays[f"{name}/{OPEN_ROWS}"] = group.total(numbers)
    return arrays
