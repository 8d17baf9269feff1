"""Read rows of sharded tables from the processes that own them.

Each process sends every owner the distinct ids that it wants to read, and the owner returns their weights, through
`Group.all_to_all`. `owner_planner` plans training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...distributed.all_to_all import Channel
from ...distributed.group import Group
from ...errors import DataError
from .planner import Planner
from .sharded_table import RowQuery
from .sparse_plan import SortingIndexer, padding_of


class ShardedPlanner(Planner):
    """A `Planner` that reads rows of other processes, on the graph thread."""

    tables: list[Any]  # list of OwnedTable

    def __init__(self, group: Group, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.group = group
        # Sort: the lookup array of a `UniqueIndexer` would not shrink with more processes.
        self._rows = SortingIndexer()

    def join_exchange(self, problem: str = "") -> None:
        """Join the exchange of weights without ids; all raise `problem` if given."""
        self._query_weights([(table, np.zeros((1, 0), np.int64)) for *_, table in self._reads()], problem)

    def _checked_ids(self, columns: Sequence[np.ndarray], num_batches: int, train: bool) -> list[np.ndarray]:
        """Return the ids; if they are invalid on one process, all of them raise an error."""
        try:
            ids = super()._checked_ids(columns, num_batches, train)
            for _ in self._ids_of_tables(ids):  # checks the lengths of lists that tables share
                pass
        except DataError as error:
            self._share_problem(str(error), train)
            raise
        return ids

    def _share_problem(self, problem: str, train: bool) -> None:
        """Make all processes raise the problem, by joining their read."""
        self.join_exchange(problem)

    def _rows_of_all(self, tables: Sequence[int], ids: Sequence[np.ndarray], now: float) -> list[np.ndarray]:
        # `plan` returns the owners' answers, also for tables that are only read.
        return [self.tables[index].plan(part, None, now) for index, part in zip(tables, ids, strict=True)]

    def _reads(self) -> Iterator[tuple[int, int | None, int]]:
        """Yield (component, index in its tables or None, table), the same on all ranks."""
        for bundle in self.layout.bundles:
            for component in bundle.components:
                for position, table in enumerate(self.fields.components[component].specs):
                    yield component, position if bundle.indirect else None, table

    def _ids_of_tables(self, ids: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each table and its ids, int64 [steps, n], in the same order on all ranks."""
        for component, position, table in self._reads():
            part = ids[component]
            if position is not None:
                part = part[:, :, self.fields.components[component].elements(position, part.shape[2])]
            yield table, np.ascontiguousarray(part).reshape(len(part), -1)

    def _stepwise(self, table: int) -> bool:
        return self.trainable[table] and self.tables[table].spec.admission is not None

    def _query_weights(self, reads: Sequence[tuple[int, np.ndarray]], problem: str = "") -> None:
        tables = [self.tables[index] for index, _ in reads]
        queries = [
            RowQuery(ids, padding_of(table, ids), table.shards) for table, (_, ids) in zip(tables, reads, strict=True)
        ]
        text = np.frombuffer(problem.encode(), np.uint8)
        requests = [[text, *(query.keys[query.owners == rank] for query in queries)] for rank in range(self.group.size)]
        requested = exchange_parts(self.group, requests, np.int64)
        raise_problems([text for text, *_ in requested])
        answers = []
        for _, *parts in requested:
            answer = []
            for table, keys in zip(tables, parts, strict=True):
                weights = np.empty((len(keys), table.spec.dim), np.float32)
                table.table.read_trained(keys, np.zeros(len(keys), np.bool_), weights)
                answer.append(weights)
            answers.append(answer)
        received = exchange_parts(self.group, answers, np.float32)
        for index, (table, query) in enumerate(zip(tables, queries, strict=True)):
            table.store.values = query.in_order([parts[index].reshape(-1, table.spec.dim) for parts in received])
            query.answers = np.arange(len(query.keys), dtype=np.int32)
            table.reading = query


def raise_problems(texts: Sequence[np.ndarray]) -> None:
    """Raise the first problem in `texts`, which has the message of each rank.

    A message is UTF-8 text as an array of byte values; it is empty without a problem.

    Raises:
        DataError: names the rank that has the problem; the same error on all processes.
    """
    for rank, text in enumerate(texts):
        if len(text):
            raise DataError.of_rank(rank, text.astype(np.uint8).tobytes().decode())


def exchange_parts(
    connections: Group | Channel, parts: Sequence[Sequence[np.ndarray]], dtype: Any
) -> list[list[np.ndarray]]:
    """Send each rank its arrays; return the flattened arrays that each rank sent here."""
    received = connections.all_to_all([pack_arrays(arrays, dtype) for arrays in parts])
    return [unpack_arrays(message, len(parts[0]), dtype) for message in received]


def pack_arrays(arrays: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    """Return bytes, uint8 [n]: the lengths of the arrays as int64, then the arrays."""
    head = np.array([array.size for array in arrays], np.int64)
    parts = [head, *(np.ascontiguousarray(array, dtype) for array in arrays)]
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])


def unpack_arrays(message: Any, count: int, dtype: Any) -> list[np.ndarray]:
    """Return the `count` arrays in a result of `pack_arrays`, flattened."""
    head = np.frombuffer(message, np.int64, count)
    flat = np.frombuffer(message, dtype, int(head.sum()), head.nbytes)
    return np.split(flat, np.cumsum(head)[:-1]) if count else []
