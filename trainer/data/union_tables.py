"""Sparse tables of several processes: all prepare the ids of all, and so mean the same rows by the same positions.

Each process works out the rows of the whole step, as one process would from the larger batch. Who keeps a row, and how
the others come by it, is said in `trainer.embedding.sharded_tables`. The gradients travel with the dense ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..distributed.group import Group
from ..embedding.fields import to_plain
from ..errors import DataError
from .as_columns import Columns
from .chunk import BatchGroup, ChunkTransform
from .table_feed import TableFeed


class UnionTables(ChunkTransform):
    """Prepares a chunk together with those of all other processes; on the thread that runs graphs, as it exchanges ids.

    Args:
        tables: what prepares the ids of one process.
        group: the processes.
    """

    on_graph_thread = True

    def __init__(self, tables: TableFeed, group: Group) -> None:
        self.tables = tables
        self.group = group
        fields = tables.tables.planner.fields
        parts = [column for component in fields.components for column, _ in component.parts]
        self._columns = sorted({*parts, *(column for column, *_ in fields.dense)})

    def prepare(self, group: BatchGroup) -> tuple[Columns, Any]:
        """Return this process's columns, and the plan of the rows of all."""
        return self._prepare(group, made_up=False)

    def prepare_made_up(self, group: BatchGroup) -> tuple[Columns, Any]:
        """The same for rows that do not count: their ids are nobody's, and they get places of others."""
        return self._prepare(group, made_up=True)

    def _prepare(self, group: BatchGroup, *, made_up: bool) -> tuple[Columns, Any]:
        axis = int(group.stacked)
        own = [to_plain(np.asarray(group.columns[column])) for column in self._columns]
        rows = 0 if made_up else own[0].shape[axis]
        now = time.time() if group.event_time is None else group.event_time
        parts = [_unpack(part) for part in self.group.gather_bytes(_pack(own, rows, now, group.event_time is None))]
        columns = list(group.columns)
        for place, column in enumerate(self._columns):
            columns[column] = _joined([arrays[place] for arrays, *_ in parts if arrays], axis)
        measured = [of_rank for *_, of_rank, by_clock in parts if not by_clock]
        prepared, plan = self.tables.prepare(
            group._replace(columns=tuple(columns), event_time=max(measured) if measured else parts[0][2])
        )
        found = list(prepared)
        for place, column in enumerate(self._columns):
            # values one after another, with offsets, are not as many as the rows
            before = sum(arrays[place].shape[axis] for arrays, *_ in parts[: self.group.rank] if arrays)
            count = own[place].shape[axis]
            chosen: Any = slice(before, before + count)
            if made_up:  # a full batch, where all processes together may have fewer rows: short last batches
                chosen = np.arange(count) % columns[column].shape[axis]
            found[column] = np.ascontiguousarray(found[column][:, chosen] if axis else found[column][chosen])
        return tuple(found), plan

    def release(self) -> None:
        """Forget what was prepared and not trained."""
        self.tables.release()


def _joined(parts: Sequence[np.ndarray], axis: int) -> np.ndarray:
    lengths = sorted({part.shape[axis + 1] for part in parts if part.ndim > axis + 1})
    if len(lengths) > 1:
        raise DataError(
            f"the processes' batches have rows of {lengths} ids, and sparse tables take those of a step together; give "
            "the rows as lists, which are padded alike, or pad them to one length"
        )
    return np.concatenate(parts, axis=axis)


def _pack(arrays: Sequence[np.ndarray], rows: int, now: float, by_clock: bool) -> bytes:
    kept = arrays if rows else []
    head = json.dumps([[[array.dtype.str, array.shape] for array in kept], rows, now, by_clock]).encode()
    return b"".join([len(head).to_bytes(4, "little"), head, *(np.ascontiguousarray(array).tobytes() for array in kept)])


def _unpack(message: bytes) -> tuple[list[np.ndarray], int, float, bool]:
    start = 4 + int.from_bytes(message[:4], "little")
    described, rows, now, by_clock = json.loads(message[4:start])
    arrays = []
    for dtype, shape in described:
        array = np.frombuffer(message, dtype, int(np.prod(shape)), start).reshape(shape)
        arrays.append(array)
        start += array.nbytes
    return arrays, rows, now, by_clock
