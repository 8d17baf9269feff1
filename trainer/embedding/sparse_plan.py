"""What the graph needs to know about a chunk's ids, and the sizes of it that programs are compiled for."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .table import SparseTable

Carry = dict[int, tuple[np.ndarray, np.ndarray]]
SMALLEST = 64
_COARSE = 8192


def padded_size(count: int) -> int:
    """Return `count` rounded up, 2 % to spare: to a power of two where that costs little, else one of 16 per octave.

    Every size is a program of its own, so there should be few.
    """
    count = max(SMALLEST, count + count // 50)
    step = 1 << (count - 1).bit_length()
    if step > _COARSE:
        step //= 32
    return -(-count // step) * step


@dataclass
class TablePlan:
    """One table's part of a chunk.

    Attributes:
        table: index of the table.
        rows: distinct rows of the chunk, int32 [u]; of a chunk that is only read, the row of every id, -1 for none.
        group: index of the table's row group.
        start: position of the first of `rows` in the group's working set, or window.
        ids: of a chunk that is only read from a table that evicts, the ids that `rows` were found for; else None.
        reading_map: position of every id of a chunk that is only read, int32 [map size], where the table translates.
    """

    table: int
    rows: np.ndarray
    group: int
    start: int = 1
    ids: np.ndarray | None = None
    reading_map: np.ndarray | None = None


@dataclass
class SparsePlan:
    """Everything `SparseTables.load` and `write_back` need for a chunk.

    Attributes:
        train: whether rows are trained or only read.
        tables: one entry a table.
        sizes: rows of every group's working set (window of a chunk that is only read) in the graph, padded.
        step_sizes: distinct rows of a step, padded, for every group; empty in a plan that only reads.
        map_sizes: length of the position map of each table that has one.
        inputs: extra columns of the program, int32 or int8, [K, ...] when the chunk is stacked.
        prepared_in: seconds it took.
        carry: rows of an accumulation window that the chunk leaves open, see `Planner`.
    """

    train: bool
    tables: list[TablePlan] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    step_sizes: list[int] = field(default_factory=list)
    map_sizes: dict[int, int] = field(default_factory=dict)
    inputs: tuple[np.ndarray, ...] = ()
    prepared_in: float = 0.0
    carry: Carry = field(default_factory=dict)


def padding_of(table: SparseTable, ids: np.ndarray) -> np.ndarray | None:
    """Return where `ids` stand for nothing, a bool array of their shape; None for a table without padding."""
    return None if table.spec.padding is None else ids == table.spec.padding


def marker(batches: int, size: int) -> np.ndarray:
    """Return an array whose shape tells the graph the size of a parameter it cannot see in its arguments."""
    return np.zeros((batches, 1 + size // SMALLEST), np.int8)
