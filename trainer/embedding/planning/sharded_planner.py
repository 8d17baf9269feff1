"""Planning for tables whose rows are divided among processes: the other processes are asked about ids.

All processes plan the same ids in the same order, so all know of every row which process owns it and its number. They
query the rest at the beginning of a call: to train, the row of every distinct id, from the id's owner; to read, each
process gives its own ids, and their owners give the weights. One message for all tables each, through
`Group.gather_known`: AllGather, the one such operator that MindSpore has on CPU. AlltoAll would send a row only to
those that asked for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...distributed.group import Group
from ..tables.spec import DEFAULT_ROW, PADDING
from ..tables.table import SparseTable
from .planner import Planner
from .sparse_plan import padding_of
from .unique_indexer import SortingIndexer


class RowQuery:
    """The distinct ids of a call, in whose order all processes answer.

    With an admission policy an id may have no row in one step and one in the next: then they are those of each step.

    Args:
        ids: int64 [steps, n].
        padding: where there is no id, bool [steps, n], or None.
        stepwise: whether each step has its own.

    Attributes:
        keys: the distinct ids, ascending (within each step), int64 [u].
        inverse: index of every id in `keys`, -1 for padding, int64 [steps, n].
        answers: the rows of `keys`, int32 [u], once they are known.
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
        """Return the rows of some of the ids, int32 of their shape; of queries that are not stepwise."""
        return self.answers[np.searchsorted(self.keys, ids)]


class CallRows:
    """The values of a call's rows, gathered from their owners.

    Attributes:
        values: of a call that trains, packed rows in the order of the plan, float32 [u, width]; of one that only reads,
            the weights of the distinct ids of the query, float32 [u, dim].
    """

    def __init__(self) -> None:
        from ..tables import kernels

        self._gather = kernels.gather.ready()
        self.values = np.zeros((0, 0), np.float32)

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write the packed rows of the plan into `out`; `rows` are all of the plan's."""
        out[...] = self.values
        return out

    def read_part(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Write the weights of `rows` (answers of the query, int32 [n]) into `out`, float32 [n, dim]."""
        if len(rows) and len(self.values):
            self._gather(self.values, rows, out)


class ShardedTable:
    """A table as the planner and the programs of each process see it; rows have their numbers among all (`Shards`).

    Args:
        table: this process's part.
    """

    next_row = 0  # row numbers are not looked up in a list of all of them

    def __init__(self, table: SparseTable) -> None:
        self.table = table
        self.shards = table.shards
        self.spec, self.width = table.spec, table.width
        self.packed = table.packed
        self.store = CallRows()
        self.query = RowQuery(np.zeros((0, 0), np.int64), None)
        self._numbers = np.zeros(0, np.int32)

    # -- which id has which row ----------------------------------------------------------------------------------

    def ask(self, ids: np.ndarray, now: float, *, train: bool) -> np.ndarray:
        """Begin the query for a call's `ids`, int64 [steps, n], the same on all processes.

        Returns this process's answers, the numbers of the rows it owns, int32, in the order of the query's keys. The
        owner gives new ids their rows, by its own admission, eviction and part of the capacity.
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
        """Plan step by step, every sighting of an id counted; returns the rows of all keys, of others' keys 0."""
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
        """Return how many answers each process gives, int64 [size]."""
        return np.bincount(self.shards.owners(self.query.keys), minlength=self.shards.size)

    def receive_answers(self, parts: Sequence[np.ndarray]) -> None:
        """Complete the query by the answers of all processes."""
        owners = self.shards.owners(self.query.keys)
        self.query.answers = np.empty(len(owners), np.int32)
        for rank, answers in enumerate(parts):
            self.query.answers[owners == rank] = answers

    def plan(
        self, ids: np.ndarray, padding: np.ndarray | None = None, now: float = 0.0, steps: int | None = None
    ) -> np.ndarray:
        """Return the answers for `ids`: those of the query, or distinct ones of them, int64 [1, n]."""
        return self.query.rows() if steps is None else self.query.rows_of(ids)

    def lookup(self, ids: np.ndarray, padding: np.ndarray | None = None) -> np.ndarray:
        """Return the answers for the query's ids, int32 [n], -1 for padding."""
        return self.query.rows().reshape(-1)

    def read_trained(self, ids: np.ndarray, padding: np.ndarray, out: np.ndarray) -> None:
        """Write the weights of the query's ids to `out`, float32 [n, dim], as their owners have trained them."""
        self.store.read_part(self.lookup(ids), out)

    def record(self, numbers: np.ndarray, inverse: np.ndarray, now: float) -> None:
        """Note the sightings of the rows owned here; see `SparseTable.record`."""
        own = self._own(numbers)
        renumbered = np.zeros(len(numbers) + 1, np.int64)
        renumbered[1:][own] = np.arange(1, np.count_nonzero(own) + 1)
        self.table.record(self.shards.rows(numbers[own]), renumbered[inverse], now)

    # -- their values ----------------------------------------------------------------------------------------------

    def _own(self, numbers: np.ndarray) -> np.ndarray:
        return (numbers == DEFAULT_ROW) | (self.shards.keepers(numbers) == self.shards.rank)

    def row_counts(self, numbers: np.ndarray) -> np.ndarray:
        """Return how many of a plan's rows each process owns, the default row left out, int64 [size]."""
        return np.bincount(self.shards.keepers(numbers[numbers != DEFAULT_ROW]), minlength=self.shards.size)

    def own_values(self, numbers: np.ndarray) -> np.ndarray:
        """Return the packed rows among a plan's that are owned here, the default row left out: float32 [n, width]."""
        own = (numbers != DEFAULT_ROW) & self._own(numbers)
        return self.table.store.read(self.shards.rows(numbers[own]))

    def receive_values(self, numbers: np.ndarray, parts: Sequence[np.ndarray]) -> None:
        """Take a plan's rows from what every process has given."""
        values = np.empty((len(numbers), self.width), np.float32)
        keepers = self.shards.keepers(numbers)
        for rank, part in enumerate(parts):
            values[(keepers == rank) & (numbers != DEFAULT_ROW)] = part.reshape(-1, self.width)
        default = numbers == DEFAULT_ROW
        values[default] = self.table.store.read(numbers[default])
        self.store.values, self._numbers = values, numbers

    def commit(self, values: np.ndarray) -> None:
        """Confirm the oldest plan with its trained rows, float32 [u, width] in the plan's order: keep one's own."""
        self.table.commit(values[self._own(self._numbers)])


class ShardedPlanner(Planner):
    """A `Planner` that asks the other processes; called by all of them, on the thread that runs graphs.

    To train, all give the same ids, those of all; to read, each gives its own.
    """

    tables: list[Any]  # of ShardedTable

    def __init__(self, group: Group, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.group = group
        # a list of all row numbers would not get shorter with more processes
        self._rows = SortingIndexer()

    def stand_by(self) -> None:
        """See `Planner.stand_by`."""
        self._ask_for_weights([(table, np.zeros((1, 0), np.int64)) for *_, table in self._reads()])

    def _rows_of_all(self, tables: Sequence[int], ids: Sequence[np.ndarray], now: float) -> list[np.ndarray]:
        return [self._rows_of(index, part, now) for index, part in zip(tables, ids, strict=True)]

    def _reads(self) -> Iterator[tuple[int, int | None, int]]:
        """Yield (component, which of its tables or None for all elements, table) in the order of all processes."""
        for bundle in self.layout.bundles:
            for number in bundle.components:
                component = self.fields.components[number]
                for which, table in enumerate(component.specs):
                    yield number, which if bundle.indirect else None, table

    def _ask(self, ids: Sequence[np.ndarray], train: bool, now: float) -> None:
        ids_of_tables = []
        for number, which, table in self._reads():
            part = ids[number]
            if which is not None:
                part = np.ascontiguousarray(part[:, :, self.fields.components[number].elements(which, part.shape[2])])
            ids_of_tables.append((table, part.reshape(len(part), -1)))
        if not train:
            self._ask_for_weights(ids_of_tables)
            return
        own = [self.tables[index].ask(part, now, train=self.trainable[index]) for index, part in ids_of_tables]
        counts = np.array([self.tables[index].answer_counts() for index, _ in ids_of_tables])
        for (index, _), parts in zip(ids_of_tables, exchange(self.group, own, counts), strict=True):
            self.tables[index].receive_answers(parts)

    def _ask_for_weights(self, wanted: Sequence[tuple[int, np.ndarray]]) -> None:
        tables = [self.tables[index] for index, _ in wanted]
        queries = [RowQuery(ids, padding_of(table, ids)) for table, (_, ids) in zip(tables, wanted, strict=True)]
        asked = [query.keys for query in queries]
        head = np.array([len(keys) for keys in asked], np.int64)
        messages = self.group.gather_bytes(np.concatenate([head, *asked]).tobytes())
        # per rank: how many ids of each table, then the ids
        keys_of_ranks = []
        for words in (np.frombuffer(message, np.int64) for message in messages):
            ends = np.cumsum(words[: len(asked)])
            keys_of_ranks.append(np.split(words[len(asked) :], ends[:-1]) if len(asked) else [])
        own, all_keys, counts = [], [], []
        for table, *parts in zip(tables, *keys_of_ranks, strict=True):
            keys = np.unique(np.concatenate(parts))
            owners = table.shards.owners(keys)
            mine = keys[owners == self.group.rank]
            weights = np.empty((len(mine), table.spec.dim), np.float32)
            table.table.read_trained(mine, np.zeros(len(mine), np.bool_), weights)
            own.append(weights.reshape(-1))
            all_keys.append((keys, owners))
            counts.append(np.bincount(owners, minlength=self.group.size) * table.spec.dim)
        given = exchange(self.group, own, np.array(counts))
        for table, query, (keys, owners), parts in zip(tables, queries, all_keys, given, strict=True):
            weights = np.empty((len(keys), table.spec.dim), np.float32)
            for rank, part in enumerate(parts):
                weights[owners == rank] = part.reshape(-1, table.spec.dim)
            table.store.values = weights[np.searchsorted(keys, query.keys)]
            query.answers = np.arange(len(query.keys), dtype=np.int32)
            table.query = query


def exchange(group: Group, own: Sequence[np.ndarray], counts: np.ndarray) -> list[list[np.ndarray]]:
    """Return the array that every process gives for every table, by one collective.

    Args:
        group: the processes.
        own: what this one gives for each table, flat arrays of one dtype.
        counts: how many elements each process gives for each table, int64 [tables, size].
    """
    if not own:  # the same on all processes
        return []
    parts = group.gather_known(np.concatenate(own), counts.sum(axis=0).tolist())
    ends = counts.cumsum(axis=0)
    return [
        [part[end - count : end] for part, end, count in zip(parts, row_ends, row, strict=True)]
        for row_ends, row in zip(ends, counts, strict=True)
    ]
