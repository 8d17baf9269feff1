"""What the graph needs to know about a chunk's ids, made on the preparing thread; no graph code here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import DataError
from .fields import Component, FieldMap, to_plain
from .hashing import to_ids
from .table import SparseTable
from .unique_indexer import UniqueIndexer

_SMALLEST = 64
_COARSE = 8192


def padded_size(count: int) -> int:
    """Return `count` rounded up, 2 % to spare: to a power of two where that costs little, else one of 16 an octave.

    Every size is a program of its own, so there should be few.
    """
    count = max(_SMALLEST, count + count // 50)
    step = 1 << (count - 1).bit_length()
    if step > _COARSE:
        step //= 32
    return -(-count // step) * step


@dataclass
class TablePlan:
    """One table's part of a chunk.

    Attributes:
        table: index of the table.
        rows: distinct rows of the chunk, int32 [u]; row i stands at position i + 1 of the working set.
        size: rows of the working set in the graph, padded.
        step_size: distinct rows of a step, padded; 0 in a plan that only reads.
        map_size: length of the position map, 0 when the table does not share ids.
        reading_map: position of every distinct id of a chunk that is only read, int32 [map_size], or None.
    """

    table: int
    rows: np.ndarray
    size: int
    step_size: int = 0
    map_size: int = 0
    reading_map: np.ndarray | None = None


@dataclass
class SparsePlan:
    """Everything `SparseTables.load` and `write_back` need for a chunk.

    Attributes:
        train: whether rows are trained or only read.
        tables: one entry a table.
        inputs: extra columns of the program, int32 or int8, [K, ...] when the chunk is stacked.
        prepared_in: seconds it took.
    """

    train: bool
    tables: list[TablePlan] = field(default_factory=list)
    inputs: tuple[np.ndarray, ...] = ()
    prepared_in: float = 0.0


class Planner:
    """Turns raw ids into positions.

    Args:
        tables: the host tables, in the order of `FieldMap`'s indices.
        trainable: whether each table is trained.
        fields: what feeds them.
        accumulate: batches that share one optimizer update.
        read_sizes: rows of each table's window in a program of fixed shape that only reads; None lets them grow.
    """

    def __init__(
        self,
        tables: Sequence[SparseTable],
        trainable: Sequence[bool],
        fields: FieldMap,
        accumulate: int = 1,
        read_sizes: Sequence[int] | None = None,
    ) -> None:
        self.tables = list(tables)
        self.trainable = list(trainable)
        self.fields = fields
        self.accumulate = accumulate
        self._work_sizes = [0] * len(self.tables)
        self._step_sizes = [0] * len(self.tables)
        self._read_sizes = list(read_sizes or [0] * len(self.tables))
        self._map_sizes: dict[tuple[int, bool], int] = {}
        for index in range(len(self.tables)) if read_sizes else ():
            self._map_sizes[index, False] = max(read_sizes)
        self._carry: dict[int, np.ndarray] = {}
        # training and evaluation may be prepared on two threads at once
        self._rows, self._steps, self._seen = UniqueIndexer(), UniqueIndexer(), UniqueIndexer()

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
        out = [to_plain(np.asarray(column)) for column in columns]
        self._check_dense(columns, stacked, num_batches)
        plan = SparsePlan(train)
        batches = len(columns[0]) if stacked else 1
        windows = (np.arange(num_batches) + fill) // self.accumulate
        inputs: list[list[np.ndarray]] = [[] for _ in self.tables]
        for component in self.fields.components:
            ids = self._gather(component, columns, stacked, num_batches)
            positions = (self._train if train else self._read)(component, ids, windows, batches, plan, inputs, now)
            self._scatter(component, positions, columns, out, stacked, num_batches)
        if flush or (fill + num_batches) % self.accumulate == 0:
            self._carry.clear()
        plan.tables.sort(key=lambda part: part.table)
        flat = [array if stacked else array[0] for table in inputs for array in table]
        plan.inputs = tuple(flat)
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

    # -- reading -------------------------------------------------------------------------------------------------

    def _read(self, component: Component, ids, windows, batches: int, plan: SparsePlan, inputs, now) -> np.ndarray:
        flat = ids.reshape(-1)
        groups = None
        if component.indirect:
            _, groups = np.unique(flat, return_inverse=True)
            groups = groups.astype(np.int32) + 1
        for index, reads in zip(component.specs, component.reads, strict=True):
            table = self.tables[index]
            chosen = flat if groups is None else ids[:, :, reads].reshape(-1)
            rows, inverse = self._seen(table.lookup(chosen, _padding(table, chosen)), table.next_row)
            part = TablePlan(index, rows, self._grow(self._read_sizes, index, len(rows) + 1))
            if groups is not None:
                part.map_size = self._map_size(index, False, int(groups.max(initial=0)) + 1)
                part.reading_map = np.zeros(part.map_size, np.int32)
                part.reading_map[groups.reshape(ids.shape)[:, :, reads].reshape(-1)] = inverse
            inputs[index] = [_marker(batches, part.size), _marker(batches, part.map_size)]
            plan.tables.append(part)
        return (inverse if groups is None else groups).reshape(ids.shape)

    # -- training ------------------------------------------------------------------------------------------------

    def _train(self, component: Component, ids, windows, batches: int, plan: SparsePlan, inputs, now) -> np.ndarray:
        count = len(ids)
        groups = np.zeros(ids.shape, np.int32) if component.indirect else None
        if groups is not None:
            for window in np.unique(windows):
                inside = windows == window
                _, inverse = np.unique(ids[inside].reshape(-1), return_inverse=True)
                groups[inside] = inverse.reshape(ids[inside].shape) + 1
        for index, reads in zip(component.specs, component.reads, strict=True):
            table = self.tables[index]
            chosen = np.ascontiguousarray(ids if groups is None else ids[:, :, reads]).reshape(count, -1)
            padding = _padding(table, chosen)
            if self.trainable[index]:
                rows = table.plan(chosen, padding, now)
            else:
                rows = table.lookup(chosen.reshape(-1), None if padding is None else padding.reshape(-1))
                rows = rows.reshape(chosen.shape)
            part, step_rows, positions = self._working_set(index, rows, windows, batches, now)
            inputs[index] = [step_rows, _marker(batches, part.size)]
            if groups is not None:
                part.map_size = self._map_size(index, True, int(groups.max(initial=0)) + 1)
                step_map = np.zeros((batches, part.map_size), np.int32)
                for batch in range(count):
                    step_map[batch, groups[batch][:, reads].reshape(-1)] = positions[batch]
                self._share_maps(step_map, windows)
                inputs[index].append(step_map)
            plan.tables.append(part)
        return positions.reshape(ids.shape) if groups is None else groups

    def _share_maps(self, step_map: np.ndarray, windows: np.ndarray) -> None:
        if self.accumulate > 1:
            for window in np.unique(windows):
                inside = np.flatnonzero(windows == window)
                step_map[inside] = step_map[inside].max(axis=0)

    def _working_set(self, index: int, rows: np.ndarray, windows, batches: int, now: float):
        """Return (plan, positions of each step's rows in the working set [batches, step_size], inverse [count, n])."""
        table = self.tables[index]
        count, n = rows.shape
        carry = self._carry.get(index, np.zeros(0, np.int32))
        everything = np.concatenate((carry, rows.reshape(-1))) if len(carry) else rows.reshape(-1)
        distinct, inverse = self._rows(everything, table.next_row)
        chunk = inverse[len(carry) :].reshape(count, n)
        if self.trainable[index]:
            table.record(distinct, chunk, now)
        size = self._grow(self._work_sizes, index, len(distinct) + 1)
        positions = np.empty((count, n), np.int32)
        steps: dict[int, np.ndarray] = {}
        for window in np.unique(windows):
            inside = np.flatnonzero(windows == window)
            values = chunk[inside].reshape(-1)
            head = inverse[: len(carry)] if window == windows[0] else carry[:0]
            if len(head):
                values = np.concatenate((head, values))
            # position 0, the padding, is numbered 0 by `UniqueIndexer` when it is passed as -1
            step, places = self._steps(values - 1, len(distinct))
            steps[int(window)] = step + 1
            positions[inside] = places[len(head) :].reshape(len(inside), n)
        step_size = self._grow(self._step_sizes, index, max(map(len, steps.values())) + 1)
        step_rows = np.zeros((batches, step_size), np.int32)
        for batch, window in enumerate(windows):
            step = steps[int(window)]
            step_rows[batch, 1 : len(step) + 1] = step
        if self.accumulate > 1:
            self._carry[index] = distinct[steps[int(windows[-1])] - 1]
        return TablePlan(index, distinct, size, step_size), step_rows, positions

    def reset(self) -> None:
        """Forget an unfinished accumulation window; called together with `SparseTable.rollback`."""
        self._carry.clear()

    def _grow(self, sizes: list[int], index: int, needed: int) -> int:
        if needed > sizes[index]:
            sizes[index] = padded_size(needed)
        return sizes[index]

    def _map_size(self, index: int, train: bool, needed: int) -> int:
        size = self._map_sizes.get((index, train), 0)
        if needed > size:
            size = self._map_sizes[index, train] = padded_size(needed)
        return size


def _batches(column: np.ndarray, stacked: bool) -> np.ndarray:
    return column if stacked else column[None]


def _padding(table: SparseTable, ids: np.ndarray) -> np.ndarray | None:
    return None if table.spec.padding is None else ids == table.spec.padding


def _marker(batches: int, size: int) -> np.ndarray:
    """Return an array whose shape tells the graph the size of a parameter it cannot see in its arguments."""
    return np.zeros((batches, 1 + size // _SMALLEST), np.int8)
