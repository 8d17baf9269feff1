"""Translate a chunk's ids to positions in working sets, on the preparing thread.

A chunk is the batches of one call of the program. A working set is the rows of one stack that the chunk uses; its
position 0 stands for padding. This module contains no graph code.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import DataError
from ..tables.hashing import hash_text, to_ids
from ..tables.table import SparseTable, can_plan_together, plan_same_rows, plan_together
from .layout import Bundle, Component, FieldMap, Layout
from .sparse_plan import (
    Carry,
    OpenRows,
    PaddedSizes,
    ReadSets,
    SortingIndexer,
    SparsePlan,
    TablePlan,
    UniqueIndexer,
    marker,
    padding_of,
)


class Planner:
    """Translates raw ids to positions in working sets."""

    def __init__(
        self,
        tables: Sequence[SparseTable],  # in the order of `FieldMap`'s indices
        trainable: Sequence[bool],  # for each table
        fields: FieldMap,
        accumulate: int = 1,  # batches that share one optimizer update
        *,
        layout: Layout,
    ) -> None:
        self.tables: list[SparseTable] = list(tables)
        self.trainable = list(trainable)
        self.fields = fields
        self.accumulate = accumulate
        self.layout = layout
        self._read_sets = ReadSets(self.tables, self.layout)
        self._work_sizes, self._step_sizes, self._map_sizes = (PaddedSizes() for _ in range(3))
        self.carry: Carry = {}
        self._rows: UniqueIndexer | SortingIndexer = UniqueIndexer()
        self._steps = UniqueIndexer()
        parts = [part for component in fields.components for part in component.parts]
        self._replaced = {part.column for part in parts if part.elements is None}  # columns that hold only ids
        self._same_rows: dict[int, bool] = {}  # table -> result of `_compare_rows`
        self._can_plan_together = [
            can_plan_together(table) and trained for table, trained in zip(self.tables, self.trainable, strict=True)
        ]

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
        """Plan a chunk and replace its ids by positions.

        Args:
            columns: host columns, [batch, ...], or [K, batch, ...] when `stacked`; not changed.
            stacked: see `columns`.
            num_batches: number of real batches; later ones are padding.
            train: False plans a read: unknown ids get the default row.
            fill: number of batches in the open accumulation before this chunk.
            flush: end the accumulation with this chunk, even if it is not complete.
            now: event time in seconds, for time to live; by default the system clock.

        Returns:
            (columns, plan): in `columns`, ids are replaced by int32 positions and other text by its hash.

        Raises:
            DataError: an id is out of range of a dense table, a column of ids holds none, or one of numbers holds text.
        """
        now = time.time() if now is None else now
        # Views with a leading batch axis.
        batched = [np.asarray(column) if stacked else np.asarray(column)[None] for column in columns]
        ids = self._checked_ids(batched, num_batches, train)
        self._query_owners(ids, train, now)
        # Columns that hold only ids are replaced as a whole below, so their text need not be hashed again.
        out = [
            column if index in self._replaced else self._as_numbers(index, column)
            for index, column in enumerate(batched)
        ]
        stacks = len(self.layout.stacks)
        plan = SparsePlan(train, [0] * stacks, [0] * stacks, lengths=[column.shape[1] for column in batched])
        updates = (np.arange(num_batches) + fill) // self.accumulate  # index of each batch's optimizer update
        for bundle in self.layout.bundles:
            components = [self.fields.components[index] for index in bundle.components]
            bundle_ids = [ids[index] for index in bundle.components]
            if not train:
                positions = self._read_sets.plan(bundle, components, bundle_ids, len(batched[0]), plan)
            elif bundle.indirect:
                arguments = updates, len(batched[0]), plan, now
                positions = [self._train_indirect(bundle, components[0], bundle_ids[0], *arguments)]
            else:
                positions = self._train(bundle, bundle.stacks, bundle_ids, updates, len(batched[0]), plan, now)
            for component, part in zip(components, positions, strict=True):
                _replace_ids(component, part, batched, out)
        if train and (flush or (fill + num_batches) % self.accumulate == 0):
            self.carry.clear()
        plan.carry = dict(self.carry)
        plan.tables.sort(key=lambda part: part.table)
        self._finish_plan(plan, num_batches)
        if not stacked:
            plan.inputs = [array[0] for array in plan.inputs]
        return tuple(out if stacked else [column[0] for column in out]), plan

    # -- columns -------------------------------------------------------------------------------------------------

    def paddings_of(self, column: str) -> list[tuple[str, int | None]]:
        """Return the name and the padding of each table that reads a column."""
        index = self.fields.names.index(column) if column in self.fields.names else -1
        sparse = [c.specs for c in self.fields.components if any(part.column == index for part in c.parts)]
        specs = [self.tables[table].spec for tables in sparse for table in tables]
        dense = [(table.name, table.padding) for table in self.fields.dense if table.part.column == index]
        return [(spec.name, spec.padding) for spec in specs] + dense

    def _as_numbers(self, index: int, column: np.ndarray) -> np.ndarray:
        """Return a column with text hashed; refuse text that replaces numbers."""
        name, is_number = self.fields.name_of(index), index in self.fields.numbers
        if is_number and column.dtype.kind in "USO" and any(isinstance(value, str | bytes) for value in column.flat):
            raise DataError(f"{name} takes numbers, as at first; received text")
        return hash_text(column, name)

    def _checked_ids(self, columns: Sequence[np.ndarray], num_batches: int, train: bool) -> list[np.ndarray]:
        """Check all ids; return each component's, int64 [num_batches, batch, elements]."""
        ids = []
        for component in self.fields.components:
            parts = [
                to_ids(part.take(columns[part.column][:num_batches]), self.fields.name_of(part.column))
                for part in component.parts
            ]
            if len({part.shape[1] for part in parts}) > 1:  # values of bags with offsets are not in rows
                parts = [part.reshape(len(part), 1, -1) for part in parts]
            ids.append(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2))
        self.fields.check_dense([column[:num_batches] for column in columns])
        return ids

    def _query_owners(self, ids: Sequence[np.ndarray], train: bool, now: float) -> None:
        """Hook: query other processes for the rows of every component's ids."""

    def _finish_plan(self, plan: SparsePlan, num_batches: int) -> None:
        """Hook: finish a plan that contains all bundles; its inputs have a batch axis."""

    def join_exchange(self, problem: str = "") -> None:
        """Hook: join other processes' reads without ids; all raise `problem` if given."""

    # -- training ------------------------------------------------------------------------------------------------

    def _train(
        self,
        bundle: Bundle,
        stacks: Sequence[int],
        ids: Sequence[np.ndarray],
        updates: np.ndarray,
        batches: int,
        plan: SparsePlan,
        now: float,
    ) -> list[np.ndarray]:
        """Number the rows of a bundle's stacks; return positions in the shape of `ids`.

        Position 0 is padding. Rows carried over from an open accumulation keep their order.
        """
        count, first = len(updates), stacks[0]
        empty = OpenRows(np.zeros(0, np.int32), np.zeros((len(stacks), 0), np.int32))
        carried = self.carry.get(first, empty)
        carried_positions = np.zeros(len(carried.component_of), np.int32)
        inverses: list[np.ndarray] = []
        rows_of: list[list[np.ndarray]] = [[] for _ in stacks]
        component_of: list[np.ndarray] = []
        start = 1
        ids_of = [part.reshape(count, -1) for part in ids]
        leaders = [self.layout.stacks[first].tables[member] for member in range(len(ids))]
        self._compare_rows(stacks, leaders)
        for member, rows in enumerate(self._rows_of_all(leaders, ids_of, now)):
            indices = np.flatnonzero(carried.component_of == member)
            tables = [self.layout.stacks[stack].tables[member] for stack in stacks]
            distinct, inverse = self._distinct(tables, ids_of[member], rows, carried.rows[:, indices], now)
            for stack, table, table_rows, all_rows in zip(stacks, tables, distinct, rows_of, strict=True):
                plan.tables.append(TablePlan(table, table_rows, stack, start))
                all_rows.append(table_rows)
            carried_positions[indices] = np.arange(start, start + len(indices), dtype=np.int32)
            if start > 1:
                inverse += np.int32(start - 1) * (inverse > 0)  # padding stays 0
            inverses.append(inverse)
            component_of.append(np.full(len(distinct[0]), member, np.int32))
            start += len(distinct[0])
        joined = inverses[0] if len(inverses) == 1 else np.concatenate(inverses, axis=1)
        steps, positions = self._number_steps(joined, updates, carried_positions, start)
        ids_per_batch = joined.shape[1]
        size = self._work_sizes.fitting(first, start, ids_per_batch * (batches + self.accumulate - 1))
        needed = max(map(len, steps.values())) + 1
        step_size = self._step_sizes.fitting(first, needed, ids_per_batch * self.accumulate)
        for stack in stacks:
            plan.sizes[stack], plan.step_sizes[stack] = size, step_size
        plan.inputs.append(step_rows(steps, updates, batches, step_size))
        if bundle.in_graph:
            plan.inputs.append(marker(batches, size))
        if self.accumulate > 1:  # carry over the rows of the last update
            last = steps[int(updates[-1])] - 1
            all_stacks = np.stack([np.concatenate(rows) for rows in rows_of])
            self.carry[first] = OpenRows(np.concatenate(component_of)[last], all_stacks[:, last])
        ends = np.cumsum([part.shape[1] for part in inverses])[:-1]
        split = np.split(positions, ends, axis=1)
        return [part.reshape(member_ids.shape) for part, member_ids in zip(split, ids, strict=True)]

    def _compare_rows(self, stacks: Sequence[int], leaders: Sequence[int]) -> None:
        """Record which tables have the row numbers of the first table of their ids.

        These share its id map.
        """
        for member, leader_index in enumerate(leaders):
            if not self._can_plan_together[leader_index]:
                continue
            leader = self.tables[leader_index]
            followers = [self.layout.stacks[stack].tables[member] for stack in stacks[1:]]
            users = 1 + sum(self.tables[index].map is leader.map for index in followers)
            if leader.map_is_ahead or leader.map.users > users:
                leader.own_ids()  # other tables of the map were fed with other ids, by another network or by `put`
            for index in followers:
                table = self.tables[index]
                # Tables that once differ stay different for the rest of the run.
                if self._same_rows.get(index, self._can_plan_together[index]) and table.has_same_rows(leader):
                    self._same_rows[index] = True
                    table.share_ids(leader)
                else:
                    self._same_rows[index] = False
                    table.own_ids()

    def _distinct(
        self, tables: Sequence[int], ids: np.ndarray, rows: np.ndarray, carried: np.ndarray, now: float
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Return each table's distinct rows, int32 [u], and the inverse, int32 [count, n].

        The inverse counts from 1. The distinct rows begin with `carried`, int32 [tables, c]. Only `rows`, those of the
        first table, decide which are distinct: tables that share positions give every id its own row.
        """
        leader = self.tables[tables[0]]
        width = carried.shape[1]
        all_rows = np.concatenate((carried[0], rows.reshape(-1))) if width else rows.reshape(-1)
        distinct, inverse = self._rows(all_rows, leader.next_row)
        inverse = inverse[width:].reshape(rows.shape)
        if self.trainable[tables[0]]:
            leader.record(distinct, inverse, now)
        rows_of = [distinct]
        if len(tables) > 1:
            new = ids.reshape(-1)[self._rows.first[width:] - width]
            for member, index in enumerate(tables[1:], 1):
                table = self.tables[index]
                if self._same_rows.get(index):
                    new_rows = plan_same_rows(table, leader, new, distinct[width:], now)
                else:
                    new_rows = table.plan(new[None], None, now, steps=len(ids)).reshape(-1)
                rows_of.append(np.concatenate((carried[member], new_rows)))
                table.record(rows_of[-1], inverse, now)
        return rows_of, inverse

    def _rows_of_all(self, tables: Sequence[int], ids: Sequence[np.ndarray], now: float) -> list[np.ndarray]:
        """Return the rows of the ids of each of `tables`, int32 [count, n]."""
        if len(tables) > 1 and all(self._can_plan_together[index] for index in tables):
            return plan_together([self.tables[index] for index in tables], ids, now)
        return [self._rows_of(index, part, now) for index, part in zip(tables, ids, strict=True)]

    def _rows_of(self, index: int, ids: np.ndarray, now: float) -> np.ndarray:
        table = self.tables[index]
        padding = padding_of(table, ids)
        if self.trainable[index]:
            return table.plan(ids, padding, now)
        return table.lookup(ids.reshape(-1), None if padding is None else padding.reshape(-1)).reshape(ids.shape)

    def _number_steps(
        self, chunk: np.ndarray, updates: np.ndarray, carried: np.ndarray, bound: int
    ) -> tuple[dict[int, np.ndarray], np.ndarray]:
        """Number the distinct positions of each update; the first begins with `carried`.

        Returns ({update: its distinct positions in the chunk}, the number of each element of `chunk` in its update).
        """
        if len(updates) == 1 and not len(carried):  # a single step keeps the chunk's numbers
            return {int(updates[0]): np.arange(1, bound, dtype=np.int32)}, chunk
        positions = np.empty(chunk.shape, np.int32)
        steps: dict[int, np.ndarray] = {}
        for update in np.unique(updates):
            batches = np.flatnonzero(updates == update)
            values = chunk[batches[0]] if len(batches) == 1 else chunk[batches].reshape(-1)
            prefix = carried if update == updates[0] else carried[:0]
            if len(prefix):
                values = np.concatenate((prefix, values))
            # Padding is position 0; passed as -1, `UniqueIndexer` numbers it 0.
            step, inverse = self._steps(values - 1, bound)
            steps[int(update)] = step + 1
            positions[batches] = inverse[len(prefix) :].reshape(len(batches), -1)
        return steps, positions

    def _train_indirect(
        self,
        bundle: Bundle,
        component: Component,
        ids: np.ndarray,
        updates: np.ndarray,
        batches: int,
        plan: SparsePlan,
        now: float,
    ) -> np.ndarray:
        """Plan an indirect bundle: number its ids and build each table's map."""
        numbers = np.zeros(ids.shape, np.int32)
        for update in np.unique(updates):
            mask = updates == update
            _, inverse = np.unique(ids[mask].reshape(-1), return_inverse=True)
            numbers[mask] = inverse.reshape(ids[mask].shape) + 1
        for member, (stack, index) in enumerate(zip(bundle.stacks, component.specs, strict=True)):
            reads = component.elements(member, ids.shape[2])
            (positions,) = self._train(bundle, [stack], [ids[:, :, reads]], updates, batches, plan, now)
            needed, maximum = int(numbers.max(initial=0)) + 1, ids[0].size * self.accumulate
            plan.map_sizes[index] = self._map_sizes.fitting(index, needed, maximum)
            step_map = np.zeros((batches, plan.map_sizes[index]), np.int32)
            for batch in range(len(ids)):
                step_map[batch, numbers[batch][:, reads]] = positions[batch]
            plan.inputs.append(step_map)
        return numbers

    def reset(self) -> None:
        """Drop the open accumulation; call it with `SparseTable.rollback`."""
        self.carry.clear()
        self._same_rows.clear()


def _replace_ids(
    component: Component, positions: np.ndarray, columns: Sequence[np.ndarray], out: list[np.ndarray]
) -> None:
    """Replace ids in `out` by `positions`, int32 [num_batches, batch, elements]."""
    num_batches, start = len(positions), 0
    for part in component.parts:
        column, shape = part.column, columns[part.column].shape
        size = int(np.prod(shape[2:])) if part.elements is None else len(part.elements)
        size *= shape[1] // max(1, positions.shape[1])  # `positions` has one row if columns differ in rows
        values = positions[:, :, start : start + size]
        start += size
        if part.elements is None:
            out[column] = np.zeros(shape, np.int32)
            out[column][:num_batches] = values.reshape(num_batches, *shape[1:])
            continue
        if out[column].dtype != np.int32 or out[column] is columns[column]:
            out[column] = out[column].astype(np.int32)
        out[column].reshape(*shape[:2], -1)[:num_batches, :, part.elements] = values.reshape(num_batches, shape[1], -1)


def step_rows(
    steps: Mapping[int, np.ndarray] | Sequence[np.ndarray], updates: np.ndarray, batches: int, size: int
) -> np.ndarray:
    """Return the padded positions of each batch's update, int32 [batches, size]."""
    rows = np.zeros((batches, size), np.int32)
    for batch, update in enumerate(updates.tolist()):
        rows[batch, 1 : len(steps[update]) + 1] = steps[update]
    return rows
