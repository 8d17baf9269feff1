"""Where the rows of a chunk that is only read stand in the graph: every id has a place of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .fields import Component
from .row_groups import Bundle, RowGroup
from .sparse_plan import SMALLEST, SparsePlan, TablePlan, marker, padding_of
from .table import SparseTable

# When a window grows, the programs of all smaller batches are compiled anew: it begins with room for hundreds of rows.
_LEAST_ROWS, _LEAST_ENTRIES = 1 << 13, 1 << 18


class Windows:
    """Gives ids places in what the network reads from; the sizes depend on the shape of the batch alone.

    Args:
        tables: the host tables.
        groups: which of them share a window.
        sizes: (rows, map entries) of each table's window in a program of fixed shape; None lets them grow.
    """

    def __init__(
        self,
        tables: Sequence[SparseTable],
        groups: Sequence[RowGroup],
        sizes: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self.tables = tables
        self.groups = groups
        self.read_sizes = sizes
        self._window_sizes = [0] * len(groups)
        self._map_sizes: dict[int, int] = {}

    def plan(
        self, bundle: Bundle, components: Sequence[Component], ids: Sequence[np.ndarray], batches: int, plan, inputs
    ) -> list[np.ndarray]:
        """Return the places of the ids of every component; adds to `plan` and to the program's `inputs`."""
        if bundle.indirect:
            return [self._apart(bundle, components[0], ids[0], batches, plan, inputs)]
        positions, start = [], 1
        for place, part in enumerate(ids):
            flat = part.reshape(-1)
            place_of = np.arange(start, start + len(flat), dtype=np.int32)
            for group in bundle.groups:
                index = self.groups[group].tables[place]
                rows = self.tables[index].lookup(flat, padding_of(self.tables[index], flat))
                plan.tables.append(TablePlan(index, rows, group, start, self._kept(index, flat)))
            # tables of one bundle agree on what is padding
            positions.append(np.where(rows < 0, np.int32(0), place_of).reshape(part.shape))
            start += len(flat)
        for group in bundle.groups:
            plan.sizes[group] = self._size(group, start)
        inputs.append(marker(batches, plan.sizes[bundle.groups[0]]))
        return positions

    def _apart(
        self, bundle: Bundle, component: Component, ids: np.ndarray, batches: int, plan: SparsePlan, inputs
    ) -> np.ndarray:
        places = np.arange(1, ids.size + 1, dtype=np.int32).reshape(ids.shape)
        for group, index, reads in zip(bundle.groups, component.specs, component.reads, strict=True):
            table = self.tables[index]
            flat = ids[:, :, reads].reshape(-1)
            rows = table.lookup(flat, padding_of(table, flat))
            part = TablePlan(index, rows, group, ids=self._kept(index, flat))
            plan.sizes[group] = self._size(group, len(rows) + 1)
            plan.map_sizes[index] = self._map_size(index, ids.size + 1)
            part.reading_map = np.zeros(plan.map_sizes[index], np.int32)
            own = np.arange(1, len(rows) + 1, dtype=np.int32)
            part.reading_map[places[:, :, reads].reshape(-1)] = np.where(rows < 0, np.int32(0), own)
            inputs += [marker(batches, plan.sizes[group]), marker(batches, plan.map_sizes[index])]
            plan.tables.append(part)
        return places

    def _kept(self, index: int, ids: np.ndarray) -> np.ndarray | None:
        # until the rows are read, training that is prepared meanwhile may give them to other ids
        return ids if self.tables[index].spec.eviction is not None else None

    def _size(self, group: int, needed: int) -> int:
        # programs go on finding the parameter they were compiled with, so a window never shrinks
        if self.read_sizes:
            return self.read_sizes[self.groups[group].tables[0]][0]
        least = min(_LEAST_ROWS, _LEAST_ENTRIES // self.tables[self.groups[group].tables[0]].spec.dim)
        needed = max(needed, least, self._window_sizes[group])
        self._window_sizes[group] = -(-needed // SMALLEST) * SMALLEST
        return self._window_sizes[group]

    def _map_size(self, index: int, needed: int) -> int:
        if self.read_sizes:
            return self.read_sizes[index][1]
        size = max(self._map_sizes.get(index, 0), -(-needed // SMALLEST) * SMALLEST)
        self._map_sizes[index] = size
        return size
