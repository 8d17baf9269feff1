"""Join the states of sharded tables on rank 0, and divide a joined state again.

A joined state has the form of a one-process state, so any number of processes can resume from it.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...checkpoint.block_arrays import blocks, taken
from ...checkpoint.tensor_file import LazyArray
from ...distributed.group import Group
from ..tables.id_map import find
from ..tables.spec import DEFAULT_ROW
from ..tables.table import SparseTable
from ..tables.table_state import arrays_of, owned_columns

OPEN_ROWS = "accumulated_rows"  # key in a state: the rows of an open accumulation
BLOCK_BYTES = 4 << 20  # size of one process's part of a message
SPOOLED_BYTES = 64 << 20  # arrays of at least this size are joined in a file


def gather_table(group: Group, part: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return the arrays of the whole table on rank 0, none elsewhere.

    A collective call; each process passes the result of its `own_part`. Large arrays are joined in unnamed files in
    `folder`, or in the system's folder for temporary files.
    """
    counts = group.gather(np.array([len(np.asarray(part["rows"])), len(part["removed"])], np.int64))
    joined: dict[str, Any] = {}
    for name, array in part.items():
        values = np.asarray(array)
        if name == "sketch":
            joined[name] = np.stack([group.total(row) for row in values[0]])
        elif name == "removed":
            joined[name] = _join(group, values, counts[:, 1].tolist(), None)
        else:
            whole = _join(group, values, counts[:, 0].tolist(), folder)
            # The array no longer changes; `LazyArray` lets a writer use it without a copy.
            joined[name] = LazyArray(functools.partial(np.asarray, whole), values.dtype)
    return joined if group.is_main else {}


def own_part(table: SparseTable, arrays: Mapping[str, Any], sketch_before: np.ndarray | None) -> dict[str, Any]:
    """Return the arrays of this process's part of a snapshot.

    Concatenated in rank order, the parts of all processes are the arrays of the whole table. Rows have their global
    numbers, and only rank 0 includes the default row. Nothing is copied until a writer reads the arrays.

    The admission sketch is [1, depth, width]. All processes started with the sketch `sketch_before`, and only rank 0
    includes it, so that the sum of the parts is what all processes have counted.
    """
    is_main = table.shards.rank == 0

    def column(name: str) -> np.ndarray:
        rows, values = np.asarray(arrays["rows"]), np.asarray(arrays[name])
        values = table.shards.to_global(rows) if name == "rows" else values
        has_default = len(rows) > 0 and rows[0] == DEFAULT_ROW  # rows are ascending
        return values[1:] if has_default and not is_main else values

    part: dict[str, Any] = {}
    for name, array in arrays.items():
        if name == "sketch":
            part[name] = (array if is_main or sketch_before is None else array - sketch_before)[None]
        else:
            part[name] = array if name == "removed" else LazyArray(functools.partial(column, name), array.dtype)
    return part


def joined_json(group: Group, json: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Merge the JSON of all processes into that of whole tables; a collective call."""
    numbers = [number for table in json.values() for number in (table["next_row"], *table["counters"].values())]
    columns = iter(group.gather(np.array(numbers, np.int64)).T)  # one message for all tables
    joined = {}
    for name, table in json.items():
        next_row = 1 + int(next(columns).max() - 1) * group.size
        counters = {counter: int(next(columns).sum()) for counter in table["counters"]}
        joined[name] = {**table, "processes": group.size, "next_row": next_row, "counters": counters}
    return joined


def _join(group: Group, part: np.ndarray, counts: list[int], folder: Path | None) -> np.ndarray | None:
    """Concatenate the arrays of all processes on rank 0, block by block."""
    columns = part.shape[1:]
    width = math.prod(columns)
    whole = _allocate((sum(counts), *columns), part.dtype, folder) if group.is_main else None
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    block = max(1, BLOCK_BYTES // max(1, width * part.itemsize))
    for first in range(0, max(counts), block):
        received = group.gather_rows(part[first : first + block])
        if whole is not None:
            for start, values in zip(starts + first, received, strict=True):
                whole[start : start + len(values)] = values
    return whole


def _allocate(shape: tuple[int, ...], dtype: np.dtype, folder: Path | None) -> np.ndarray:
    if math.prod(shape) * dtype.itemsize < SPOOLED_BYTES:
        return np.empty(shape, dtype)
    existing = folder if folder is not None and folder.is_dir() else None
    with tempfile.TemporaryFile(dir=existing) as file:  # the mapping stays valid after the file is closed
        return np.memmap(file, dtype, "w+", shape=shape)


def own_states(tables: Mapping[str, SparseTable], states: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return this process's parts of a checked full state and its deltas.

    Values that a snapshot stores in blocks are not read before they are restored.
    """
    result: list[dict[str, Any]] = [{"json": {}, "arrays": {}} for _ in states]
    for name, table in tables.items():
        assignment = _RowAssignment(table)
        for part, state in zip(result, states, strict=True):
            arrays, part["json"][name] = assignment.part_of(arrays_of(state["arrays"], name), state["json"][name])
            part["arrays"] |= {f"{name}/{key}": value for key, value in arrays.items()}
    return result


class _RowAssignment:
    """Assigns rows to this process's ids, in a full state and then in its deltas.

    If as many processes wrote the states as there are now, ids keep their rows. Otherwise processes assign new rows.
    """

    def __init__(self, table: SparseTable) -> None:
        self.table, self.shards = table, table.shards
        self._reset()

    def _reset(self) -> None:
        self._ids = np.zeros(0, np.int64)
        self._rows = np.zeros(0, np.int32)
        self._next = DEFAULT_ROW + 1

    def part_of(self, arrays: Mapping[str, np.ndarray], json: Mapping[str, Any]) -> tuple[dict, dict]:
        """Return (arrays, json) of this process's part of a state."""
        shards, removed = self.shards, np.asarray(arrays["removed"])
        indices, rows, ids = owned_columns(self.table, arrays, json["next_row"])
        if json["full"]:
            self._reset()
        same = (rows == DEFAULT_ROW) | (shards.owners_of_rows(rows) == shards.rank)
        if json.get("processes", 1) == shards.size and same.all():
            own_rows, next_row = shards.to_local(rows), 1 + -(-(json["next_row"] - 1) // shards.size)
        else:
            own_rows = self._assign_rows(ids, rows)
            next_row = self._next
        part = {name: taken(arrays[name], indices) for name in ("values", *self.table.meta_names)}
        part |= {"rows": own_rows, "ids": ids, "removed": removed[shards.owned(removed)]}
        if "sketch" in arrays:
            part["sketch"] = arrays["sketch"]
        counters = {name: value if shards.rank == 0 else 0 for name, value in json["counters"].items()}
        return part, {**json, "next_row": next_row, "counters": counters}

    def _assign_rows(self, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return a row for each of `ids`: the one from an earlier state, or a new one."""
        result = np.zeros(len(ids), np.int32)
        indices, known = find(self._ids, ids)
        known &= rows != DEFAULT_ROW
        result[known] = self._rows[indices[known]]
        new = np.flatnonzero(~known & (rows != DEFAULT_ROW))
        new = new[np.argsort(rows[new])]  # keep the order of rows, which decides ties in eviction
        result[new] = np.arange(self._next, self._next + len(new), dtype=np.int32)
        self._next += len(new)
        self._ids, self._rows = np.concatenate((self._ids, ids[new])), np.concatenate((self._rows, result[new]))
        return result


def renumbered(
    group: Group, tables: Mapping[str, SparseTable], states: Sequence[Mapping[str, Any]]
) -> dict[str, np.ndarray]:
    """Return the last state's arrays with an open accumulation's rows renumbered.

    A collective call, after all processes have restored their parts.
    """
    arrays = dict(states[-1]["arrays"]) if states else {}
    for name, table in tables.items():
        if f"{name}/{OPEN_ROWS}" not in arrays:
            continue
        saved = np.asarray(arrays[f"{name}/{OPEN_ROWS}"])
        ids = np.zeros(len(saved), np.int64)
        for state in states:  # a later state may have reassigned a row
            for _, rows, own_ids in blocks(arrays_of(state["arrays"], name), "rows", "ids"):
                indices, known = find(rows, saved)
                ids[known] = own_ids[indices[known]]
        is_owned = (saved != DEFAULT_ROW) & table.shards.owned(ids)
        numbers = np.zeros(len(saved), np.int32)
        numbers[is_owned] = table.shards.to_global(table.map.get(ids[is_owned]))
        arrays[f"{name}/{OPEN_ROWS}"] = group.total(numbers)
    return arrays
