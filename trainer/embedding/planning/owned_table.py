"""A sharded table: each process asks for its own ids and plans the ids it owns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .sharded_planner import RowQuery, ShardedTable
from .sparse_plan import padding_of


class OwnedTable(ShardedTable):
    """A `ShardedTable` of which each process plans its own ids.

    Attributes:
        keeps_seen: whether to keep `seen`.
        seen: how often each batch of this process's latest plan sees each distinct row of the chunk, int64 [steps, u].
    """

    def __init__(self, table: Any) -> None:
        super().__init__(table)
        self.keeps_seen = False
        self.seen = np.zeros((0, 0), np.int64)
        self._owners = np.zeros(0, np.int64)

    def question(self, ids: np.ndarray, *, placeholder: bool, stepwise: bool) -> list[list[np.ndarray]]:
        """Begin the query for this process's ids; return what to send to each owner.

        Args:
            ids: see above.
            placeholder: whether none of the ids counts.
            stepwise: whether an id may get its row between two steps.

        Returns:
            For each rank int64 arrays: (ids,), or (ids of each step, ids, how often each occurs).
        """
        padding = np.ones(ids.shape, np.bool_) if placeholder else padding_of(self.table, ids)
        self.query = query = RowQuery(ids, padding, stepwise=stepwise)
        self._owners = self.shards.owners(query.keys)
        chosen = [np.flatnonzero(self._owners == rank) for rank in range(self.shards.size)]
        if not stepwise:
            return [[query.keys[own]] for own in chosen]
        counts = np.bincount(query.inverse[query.inverse >= 0], minlength=len(query.keys))
        step_of = np.zeros(len(query.keys), np.int64)
        for step, inverse in enumerate(query.inverse):
            step_of[inverse[inverse >= 0]] = step
        return [[np.bincount(step_of[own], minlength=len(ids)), query.keys[own], counts[own]] for own in chosen]

    def answer(
        self, requested: Sequence[Sequence[np.ndarray]], steps: int, now: float, *, train: bool
    ) -> list[np.ndarray]:
        """Plan the ids in all ranks' `requested` questions; return each one's rows, int32."""
        if len(requested[0]) > 1:
            return self._answer_steps(requested, steps, now)
        keys = np.unique(np.concatenate([own for (own,) in requested]))
        rows = self.table.plan(keys[None], None, now, steps=steps).reshape(-1) if train else self.table.lookup(keys)
        return [self.shards.numbers(rows[np.searchsorted(keys, own)]) for (own,) in requested]

    def _answer_steps(self, requested: Sequence[Sequence[np.ndarray]], steps: int, now: float) -> list[np.ndarray]:
        """Plan step by step, counting every sighting of an id."""
        split = [[np.split(part, np.cumsum(heads)[:-1]) for part in parts] for heads, *parts in requested]
        keys_of, inverse_of, sightings = [], [], []
        for step in range(steps):
            keys, inverse = np.unique(np.concatenate([ids[step] for ids, _ in split]), return_inverse=True)
            counts = np.concatenate([counts[step] for _, counts in split])
            keys_of.append(keys)
            inverse_of.append(inverse)
            sightings.append(np.bincount(inverse, counts, minlength=len(keys)).astype(np.int64))
        most = max(int(counts.sum()) for counts in sightings)
        packed, padding = np.zeros((steps, most), np.int64), np.ones((steps, most), np.bool_)
        for step, (keys, counts) in enumerate(zip(keys_of, sightings, strict=True)):
            packed[step, : counts.sum()], padding[step, : counts.sum()] = np.repeat(keys, counts), False
        planned = self.table.plan(packed, padding, now)
        answers: list[list[np.ndarray]] = [[] for _ in requested]
        for step, (inverse, counts) in enumerate(zip(inverse_of, sightings, strict=True)):
            rows = planned[step, np.cumsum(counts) - counts][inverse] if len(counts) else np.zeros(0, np.int32)
            ends = np.cumsum([len(ids[step]) for ids, _ in split])
            for answer, part in zip(answers, np.split(rows, ends[:-1]), strict=True):
                answer.append(self.shards.numbers(part))
        return [np.concatenate(parts) for parts in answers]

    def receive(self, answers: Sequence[np.ndarray]) -> None:
        """Complete the query with the answers of each rank."""
        self.query.answers = np.empty(len(self._owners), np.int32)
        for rank, part in enumerate(answers):
            self.query.answers[self._owners == rank] = part

    def record(self, numbers: np.ndarray, inverse: np.ndarray, now: float) -> None:
        """Add this process's sightings of each row to `seen`, for the owners to record."""
        if self.keeps_seen:
            self.seen = np.stack([np.bincount(step, minlength=len(numbers) + 1)[1:] for step in inverse])

    def start(self) -> None:
        """Mark the oldest plan: its rows are about to be trained in place."""
        self.table.start()

    def commit(self, values: np.ndarray | None) -> None:
        """Commit the oldest plan, which was trained in place."""
        self.table.commit(values)
