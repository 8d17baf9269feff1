"""`SparsePlan`, the rows that a chunk uses, and helpers that planners share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...native.memory import bucket, zeros
from ..tables.table import SparseTable
from .layout import Bundle, Component, Layout

MIN_SIZE = 64  # smallest padded size; the others are multiples of it
_MAX_POWER_OF_TWO = 8192  # padded sizes up to this one are powers of two


@dataclass(frozen=True, slots=True)
class OpenRows:
    """Rows of an accumulation that is unfinished after a chunk, ordered by position."""

    component_of: np.ndarray  # component of the bundle that each row belongs to, int32 [n]
    rows: np.ndarray  # the row in each stack of the bundle, int32 [stacks, n]


Carry = dict[int, OpenRows]  # key: the first of the stacks that share positions


def padded_size(count: int) -> int:
    """Return the padded size for `count` distinct rows plus 2 %."""
    return bucket(count + count // 50, 16, minimum=MIN_SIZE, coarse=_MAX_POWER_OF_TWO)


class PaddedSizes:
    """Chooses few different padded sizes, because each size needs its own program.

    Batches are grouped by the maximum number of rows that they could need, rounded up to a power of two. Each table or
    stack has one size per group, which only grows. A large batch therefore adds no padding to small ones: these are in
    another group, and their shape needs another program anyway.
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, int], int] = {}

    def fitting(self, index: int, needed: int, maximum: int) -> int:
        """Return the size for `needed` rows of the table or stack `index`.

        `maximum` is the largest number of rows that a batch of this shape could need.
        """
        key = index, bucket(maximum)
        if needed > self._sizes.get(key, 0):
            self._sizes[key] = padded_size(needed)
        return self._sizes[key]


@dataclass(slots=True)
class TablePlan:
    """One table's part of a chunk."""

    table: int
    rows: np.ndarray  # distinct rows of the chunk, int32 [u]; in a read-only chunk the row of every id, -1 for padding
    stack: int
    start: int = 1  # position of the first of `rows` in the stack's working set, or read set
    ids: np.ndarray | None = None  # ids of `rows`, in a read-only chunk of a table with eviction
    # In a read-only chunk of an indirect bundle, the position of every id's row, int32 [map size].
    reading_map: np.ndarray | None = None

    @property
    def inside(self) -> slice:
        """Positions of `rows` in the stack's working set, or read set."""
        return slice(self.start, self.start + len(self.rows))


@dataclass(slots=True)
class StackExchange:
    """Rows of one stack that processes exchange in each window of a call.

    A window is one step, or with accumulation the micro-batches of one optimizer update. The rows that this process
    owns have positions from 1 on; the default row of each table comes first. Lists have one entry per window.
    """

    windows: np.ndarray  # the window of each micro-batch, ascending from 0, int64
    sent: list[list[np.ndarray]]  # for each rank, the positions in the window of the rows that it owns, int32
    requested: list[np.ndarray]  # positions of the owned rows that each rank reads, in rank order, int32
    ends: list[np.ndarray]  # where the rows of each rank end in `requested`, int64 [size]
    indices: list[np.ndarray]  # index of each entry of `requested` among the window's distinct rows, from 1, int32
    tables: np.ndarray  # table of each owned row, int32 [rows]; entry 0 is not a row
    rows: np.ndarray  # row of each owned row in its table, int32 [rows]
    step_rows: list[np.ndarray]  # positions of the distinct owned rows, int32


@dataclass(slots=True)
class SparsePlan:
    """Plan of a chunk for `SparseTables.load` and `write_back`."""

    train: bool  # whether rows are trained or only read
    sizes: list[int]  # padded number of rows in every stack's working set or read set
    step_sizes: list[int]  # padded number of distinct rows of a step, for every stack; zeros in a read-only plan
    tables: list[TablePlan] = field(default_factory=list)
    map_sizes: dict[int, int] = field(default_factory=dict)  # length of the position map of each table that has one
    inputs: list[np.ndarray] = field(default_factory=list)  # extra columns of the program, [K, ...] when it is stacked
    carry: Carry = field(default_factory=dict)  # rows of the accumulation that the chunk leaves open
    lengths: list[int] = field(default_factory=list)  # number of rows of each column in a batch
    exchanges: list[StackExchange] = field(default_factory=list)  # exchange of each stack with other processes

    def by_stack(self) -> list[list[TablePlan]]:
        """Return the table plans of every stack."""
        parts: list[list[TablePlan]] = [[] for _ in self.sizes]
        for part in self.tables:
            parts[part.stack].append(part)
        return parts


def padding_of(table: SparseTable, ids: np.ndarray) -> np.ndarray | None:
    """Return where `ids` are padding, bool; None for a table without padding."""
    return None if table.spec.padding is None else ids == table.spec.padding


def marker(batches: int, size: int) -> np.ndarray:
    """Return an array whose shape tells the graph the size of a parameter."""
    return np.zeros((batches, 1 + size // MIN_SIZE), np.int8)


# A read set has at least `_MIN_ROWS` rows, or at least `_MIN_ENTRIES` numbers if that is fewer rows. Small requests of
# different sizes then use read sets of one size.
_MIN_ROWS, _MIN_ENTRIES = 1 << 13, 1 << 18


class ReadSets:
    """Plans reads: gives every id of a batch a position in a read set.

    A read set is the rows of one stack that a read-only chunk uses. Rows may repeat, so its size depends only on the
    shape of the batch.
    """

    def __init__(self, tables: Sequence[SparseTable], layout: Layout) -> None:
        self.tables = tables
        self.stacks = layout.stacks

    def plan(
        self,
        bundle: Bundle,
        components: Sequence[Component],
        ids: Sequence[np.ndarray],
        batches: int,
        plan: SparsePlan,
    ) -> list[np.ndarray]:
        """Return the positions of every component's ids; add the reads to `plan`."""
        if bundle.indirect:
            return [self._plan_indirect(bundle, components[0], ids[0], batches, plan)]
        positions, start = [], 1
        for member, part in enumerate(ids):
            flat = part.reshape(-1)
            for stack in bundle.stacks:
                rows = self._look_up(self.stacks[stack].tables[member], stack, start, flat, plan).rows
            # Tables of a bundle have the same padding.
            numbers = np.arange(start, start + len(flat), dtype=np.int32)
            positions.append(np.where(rows < 0, np.int32(0), numbers).reshape(part.shape))
            start += len(flat)
        for stack in bundle.stacks:
            plan.sizes[stack] = self._size(stack, start)
        plan.inputs.append(marker(batches, plan.sizes[bundle.stacks[0]]))
        return positions

    def _plan_indirect(
        self, bundle: Bundle, component: Component, ids: np.ndarray, batches: int, plan: SparsePlan
    ) -> np.ndarray:
        positions = np.arange(1, ids.size + 1, dtype=np.int32).reshape(ids.shape)
        for member, (stack, index) in enumerate(zip(bundle.stacks, component.specs, strict=True)):
            reads = component.elements(member, ids.shape[2])
            part = self._look_up(index, stack, 1, ids[:, :, reads].reshape(-1), plan)
            plan.sizes[stack] = self._size(stack, len(part.rows) + 1)
            plan.map_sizes[index] = _round_up(ids.size + 1)
            part.reading_map = np.zeros(plan.map_sizes[index], np.int32)
            numbers = np.arange(1, len(part.rows) + 1, dtype=np.int32)
            part.reading_map[positions[:, :, reads].reshape(-1)] = np.where(part.rows < 0, np.int32(0), numbers)
            plan.inputs += [marker(batches, plan.sizes[stack]), marker(batches, plan.map_sizes[index])]
        return positions

    def _look_up(self, index: int, stack: int, start: int, ids: np.ndarray, plan: SparsePlan) -> TablePlan:
        table = self.tables[index]
        part = TablePlan(index, table.lookup(ids, padding_of(table, ids)), stack, start)
        if table.spec.eviction is not None:  # training may reassign the rows before they are read
            part.ids = ids
        plan.tables.append(part)
        return part

    def _size(self, stack: int, needed: int) -> int:
        first = self.stacks[stack].tables[0]
        minimum = min(_MIN_ROWS, _MIN_ENTRIES // self.tables[first].spec.dim)
        return _round_up(max(needed, minimum))


def _round_up(size: int) -> int:
    return -(-size // MIN_SIZE) * MIN_SIZE


class UniqueIndexer:
    """Finds distinct numbers without sorting, with a lookup table that it reuses.

    Not safe to share between threads.
    """

    def __init__(self) -> None:
        from ..tables import kernels

        self._number = kernels.number_distinct.ready()
        self._slots = np.zeros(0, np.int32)
        self.first = np.zeros(0, np.int32)  # index of each distinct number's first occurrence in the latest call

    def __call__(self, numbers: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (distinct, inverse) of `numbers`, int32 [n] in [-1, bound).

        `distinct` (int32 [u]) lists the numbers except -1 in the order of first occurrence. `inverse` (int32 [n])
        counts from 1, so that ``distinct[inverse - 1] == numbers``; it is 0 where the number is -1.
        """
        if len(self._slots) < bound:
            self._slots = zeros((max(bound, 2 * len(self._slots)),), np.int32)
        numbers = np.ascontiguousarray(numbers, np.int32)
        distinct, first, inverse = (np.empty(len(numbers), np.int32) for _ in range(3))
        count = self._number(numbers, self._slots, distinct, first, inverse)
        self.first = first[:count]
        return distinct[:count], inverse


class SortingIndexer:
    """Finds distinct numbers by sorting; its memory does not grow with their range."""

    def __init__(self) -> None:
        self.first = np.zeros(0, np.int32)

    def __call__(self, numbers: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (distinct, inverse) as `UniqueIndexer` does; ignores `bound`."""
        distinct, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        skip = int(len(distinct) and distinct[0] < 0)  # 1 if -1 occurs
        order = np.argsort(first[skip:])
        number = np.zeros(len(distinct), np.int32)
        number[skip:][order] = np.arange(1, len(order) + 1, dtype=np.int32)
        self.first = first[skip:][order].astype(np.int32)
        return distinct[skip:][order].astype(np.int32), number[inverse.reshape(-1)]
