"""`OwnedTable`: a table whose rows several processes own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..tables.hashing import UNSHARDED, Shards
from ..tables.spec import PADDING
from ..tables.table import SparseTable
from .sparse_plan import padding_of


class RowQuery:
    """The distinct ids of a call, and their rows once the owners have answered.

    `ids` are int64 [steps, n]; `padding` is True where there is no id. With an admission policy, an id may get its row
    between two steps; `stepwise` therefore keeps the distinct ids of each step apart.
    """

    def __init__(
        self, ids: np.ndarray, padding: np.ndarray | None, shards: Shards = UNSHARDED, *, stepwise: bool = False
    ) -> None:
        self.inverse = np.full(ids.shape, PADDING, np.int64)  # index of every id in `keys`
        parts, start = [np.zeros(0, np.int64)], 0
        for step in range(len(ids)) if stepwise else [slice(None)]:
            mask = slice(None) if padding is None else ~padding[step]
            keys, inverse = np.unique(ids[step][mask].reshape(-1), return_inverse=True)
            indices = self.inverse[step]
            indices[mask] = (inverse + start).reshape(indices[mask].shape)
            parts.append(keys)
            start += len(keys)
        self.keys = np.concatenate(parts)  # the distinct ids, ascending (within each step), int64 [u]
        self.owners = shards.owners(self.keys)
        self.answers = np.zeros(0, np.int32)  # the rows of `keys`, int32 [u], once known

    def in_order(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Merge the answers of all ranks, in the order of `keys`."""
        joined = np.empty((len(self.keys), *parts[0].shape[1:]), parts[0].dtype)
        for rank, part in enumerate(parts):
            joined[self.owners == rank] = part
        return joined

    def rows(self) -> np.ndarray:
        """Return the row of every id, -1 for padding: int32 [steps, n]."""
        if not len(self.keys):
            return np.full(self.inverse.shape, PADDING, np.int32)
        rows = self.answers[self.inverse]
        rows[self.inverse < 0] = PADDING
        return rows


class CallRows:
    """The weights that a call reads, gathered from their owners."""

    def __init__(self) -> None:
        from ..tables import kernels

        self._gather = kernels.gather.ready()
        self.values = np.zeros((0, 0), np.float32)  # weights [u, dim] of the query's distinct ids

    def read_part(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Write the weights at `rows` (int32 [n]) into `out`, float32 [n, dim]."""
        if len(rows) and len(self.values):
            self._gather(self.values, rows, out, 0)


class OwnedTable:
    """A sharded table with global row numbers (`Shards`), for planners and programs.

    Each process plans its own ids; the owner of a row trains it.
    """

    next_row = 0  # planners pass it to a `SortingIndexer`, which ignores it

    def __init__(self, table: SparseTable) -> None:
        self.table = table  # this process's part
        self.shards = table.shards
        self.spec, self.width = table.spec, table.width
        self.packed = table.packed
        self.store = CallRows()
        # Two queries, because the graph thread may read while another thread plans the next training call.
        self.query = self.reading = RowQuery(np.zeros((0, 0), np.int64), None)
        self.keeps_seen = False
        # [steps, u]: how often each distinct row of the chunk occurs in each batch of this process's latest plan
        self.seen = np.zeros((0, 0), np.int64)

    # -- which id has which row ----------------------------------------------------------------------------------

    def start_query(self, ids: np.ndarray, *, stepwise: bool, placeholder: bool = False) -> list[list[np.ndarray]]:
        """Begin the query for `ids`, int64 [steps, n]; return the requests to owners.

        The request to a rank is a list of int64 arrays: [ids], or if `stepwise` [number of ids in each step, ids, how
        often each id occurs]. The ids of a `placeholder` are treated as padding.
        """
        padding = np.ones(ids.shape, np.bool_) if placeholder else padding_of(self.table, ids)
        self.query = query = RowQuery(ids, padding, self.shards, stepwise=stepwise)
        indices_of = [np.flatnonzero(query.owners == rank) for rank in range(self.shards.size)]
        if not stepwise:
            return [[query.keys[indices]] for indices in indices_of]
        counts = np.bincount(query.inverse[query.inverse >= 0], minlength=len(query.keys))
        step_of = np.zeros(len(query.keys), np.int64)
        for step, inverse in enumerate(query.inverse):
            step_of[inverse[inverse >= 0]] = step
        return [[np.bincount(step_of[i], minlength=len(ids)), query.keys[i], counts[i]] for i in indices_of]

    def answer(
        self, requested: Sequence[Sequence[np.ndarray]], steps: int, now: float, *, train: bool
    ) -> list[np.ndarray]:
        """Plan the ids that all ranks `requested`; return int32 rows for each rank.

        Whether a new id gets a row depends on this process's admission, eviction and share of the capacity.
        """
        if len(requested[0]) > 1:
            return self._answer_steps(requested, steps, now)
        keys = np.unique(np.concatenate([ids for (ids,) in requested]))
        rows = self.table.plan(keys[None], None, now, steps=steps).reshape(-1) if train else self.table.lookup(keys)
        return [self.shards.to_global(rows[np.searchsorted(keys, ids)]) for (ids,) in requested]

    def _answer_steps(self, requested: Sequence[Sequence[np.ndarray]], steps: int, now: float) -> list[np.ndarray]:
        """Plan step by step, counting every occurrence of an id."""
        split = [[np.split(part, np.cumsum(heads)[:-1]) for part in parts] for heads, *parts in requested]
        keys_of, inverse_of, sightings = [], [], []
        for step in range(steps):
            keys, inverse = np.unique(np.concatenate([ids[step] for ids, _ in split]), return_inverse=True)
            counts = np.concatenate([counts[step] for _, counts in split])
            keys_of.append(keys)
            inverse_of.append(inverse)
            sightings.append(np.bincount(inverse, counts, minlength=len(keys)).astype(np.int64))
        width = max(int(counts.sum()) for counts in sightings)
        packed, padding = np.zeros((steps, width), np.int64), np.ones((steps, width), np.bool_)
        for step, (keys, counts) in enumerate(zip(keys_of, sightings, strict=True)):
            packed[step, : counts.sum()], padding[step, : counts.sum()] = np.repeat(keys, counts), False
        planned = self.table.plan(packed, padding, now)
        answers: list[list[np.ndarray]] = [[] for _ in requested]
        for step, (inverse, counts) in enumerate(zip(inverse_of, sightings, strict=True)):
            rows = planned[step, np.cumsum(counts) - counts][inverse] if len(counts) else np.zeros(0, np.int32)
            ends = np.cumsum([len(ids[step]) for ids, _ in split])
            for answer, part in zip(answers, np.split(rows, ends[:-1]), strict=True):
                answer.append(self.shards.to_global(part))
        return [np.concatenate(parts) for parts in answers]

    def receive(self, answers: Sequence[np.ndarray]) -> None:
        """Complete the query with the answers of each rank."""
        self.query.answers = self.query.in_order(answers)

    def plan(
        self, ids: np.ndarray, padding: np.ndarray | None = None, now: float = 0.0, steps: int | None = None
    ) -> np.ndarray:
        """Return the owners' answers for the query's ids or, with `steps`, for `ids`."""
        query = self.query
        return query.rows() if steps is None else query.answers[np.searchsorted(query.keys, ids)]

    def lookup(self, ids: np.ndarray, padding: np.ndarray | None = None) -> np.ndarray:
        """Return the row of each id of `reading` in `store.values`, int32 [n].

        Padding has -1.
        """
        return self.reading.rows().reshape(-1)

    def read_trained(self, ids: np.ndarray, padding: np.ndarray, out: np.ndarray) -> None:
        """Fill `out`, float32 [n, dim], with the trained weights that the owners sent."""
        self.store.read_part(self.lookup(ids), out)

    def record(self, numbers: np.ndarray, inverse: np.ndarray, now: float) -> None:
        """Store this process's counts of each row in `seen`, for the owners to record."""
        if self.keeps_seen:
            self.seen = np.stack([np.bincount(step, minlength=len(numbers) + 1)[1:] for step in inverse])

    def start(self) -> None:
        """Mark the oldest plan as started: its rows are about to be trained in place."""
        self.table.start()

    def commit(self, values: None) -> None:
        """Commit the oldest plan, whose rows were trained in place."""
        self.table.commit(values)
