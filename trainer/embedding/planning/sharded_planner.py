"""Planning for sharded tables: queries the other processes for ids.

All processes plan the same ids in the same order, so each of them knows the owner and number of every row. The rest is
queried at the start of a call. To train, the owner of each distinct id sends its row number to all, in one message for
all tables, through `Group.gather_known`. To read, each process sends every owner the distinct ids that it wants of it,
and the owner returns their weights to that process alone, through `Group.all_to_all`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...distributed.all_to_all import Channel
from ...distributed.group import Group
from ...errors import DataError
from ..tables.spec import DEFAULT_ROW, PADDING
from ..tables.table import SparseTable
from .planner import Planner
from .sparse_plan import SortingIndexer, padding_of


class RowQuery:
    """The distinct ids of a call; all processes answer in their order.

    With an admission policy, an id may get its row between two steps; then ids are distinct per step.

    Args:
        ids: int64 [steps, n].
        padding: True where there is no id, bool [steps, n], or None.
        stepwise: whether ids are distinct per step.

    Attributes:
        keys: the distinct ids, ascending (within each step), int64 [u].
        inverse: index of every id in `keys`, -1 for padding, int64 [steps, n].
        answers: the rows of `keys`, int32 [u], once known.
    """

    def __init__(self, ids: np.ndarray, padding: np.ndarray | None, *, stepwise: bool = False) -> None:
        self.inverse = np.full(ids.shape, PADDING, np.int64)
        parts, start = [np.zeros(0, np.int64)], 0
        for step in range(len(ids)) if stepwise else [slice(None)]:
            chosen = slice(None) if padding is None else ~padding[step]
            keys, inverse = np.unique(ids[step][chosen].reshape(-1), return_inverse=True)
            indices = self.inverse[step]
            indices[chosen] = (inverse + start).reshape(indices[chosen].shape)
            parts.append(keys)
            start += len(keys)
        self.keys = np.concatenate(parts)
        self.answers = np.zeros(0, np.int32)

    def rows(self) -> np.ndarray:
        """Return the row of every id, -1 for padding: int32 [steps, n]."""
        if not len(self.keys):
            return np.full(self.inverse.shape, PADDING, np.int32)
        rows = self.answers[self.inverse]
        rows[self.inverse < 0] = PADDING
        return rows

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the rows of some ids, int32 of their shape; not for stepwise queries."""
        return self.answers[np.searchsorted(self.keys, ids)]


class CallRows:
    """The values of a call's rows, gathered from their owners.

    Attributes:
        values: in training, packed rows in the order of the plan, float32 [u, width]; in reading, the weights of the
            query's distinct ids, float32 [u, dim].
    """

    def __init__(self) -> None:
        from ..tables import kernels

        self._gather = kernels.gather.ready()
        self.values = np.zeros((0, 0), np.float32)

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write the plan's packed rows into `out`; `rows` must be all of them."""
        out[...] = self.values
        return out

    def read_part(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Write the weights of `rows` (int32 [n], answers) into `out`, float32 [n, dim]."""
        if len(rows) and len(self.values):
            self._gather(self.values, rows, out)


class ShardedTable:
    """A sharded table for planner and programs; rows have global numbers (`Shards`).

    Args:
        table: this process's part.

    Attributes:
        query: the query for the latest ids to train.
        reading: the query for the latest ids to read.
    """

    next_row = 0  # no lookup array over all row numbers

    def __init__(self, table: SparseTable) -> None:
        self.table = table
        self.shards = table.shards
        self.spec, self.width = table.spec, table.width
        self.packed = table.packed
        self.store = CallRows()
        # Reads may run on the graph thread while another one plans the next call to train.
        self.query = self.reading = RowQuery(np.zeros((0, 0), np.int64), None)
        self._numbers = np.zeros(0, np.int32)

    # -- which id has which row ----------------------------------------------------------------------------------

    def begin_query(self, ids: np.ndarray, now: float, *, train: bool) -> np.ndarray:
        """Begin the query for a call's `ids`, int64 [steps, n], the same on all processes.

        Returns this process's answers: the numbers of the rows it owns, int32, in the order of the query's keys. The
        owner of a new id gives it a row, by its own admission, eviction and share of the capacity.
        """
        table, padding = self.table, padding_of(self.table, ids)
        stepwise = train and table.spec.admission is not None
        self.query = query = RowQuery(ids, padding, stepwise=stepwise)
        own = self.shards.owned(query.keys)
        if not train:
            rows = table.lookup(query.keys[own])
        elif not stepwise:
            rows = table.plan(query.keys[own][None], None, now, steps=len(ids)).reshape(-1)
        else:
            rows = self._plan_steps(query, own, ids, now)[own]
        return self.shards.numbers(rows)

    def _plan_steps(self, query: RowQuery, own: np.ndarray, ids: np.ndarray, now: float) -> np.ndarray:
        """Plan by steps, counting all sightings; return all keys' rows, 0 if not owned."""
        mine = (query.inverse >= 0) & own[query.inverse] if len(own) else np.zeros(ids.shape, np.bool_)
        most = int(mine.sum(axis=1).max(initial=0))
        packed, padding = np.zeros((len(ids), most), np.int64), np.ones((len(ids), most), np.bool_)
        for step, chosen in enumerate(mine):
            count = np.count_nonzero(chosen)
            packed[step, :count], padding[step, :count] = ids[step, chosen], False
        planned = self.table.plan(packed, padding, now)
        rows = np.zeros(len(query.keys), np.int32)
        for step, chosen in enumerate(mine):
            rows[query.inverse[step, chosen]] = planned[step, ~padding[step]]
        return rows

    def answer_counts(self) -> np.ndarray:
        """Return the number of answers of each process, int64 [size]."""
        return np.bincount(self.shards.owners(self.query.keys), minlength=self.shards.size)

    def receive_answers(self, parts: Sequence[np.ndarray]) -> None:
        """Complete the query with the answers of all processes."""
        owners = self.shards.owners(self.query.keys)
        self.query.answers = np.empty(len(owners), np.int32)
        for rank, answers in enumerate(parts):
            self.query.answers[owners == rank] = answers

    def plan(
        self, ids: np.ndarray, padding: np.ndarray | None = None, now: float = 0.0, steps: int | None = None
    ) -> np.ndarray:
        """Return the answers for `ids`: the query's, or distinct ones, int64 [1, n]."""
        return self.query.rows() if steps is None else self.query.rows_of(ids)

    def lookup(self, ids: np.ndarray, padding: np.ndarray | None = None) -> np.ndarray:
        """Return the answers for the ids that are read, int32 [n]; -1 for padding."""
        return self.reading.rows().reshape(-1)

    def read_trained(self, ids: np.ndarray, padding: np.ndarray, out: np.ndarray) -> None:
        """Write the trained weights that the owners sent to `out`, float32 [n, dim]."""
        self.store.read_part(self.lookup(ids), out)

    def record(self, numbers: np.ndarray, inverse: np.ndarray, now: float) -> None:
        """Record sightings of the rows owned here; see `SparseTable.record`."""
        own = self._own(numbers)
        renumbered = np.zeros(len(numbers) + 1, np.int64)
        renumbered[1:][own] = np.arange(1, np.count_nonzero(own) + 1)
        self.table.record(self.shards.rows(numbers[own]), renumbered[inverse], now)

    # -- their values ----------------------------------------------------------------------------------------------

    def _own(self, numbers: np.ndarray) -> np.ndarray:
        return (numbers == DEFAULT_ROW) | (self.shards.owners_of_rows(numbers) == self.shards.rank)

    def row_counts(self, numbers: np.ndarray) -> np.ndarray:
        """Return each process's rows in a plan, without the default row, int64 [size]."""
        return np.bincount(self.shards.owners_of_rows(numbers[numbers != DEFAULT_ROW]), minlength=self.shards.size)

    def own_values(self, numbers: np.ndarray) -> np.ndarray:
        """Return the plan's packed rows owned here, without the default row, [n, width]."""
        own = (numbers != DEFAULT_ROW) & self._own(numbers)
        return self.table.store.read(self.shards.rows(numbers[own]))

    def receive_values(self, numbers: np.ndarray, parts: Sequence[np.ndarray]) -> None:
        """Assemble a plan's rows from the parts of all processes."""
        values = np.empty((len(numbers), self.width), np.float32)
        owners = self.shards.owners_of_rows(numbers)
        for rank, part in enumerate(parts):
            values[(owners == rank) & (numbers != DEFAULT_ROW)] = part.reshape(-1, self.width)
        default = numbers == DEFAULT_ROW
        values[default] = self.table.store.read(numbers[default])
        self.store.values, self._numbers = values, numbers

    def commit(self, values: np.ndarray) -> None:
        """Commit the oldest plan; store the owned of its rows, float32 [u, width]."""
        self.table.commit(values[self._own(self._numbers)])


class ShardedPlanner(Planner):
    """A `Planner` that queries the other processes.

    Reads, and on devices all of it, run on the graph thread.

    To train, all processes pass the same ids, those of the whole group; to read, each passes its own.
    """

    tables: list[Any]  # of ShardedTable

    def __init__(self, group: Group, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.group = group
        # A lookup array over all row numbers would not shrink with more processes.
        self._rows = SortingIndexer()

    def join_exchange(self, problem: str = "") -> None:
        """Join the weight exchange without ids; a `problem` is raised by all processes."""
        self._query_weights([(table, np.zeros((1, 0), np.int64)) for *_, table in self._reads()], problem)

    def _checked_ids(self, given: Sequence[np.ndarray], num_batches: int, train: bool) -> list[np.ndarray]:
        """Return the ids; if they are refused on any process, raise on all of them."""
        try:
            ids = super()._checked_ids(given, num_batches, train)
            for _ in self._ids_of_tables(ids):  # checks the lengths of lists that tables share
                pass
        except DataError as error:
            self._share_problem(str(error), train)
            raise
        return ids

    def _share_problem(self, problem: str, train: bool) -> None:
        """Raise the problem on all processes; in training all have the same ids anyway."""
        if not train:
            self.join_exchange(problem)

    def _rows_of_all(self, tables: Sequence[int], ids: Sequence[np.ndarray], now: float) -> list[np.ndarray]:
        # The query knows the rows of tables that are only read, too.
        return [self.tables[index].plan(part, None, now) for index, part in zip(tables, ids, strict=True)]

    def _reads(self) -> Iterator[tuple[int, int | None, int]]:
        """Yield (component, index of its tables or None, table), the same on all ranks."""
        for bundle in self.layout.bundles:
            for number in bundle.components:
                component = self.fields.components[number]
                for position, table in enumerate(component.specs):
                    yield number, position if bundle.indirect else None, table

    def _ids_of_tables(self, ids: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each table and its ids, int64 [steps, n], in the same order on all ranks."""
        for number, position, table in self._reads():
            part = ids[number]
            if position is not None:
                part = np.ascontiguousarray(
                    part[:, :, self.fields.components[number].elements(position, part.shape[2])]
                )
            yield table, part.reshape(len(part), -1)

    def _query_owners(self, ids: Sequence[np.ndarray], train: bool, now: float) -> None:
        ids_of_tables = list(self._ids_of_tables(ids))
        if not train:
            self._query_weights(ids_of_tables)
            return
        own = [self.tables[index].begin_query(part, now, train=self.trainable[index]) for index, part in ids_of_tables]
        counts = np.array([self.tables[index].answer_counts() for index, _ in ids_of_tables])
        for (index, _), parts in zip(ids_of_tables, exchange(self.group, own, counts), strict=True):
            self.tables[index].receive_answers(parts)

    def _query_weights(self, wanted: Sequence[tuple[int, np.ndarray]], problem: str = "") -> None:
        tables = [self.tables[index] for index, _ in wanted]
        queries = [RowQuery(ids, padding_of(table, ids)) for table, (_, ids) in zip(tables, wanted, strict=True)]
        owners = [table.shards.owners(query.keys) for table, query in zip(tables, queries, strict=True)]
        wanted_of = [
            [query.keys[owner == rank] for query, owner in zip(queries, owners, strict=True)]
            for rank in range(self.group.size)
        ]
        text = np.frombuffer(problem.encode(), np.uint8)
        received_ids = exchange_parts(self.group, [[text, *own] for own in wanted_of], np.int64)
        raise_problems([text for text, *_ in received_ids])
        distinct_ids = [own for _, *own in received_ids]
        answers = []
        for parts in distinct_ids:
            own = [np.empty((len(keys), table.spec.dim), np.float32) for table, keys in zip(tables, parts, strict=True)]
            for table, keys, weights in zip(tables, parts, own, strict=True):
                table.table.read_trained(keys, np.zeros(len(keys), np.bool_), weights)
            answers.append(own)
        received = exchange_parts(self.group, answers, np.float32)
        for number, (table, query) in enumerate(zip(tables, queries, strict=True)):
            weights = np.empty((len(query.keys), table.spec.dim), np.float32)
            for rank, parts in enumerate(received):
                weights[owners[number] == rank] = parts[number].reshape(-1, table.spec.dim)
            table.store.values = weights
            query.answers = np.arange(len(query.keys), dtype=np.int32)
            table.reading = query


def raise_problems(texts: Sequence[np.ndarray]) -> None:
    """Raise the first problem of all processes: UTF-8 text as numbers, or empty.

    Raises:
        DataError: with the rank that has the problem; the same on all processes.
    """
    for rank, text in enumerate(texts):
        if len(text):
            raise DataError.of_rank(rank, text.astype(np.uint8).tobytes().decode())


def exchange_parts(
    connections: Group | Channel, parts: Sequence[Sequence[np.ndarray]], dtype: Any
) -> list[list[np.ndarray]]:
    """Send each process its arrays; return those that every process sent here, flat."""
    received = connections.all_to_all([pack_arrays(own, dtype) for own in parts])
    return [unpack_arrays(message, len(parts[0]), dtype) for message in received]


def pack_arrays(arrays: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    """Return bytes, uint8 [n]: the lengths of the arrays as int64, then the arrays."""
    head = np.array([array.size for array in arrays], np.int64)
    return np.concatenate(
        [
            part.reshape(-1).astype(kind, copy=False).view(np.uint8)
            for part, kind in [(head, np.int64), *((np.ascontiguousarray(array), dtype) for array in arrays)]
        ]
    )


def unpack_arrays(message: Any, count: int, dtype: Any) -> list[np.ndarray]:
    """Return the `count` arrays that `pack_arrays` was given, flat."""
    head = np.frombuffer(message, np.int64, count)
    flat = np.frombuffer(message, dtype, int(head.sum()), head.nbytes)
    return np.split(flat, np.cumsum(head)[:-1]) if count else []


def exchange(group: Group, own: Sequence[np.ndarray], counts: np.ndarray) -> list[list[np.ndarray]]:
    """Gather every process's array for every table with one collective.

    Args:
        group: the processes.
        own: this process's array for each table, flat and of the same dtype.
        counts: number of elements per table and process, int64 [tables, size].
    """
    if not own:  # true on all processes or none
        return []
    parts = group.gather_known(np.concatenate(own), counts.sum(axis=0).tolist())
    ends = counts.cumsum(axis=0)
    return [
        [part[end - count : end] for part, end, count in zip(parts, row_ends, row, strict=True)]
        for row_ends, row in zip(ends, counts, strict=True)
    ]
