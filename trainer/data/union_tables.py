"""Sparse tables of several processes: each plans the ids of all, so that positions mean the same rows everywhere.

Each process works out the rows of the whole step, as a single process would from the larger batch. The exchange of rows
is described in `trainer.embedding.layers.sharded_tables`. The gradients travel with the dense ones.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..distributed.group import Group
from ..embedding.tables.hashing import to_plain
from ..errors import DataError
from .as_columns import Columns
from .chunk import Chunk, ChunkTransform
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
        self._columns = sorted(fields.id_columns | {field.part.column for field in fields.dense})

    def prepare(self, columns: Columns, chunk: Chunk, now: float | None) -> tuple[Columns, Any]:
        """Return this process's columns, and the plan of the rows of all.

        Made-up rows contribute no ids and get positions of other processes' rows.
        """
        axis = int(chunk.stacked)
        made_up = not chunk.num_samples
        own = [to_plain(np.asarray(columns[column])) for column in self._columns]
        by_clock = now is None
        now = time.time() if now is None else now
        counted = not made_up and own[0].shape[axis]
        message = _Message(own if counted else [], now, by_clock)
        parts = [_Message.unpack(part) for part in self.group.gather_bytes(message.pack())]
        joined = list(columns)
        for index, column in enumerate(self._columns):
            joined[column] = _joined([part.arrays[index] for part in parts if part.arrays], axis)
        now = max((part.now for part in parts if not part.by_clock), default=parts[0].now)
        prepared, plan = self.tables.prepare(tuple(joined), chunk, now)
        result = list(prepared)
        for index, column in enumerate(self._columns):
            # values one after another, with offsets, are not as many as the rows
            before = sum(part.arrays[index].shape[axis] for part in parts[: self.group.rank] if part.arrays)
            count = own[index].shape[axis]
            chosen: Any = slice(before, before + count)
            if made_up:  # a full batch, where all processes together may have fewer rows: short last batches
                chosen = np.arange(count) % joined[column].shape[axis]
            result[column] = np.ascontiguousarray(result[column][:, chosen] if axis else result[column][chosen])
        return tuple(result), plan

    def release(self) -> None:
        """Forget what was prepared and not trained."""
        self.tables.release()


@dataclass(frozen=True, slots=True)
class _Message:
    """What a process tells the others of its chunk.

    Attributes:
        arrays: its columns that hold ids; none where its rows do not count.
        now: newest event time, or the clock's, in seconds.
        by_clock: whether `now` is the clock's.
    """

    arrays: list[np.ndarray]
    now: float
    by_clock: bool

    def pack(self) -> bytes:
        head = json.dumps([[[array.dtype.str, array.shape] for array in self.arrays], self.now, self.by_clock]).encode()
        content = (np.ascontiguousarray(array).tobytes() for array in self.arrays)
        return b"".join([len(head).to_bytes(4, "little"), head, *content])

    @classmethod
    def unpack(cls, message: bytes) -> _Message:
        start = 4 + int.from_bytes(message[:4], "little")
        described, now, by_clock = json.loads(message[4:start])
        arrays = []
        for dtype, shape in described:
            arrays.append(np.frombuffer(message, dtype, math.prod(shape), start).reshape(shape))
            start += arrays[-1].nbytes
        return cls(arrays, now, by_clock)


def _joined(parts: Sequence[np.ndarray], axis: int) -> np.ndarray:
    lengths = sorted({part.shape[axis + 1] for part in parts if part.ndim > axis + 1})
    if len(lengths) > 1:
        raise DataError(
            f"the processes' batches have rows of {lengths} ids, and sparse tables take those of a step together; give "
            "the rows as lists, which are padded alike, or pad them to one length"
        )
    return np.concatenate(parts, axis=axis)
