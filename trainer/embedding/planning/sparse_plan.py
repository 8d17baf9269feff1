"""What the graph needs to know about a chunk's ids, and the sizes of it that programs are compiled for."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...native.padded_sizes import bucket
from ..tables.table import SparseTable

SMALLEST = 64
_COARSE = 8192


@dataclass(frozen=True, slots=True)
class OpenRows:
    """Rows of an accumulation that a chunk leaves unfinished, in the order of their positions.

    Attributes:
        component_of: which component of the bundle each row belongs to, int32 [n].
        rows: the row in each stack of the bundle, int32 [stacks, n].
    """

    component_of: np.ndarray
    rows: np.ndarray


Carry = dict[int, OpenRows]  # by the first of the stacks that are numbered together


def padded_size(count: int) -> int:
    """Return the bucket for `count` distinct rows and 2 % to spare."""
    return bucket(count + count // 50, 16, least=SMALLEST, coarse=_COARSE)


@dataclass(slots=True)
class TablePlan:
    """One table's part of a chunk.

    Attributes:
        table: index of the table.
        rows: distinct rows of the chunk, int32 [u]; of a chunk that is only read, the row of every id, -1 for none.
        stack: index of the table's stack.
        start: position of the first of `rows` in the stack's working set, or read set.
        ids: of a chunk that is only read from a table that evicts, the ids that `rows` belong to; else None.
        reading_map: position of every id of a chunk that is only read, int32 [map size], where the table translates.
    """

    table: int
    rows: np.ndarray
    stack: int
    start: int = 1
    ids: np.ndarray | None = None
    reading_map: np.ndarray | None = None


@dataclass(slots=True)
class SparsePlan:
    """Everything `SparseTables.load` and `write_back` need for a chunk.

    Attributes:
        train: whether rows are trained or only read.
        tables: one entry a table.
        sizes: rows of every stack's working set (read set of a chunk that is only read) in the graph, padded.
        step_sizes: distinct rows of a step, padded, for every stack; zeros in a plan that only reads.
        map_sizes: length of the position map of each table that has one.
        inputs: extra columns of the program, int32 or int8, [K, ...] when the chunk is stacked.
        prepared_in: seconds it took.
        carry: rows of an accumulation that the chunk leaves unfinished.
    """

    train: bool
    sizes: list[int]
    step_sizes: list[int]
    tables: list[TablePlan] = field(default_factory=list)
    map_sizes: dict[int, int] = field(default_factory=dict)
    inputs: list[np.ndarray] = field(default_factory=list)
    prepared_in: float = 0.0
    carry: Carry = field(default_factory=dict)

    def by_stack(self) -> list[list[TablePlan]]:
        """Return the tables' parts of every stack."""
        parts: list[list[TablePlan]] = [[] for _ in self.sizes]
        for part in self.tables:
            parts[part.stack].append(part)
        return parts


def padding_of(table: SparseTable, ids: np.ndarray) -> np.ndarray | None:
    """Return where `ids` stand for nothing, a bool array of their shape; None for a table without padding."""
    return None if table.spec.padding is None else ids == table.spec.padding


def marker(batches: int, size: int) -> np.ndarray:
    """Return an array whose shape tells the graph the size of a parameter it cannot see in its arguments."""
    return np.zeros((batches, 1 + size // SMALLEST), np.int8)
