"""Rows of chunks that are only read, before the graph: every id has a position of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..tables.table import SparseTable
from .layout import Bundle, Component, Layout
from .sparse_plan import SMALLEST, SparsePlan, TablePlan, marker, padding_of

# When a read set grows, the programs of all smaller batches are compiled again: it begins with room for hundreds.
_LEAST_ROWS, _LEAST_ENTRIES = 1 << 13, 1 << 18


class ReadSize(NamedTuple):
    """Rows and map entries of one table's read set in a program of fixed shape."""

    rows: int
    map_size: int


class ReadSets:
    """Gives ids positions in what the network reads from; the sizes depend on the shape of the batch alone.

    Args:
        tables: the host tables.
        layout: which of them share a read set.
        sizes: the size for each table in a program of fixed shape; None lets them grow.
    """

    def __init__(self, tables: Sequence[SparseTable], layout: Layout, sizes: Sequence[ReadSize] | None = None) -> None:
        self.tables = tables
        self.stacks = layout.stacks
        self.fixed = sizes
        self._sizes = [0] * len(layout.stacks)
        self._map_sizes = [0] * len(tables)

    def plan(
        self,
        bundle: Bundle,
        components: Sequence[Component],
        ids: Sequence[np.ndarray],
        batches: int,
        plan: SparsePlan,
    ) -> list[np.ndarray]:
        """Return the positions of the ids of every component; adds to `plan`."""
        if bundle.indirect:
            return [self._plan_indirect(bundle, components[0], ids[0], batches, plan)]
        positions, start = [], 1
        for member, part in enumerate(ids):
            flat = part.reshape(-1)
            for stack in bundle.stacks:
                rows = self._look_up(self.stacks[stack].tables[member], stack, start, flat, plan).rows
            # tables of one bundle agree on what is padding
            own = np.arange(start, start + len(flat), dtype=np.int32)
            positions.append(np.where(rows < 0, np.int32(0), own).reshape(part.shape))
            start += len(flat)
        for stack in bundle.stacks:
            plan.sizes[stack] = self._size(stack, start)
        plan.inputs.append(marker(batches, plan.sizes[bundle.stacks[0]]))
        return positions

    def _plan_indirect(
        self, bundle: Bundle, component: Component, ids: np.ndarray, batches: int, plan: SparsePlan
    ) -> np.ndarray:
        positions = np.arange(1, ids.size + 1, dtype=np.int32).reshape(ids.shape)
        for stack, index, reads in zip(bundle.stacks, component.specs, component.reads, strict=True):
            part = self._look_up(index, stack, 1, ids[:, :, reads].reshape(-1), plan)
            plan.sizes[stack] = self._size(stack, len(part.rows) + 1)
            plan.map_sizes[index] = self._map_size(index, ids.size + 1)
            part.reading_map = np.zeros(plan.map_sizes[index], np.int32)
            own = np.arange(1, len(part.rows) + 1, dtype=np.int32)
            part.reading_map[positions[:, :, reads].reshape(-1)] = np.where(part.rows < 0, np.int32(0), own)
            plan.inputs += [marker(batches, plan.sizes[stack]), marker(batches, plan.map_sizes[index])]
        return positions

    def _look_up(self, index: int, stack: int, start: int, ids: np.ndarray, plan: SparsePlan) -> TablePlan:
        table = self.tables[index]
        part = TablePlan(index, table.lookup(ids, padding_of(table, ids)), stack, start)
        if table.spec.eviction is not None:  # before the rows are read, training prepared meanwhile may reassign them
            part.ids = ids
        plan.tables.append(part)
        return part

    def _size(self, stack: int, needed: int) -> int:
        # programs keep the parameter they were compiled with, so a read set never shrinks
        first = self.stacks[stack].tables[0]
        if self.fixed:
            return self.fixed[first].rows
        least = min(_LEAST_ROWS, _LEAST_ENTRIES // self.tables[first].spec.dim)
        self._sizes[stack] = _rounded(max(needed, least, self._sizes[stack]))
        return self._sizes[stack]

    def _map_size(self, index: int, needed: int) -> int:
        if self.fixed:
            return self.fixed[index].map_size
        self._map_sizes[index] = max(self._map_sizes[index], _rounded(needed))
        return self._map_sizes[index]


def _rounded(size: int) -> int:
    return -(-size // SMALLEST) * SMALLEST
