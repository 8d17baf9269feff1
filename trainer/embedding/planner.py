"""From a chunk's raw ids to positions in what the graph sees, on the preparing thread; no graph code here."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ..errors import DataError
from .bulk_plan import plan_alike, plan_together, takes
from .fields import Component, FieldMap, to_plain
from .hashing import to_ids
from .row_groups import Bundle, RowGroup, separate_tables
from .sparse_plan import Carry, SparsePlan, TablePlan, marker, padded_size, padding_of
from .table import SparseTable
from .unique_indexer import SortingIndexer, UniqueIndexer
from .windows import Windows


class Planner:
    """Turns raw ids into positions.

    Args:
        tables: the host tables, in the order of `FieldMap`'s indices.
        trainable: whether each table is trained.
        fields: what feeds them.
        accumulate: batches that share one optimizer update.
        read_sizes: (rows, map entries) of each table's window in a program of fixed shape that only reads.
        grouping: (bundles, groups) of the tables; None keeps every table for itself.
    """

    def __init__(
        self,
        tables: Sequence[SparseTable],
        trainable: Sequence[bool],
        fields: FieldMap,
        accumulate: int = 1,
        read_sizes: Sequence[tuple[int, int]] | None = None,
        grouping: tuple[list[Bundle], list[RowGroup]] | None = None,
    ) -> None:
        self.tables = list(tables)
        self.trainable = list(trainable)
        self.fields = fields
        self.accumulate = accumulate
        self.bundles, self.groups = grouping or separate_tables(fields.components)
        self._windows = Windows(self.tables, self.groups, read_sizes)
        self._work_sizes = [0] * len(self.groups)
        self._step_sizes = [0] * len(self.groups)
        self._map_sizes: dict[int, int] = {}
        # of an unfinished accumulation window: (component, rows of its tables in the order of the groups) of every row
        self.carry: Carry = {}
        self._rows: UniqueIndexer | SortingIndexer = UniqueIndexer()
        self._steps = UniqueIndexer()
        parts = [part for component in fields.components for part in component.parts]
        self._replaced = {column for column, elements in parts if elements is None}
        self._alike: dict[int, bool] = {}
        self._together = [takes(table) and trained for table, trained in zip(self.tables, self.trainable, strict=True)]

    def plan(
        self,
        columns: Sequence[np.ndarray],
        stacked: bool,
        num_batches: int,
        *,
        train: bool = True,
        fill: int = 0,
        flush: bool = False,
        now: float | None = None,
    ) -> tuple[tuple[np.ndarray, ...], SparsePlan]:
        """Replace ids by positions.

        Args:
            columns: host columns, [batch, ...], or [K, batch, ...] when `stacked`; not changed.
            stacked: see `columns`.
            num_batches: batches that count; later ones are padding.
            train: False only reads: unknown ids get the default row.
            fill: batches of an unfinished accumulation window before this chunk.
            flush: the window closes with this chunk.
            now: event time in seconds for a time to live; by default the system's clock.

        Returns:
            (columns, plan): columns that hold ids are int32 positions now; a string column is always replaced.

        Raises:
            DataError: an id is out of range of a dense table, or a column holds no ids.
        """
        began = time.perf_counter()
        now = time.time() if now is None else now
        # ids are replaced as a whole where all of a column are some; text is hashed once
        out = [
            column if index in self._replaced else to_plain(column)
            for index, column in enumerate(map(np.asarray, columns))
        ]
        self._check_dense(columns, stacked, num_batches)
        plan = SparsePlan(train, sizes=[0] * len(self.groups), step_sizes=[0] * len(self.groups) if train else [])
        batches = len(columns[0]) if stacked else 1
        windows = (np.arange(num_batches) + fill) // self.accumulate
        inputs: list[np.ndarray] = []
        for number, bundle in enumerate(self.bundles):
            components = [self.fields.components[index] for index in bundle.components]
            ids = [self._gather(component, columns, stacked, num_batches) for component in components]
            if not train:
                positions = self._windows.plan(bundle, components, ids, batches, plan, inputs)
            elif bundle.indirect:
                positions = [self._train_apart(bundle, components[0], ids[0], windows, batches, plan, inputs, now)]
            else:
                positions = self._train(number, components, ids, windows, batches, plan, inputs, now)
            for component, part in zip(components, positions, strict=True):
                self._scatter(component, part, columns, out, stacked, num_batches)
        if train and (flush or (fill + num_batches) % self.accumulate == 0):
            self.carry.clear()
        plan.carry = dict(self.carry)
        plan.tables.sort(key=lambda part: part.table)
        plan.inputs = tuple([array if stacked else array[0] for array in inputs])
        plan.prepared_in = time.perf_counter() - began
        return tuple(out), plan

    # -- columns -------------------------------------------------------------------------------------------------

    def _check_dense(self, columns: Sequence[np.ndarray], stacked: bool, num_batches: int) -> None:
        for column, elements, capacity, padding, name in self.fields.dense:
            values = _batches(np.asarray(columns[column]), stacked)[:num_batches]
            if values.dtype.kind not in "iu":
                raise DataError(
                    f"dense table {name!r} takes integers from 0 to {capacity - 1}; received {values.dtype}. "
                    "mode='sparse' takes any ids"
                )
            if elements is not None:
                values = values.reshape(-1, int(np.prod(values.shape[2:])))[:, elements]
            if padding is not None:
                values = values[values != padding]
            low, high = int(values.min(initial=0)), int(values.max(initial=0))
            if high >= capacity or low < 0:
                raise DataError(
                    f"dense table {name!r} takes ids from 0 to {capacity - 1}; received {low if low < 0 else high}. "
                    "mode='sparse' takes any ids"
                )

    def _gather(self, component: Component, columns, stacked: bool, num_batches: int) -> np.ndarray:
        """Return the component's raw ids, int64 [num_batches, batch, elements]."""
        found = []
        for column, elements in component.parts:
            values = _batches(np.asarray(columns[column]), stacked)[:num_batches]
            values = values.reshape(*values.shape[:2], -1)
            found.append(to_ids(values if elements is None else values[:, :, elements], f"column {column}"))
        return found[0] if len(found) == 1 else np.concatenate(found, axis=2)

    def _scatter(
        self, component: Component, positions: np.ndarray, columns, out, stacked: bool, num_batches: int
    ) -> None:
        start = 0
        for column, elements in component.parts:
            source = np.asarray(columns[column])
            shape = source.shape if stacked else (1, *source.shape)
            size = int(np.prod(shape[2:])) if elements is None else len(elements)
            part = positions[:, :, start : start + size]
            start += size
            if elements is None:
                new = np.zeros(shape, np.int32)
                new[:num_batches] = part.reshape(num_batches, *shape[1:])
                out[column] = new if stacked else new[0]
                continue
            if out[column].dtype != np.int32 or out[column] is source:
                out[column] = out[column].astype(np.int32)
            view = out[column].reshape(*shape[:2], -1)
            view[:num_batches, :, elements] = part

    # -- training ------------------------------------------------------------------------------------------------

    def _train(
        self, number: int, components: Sequence[Component], ids, windows, batches: int, plan: SparsePlan, inputs, now
    ) -> list[np.ndarray]:
        """Number the rows of a bundle; returns the positions of every component's ids, [count, batch, elements]."""
        bundle, count = self.bundles[number], len(windows)
        nothing = np.zeros(0, np.int32), np.zeros((len(bundle.groups), 0), np.int32)
        carried_by, carried = self.carry.get(number, nothing)
        head = np.zeros(len(carried_by), np.int32)
        chunk: list[np.ndarray] = []
        rows_of: list[list[np.ndarray]] = [[] for _ in bundle.groups]
        component_of: list[np.ndarray] = []
        start = 1
        ids_of = [part.reshape(count, -1) for part in ids]
        first_tables = [self.groups[bundle.groups[0]].tables[place] for place in range(len(ids))]
        self._compare(bundle, first_tables)
        for place, rows in enumerate(self._rows_of_all(first_tables, ids_of, now)):
            mine = np.flatnonzero(carried_by == place) if len(carried_by) else carried_by
            tables = [self.groups[group].tables[place] for group in bundle.groups]
            distinct, inverse = self._distinct(tables, ids_of[place], rows, carried[:, mine], now)
            for group, table, rows, all_rows in zip(bundle.groups, tables, distinct, rows_of, strict=True):
                plan.tables.append(TablePlan(table, rows, group, start))
                all_rows.append(rows)
            head[mine] = np.arange(start, start + len(mine), dtype=np.int32)
            if start > 1:
                inverse += np.int32(start - 1) * (inverse > 0)
            chunk.append(inverse)
            component_of.append(np.full(len(distinct[0]), place, np.int32))
            start += len(distinct[0])
        joined = chunk[0] if len(chunk) == 1 else np.concatenate(chunk, axis=1)
        steps, positions = self._number_steps(joined, windows, head, start)
        first = bundle.groups[0]
        size = self._grow(self._work_sizes, first, start)
        step_size = self._grow(self._step_sizes, first, max(map(len, steps.values())) + 1)
        step_rows = _step_rows(steps, windows, batches, step_size)
        for group in bundle.groups:
            plan.sizes[group], plan.step_sizes[group] = size, step_size
        inputs.append(step_rows)
        if bundle.in_graph:
            inputs.append(marker(batches, size))
        if self.accumulate > 1:
            last = steps[int(windows[-1])] - 1
            everything = np.stack([np.concatenate(rows) for rows in rows_of])
            self.carry[number] = np.concatenate(component_of)[last], everything[:, last]
        ends = np.cumsum([part.shape[1] for part in chunk])[:-1]
        return [part.reshape(one.shape) for part, one in zip(np.split(positions, ends, axis=1), ids, strict=True)]

    def _compare(self, bundle: Bundle, first_tables: Sequence[int]) -> None:
        """Find out which tables of a bundle number their rows like the first ones of their ids."""
        for group in bundle.groups[1:]:
            for first, index in zip(first_tables, self.groups[group].tables, strict=True):
                # once they differ they do so for the rest of the run
                if self._alike.get(index, self._together[index] and self._together[first]):
                    self._alike[index] = self.tables[index].numbers_like(self.tables[first])

    def _distinct(
        self, tables: Sequence[int], ids: np.ndarray, rows: np.ndarray, carried: np.ndarray, now: float
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Return (distinct rows of each of the tables, int32 [u]; inverse int32 [count, n], counting from 1).

        The distinct rows begin with those that are `carried`, int32 [tables, c]. The first table, whose `rows` are
        given, decides what is distinct; in the others every id has a row of its own as well.
        """
        first = self.tables[tables[0]]
        width = carried.shape[1]
        everything = np.concatenate((carried[0], rows.reshape(-1))) if width else rows.reshape(-1)
        distinct, inverse = self._rows(everything, first.next_row)
        inverse = inverse[width:].reshape(rows.shape)
        if self.trainable[tables[0]]:
            first.record(distinct, inverse, now)
        found = [distinct]
        if len(tables) > 1:
            new = ids.reshape(-1)[self._rows.first[width:] - width]
            for place, index in enumerate(tables[1:], 1):
                table = self.tables[index]
                if self._alike.get(index):
                    more = plan_alike(table, first, new, distinct[width:], now)
                else:
                    more = table.plan(new[None], None, now, steps=len(ids)).reshape(-1)
                found.append(np.concatenate((carried[place], more)))
                table.record(found[-1], inverse, now)
        return found, inverse

    def _rows_of_all(self, tables: Sequence[int], ids: Sequence[np.ndarray], now: float) -> list[np.ndarray]:
        """Return the rows of the ids of each of `tables`, int32 [count, n]."""
        if len(tables) > 1 and all(self._together[index] for index in tables):
            return plan_together([self.tables[index] for index in tables], ids, now)
        return [self._rows_of(index, part, now) for index, part in zip(tables, ids, strict=True)]

    def _rows_of(self, index: int, ids: np.ndarray, now: float) -> np.ndarray:
        table = self.tables[index]
        padding = padding_of(table, ids)
        if self.trainable[index]:
            return table.plan(ids, padding, now)
        return table.lookup(ids.reshape(-1), None if padding is None else padding.reshape(-1)).reshape(ids.shape)

    def _number_steps(
        self, chunk: np.ndarray, windows: np.ndarray, head: np.ndarray, bound: int
    ) -> tuple[dict[int, np.ndarray], np.ndarray]:
        """Number the distinct positions of every window, those of `head` first in the first one.

        Returns ({window: its positions in the chunk}, position in its window of every place of `chunk`).
        """
        if len(windows) == 1 and not len(head):  # a chunk of one step is numbered like the step
            return {int(windows[0]): np.arange(1, bound, dtype=np.int32)}, chunk
        positions = np.empty(chunk.shape, np.int32)
        steps: dict[int, np.ndarray] = {}
        for window in np.unique(windows):
            inside = np.flatnonzero(windows == window)
            values = chunk[inside[0]] if len(inside) == 1 else chunk[inside].reshape(-1)
            own = head if window == windows[0] else head[:0]
            if len(own):
                values = np.concatenate((own, values))
            # position 0, the padding, is numbered 0 by `UniqueIndexer` when it is passed as -1
            step, places = self._steps(values - 1, bound)
            steps[int(window)] = step + 1
            positions[inside] = places[len(own) :].reshape(len(inside), -1)
        return steps, positions

    def _train_apart(
        self, bundle: Bundle, component: Component, ids, windows, batches: int, plan: SparsePlan, inputs, now
    ) -> np.ndarray:
        """Number ids, and let every table translate: where an id may have a row of its own in some of them only."""
        count = len(ids)
        numbers = np.zeros(ids.shape, np.int32)
        for window in np.unique(windows):
            inside = windows == window
            _, inverse = np.unique(ids[inside].reshape(-1), return_inverse=True)
            numbers[inside] = inverse.reshape(ids[inside].shape) + 1
        for group, index, reads in zip(bundle.groups, component.specs, component.reads, strict=True):
            chosen = np.ascontiguousarray(ids[:, :, reads]).reshape(count, -1)
            part, step_rows, positions = self._working_set(group, index, chosen, windows, batches, plan, now)
            inputs.append(step_rows)
            if bundle.in_graph:
                inputs.append(marker(batches, plan.sizes[group]))
            plan.map_sizes[index] = self._map_size(index, int(numbers.max(initial=0)) + 1)
            step_map = np.zeros((batches, plan.map_sizes[index]), np.int32)
            for batch in range(count):
                step_map[batch, numbers[batch][:, reads].reshape(-1)] = positions[batch]
            self._share_maps(step_map, windows)
            inputs.append(step_map)
            plan.tables.append(part)
        return numbers

    def _share_maps(self, step_map: np.ndarray, windows: np.ndarray) -> None:
        if self.accumulate > 1:
            for window in np.unique(windows):
                inside = np.flatnonzero(windows == window)
                step_map[inside] = step_map[inside].max(axis=0)

    def _working_set(self, group: int, index: int, ids: np.ndarray, windows, batches: int, plan: SparsePlan, now):
        """Return (plan, positions of each step's rows in the working set [batches, step_size], inverse [count, n])."""
        key = -1 - group
        carried_by, carried = self.carry.get(key, (np.zeros(0, np.int32), np.zeros((1, 0), np.int32)))
        (distinct,), chunk = self._distinct([index], ids, self._rows_of(index, ids, now), carried, now)
        head = np.arange(1, len(carried_by) + 1, dtype=np.int32)
        steps, positions = self._number_steps(chunk, windows, head, len(distinct) + 1)
        plan.sizes[group] = self._grow(self._work_sizes, group, len(distinct) + 1)
        plan.step_sizes[group] = self._grow(self._step_sizes, group, max(map(len, steps.values())) + 1)
        step_rows = _step_rows(steps, windows, batches, plan.step_sizes[group])
        if self.accumulate > 1:
            last = steps[int(windows[-1])] - 1
            self.carry[key] = np.zeros(len(last), np.int32), distinct[last][None]
        return TablePlan(index, distinct, group), step_rows, positions

    def reset(self) -> None:
        """Forget an unfinished accumulation window; called together with `SparseTable.rollback`."""
        self.carry.clear()
        self._alike.clear()

    def reserve(self, group: int, rows: int) -> int:
        """Let steps of a group, the first of its bundle, have at least so many distinct rows; return how many."""
        return self._grow(self._step_sizes, group, rows + 1)

    def _grow(self, sizes: list[int], group: int, needed: int) -> int:
        if needed > sizes[group]:
            sizes[group] = padded_size(needed)
        return sizes[group]

    def _map_size(self, index: int, needed: int) -> int:
        if needed > self._map_sizes.get(index, 0):
            self._map_sizes[index] = padded_size(needed)
        return self._map_sizes[index]


def _batches(column: np.ndarray, stacked: bool) -> np.ndarray:
    return column if stacked else column[None]


def _step_rows(steps: dict[int, np.ndarray], windows: np.ndarray, batches: int, size: int) -> np.ndarray:
    """Return the positions of every batch's distinct rows in the chunk, int32 [batches, size], 0 being none."""
    rows = np.zeros((batches, size), np.int32)
    for batch, window in enumerate(windows):
        step = steps[int(window)]
        rows[batch, 1 : len(step) + 1] = step
    return rows
