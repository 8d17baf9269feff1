"""A table whose rows are divided among processes, as the planner and the programs of each of them see it.

All processes plan the same ids in the same order, so all know of every row who keeps it and what it is called. What
they do not know, they ask: which row an id has, and what is in it, at the beginning of a call; see `sharded_tables`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .sparse_plan import padding_of
from .spec import DEFAULT_ROW
from .table import PADDING, SparseTable


class Question:
    """The distinct ids of a call, in whose order all processes answer.

    With an admission policy an id may have no row in one step and one in the next: then they are those of each step.

    Args:
        ids: int64 [steps, n].
        padding: where there is no id, bool [steps, n], or None.
        stepwise: whether each step has its own.

    Attributes:
        keys: the distinct ids, ascending (within each step), int64 [u].
        inverse: place of every id in `keys`, -1 for padding, int64 [steps, n].
        answers: the rows of `keys`, int32 [u], once they are known.
    """

    def __init__(self, ids: np.ndarray, padding: np.ndarray | None, *, stepwise: bool) -> None:
        self.inverse = np.full(ids.shape, PADDING, np.int64)
        parts, start = [], 0
        for step in range(len(ids)) if stepwise else [slice(None)]:
            asked, places = ids[step], self.inverse[step]
            chosen = slice(None) if padding is None else ~padding[step]
            keys, inverse = np.unique(asked[chosen].reshape(-1), return_inverse=True)
            places[chosen] = (inverse + start).reshape(places[chosen].shape)
            parts.append(keys)
            start += len(keys)
        self.keys = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        self.answers = np.zeros(0, np.int32)

    def rows(self) -> np.ndarray:
        """Return the row of every id, -1 for padding: int32 [steps, n]."""
        if not len(self.keys):
            return np.full(self.inverse.shape, PADDING, np.int32)
        rows = self.answers[self.inverse]
        rows[self.inverse < 0] = PADDING
        return rows

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the rows of some of the ids, int32 of their shape; of questions that are not stepwise."""
        return self.answers[np.searchsorted(self.keys, ids)]


class CallRows:
    """What the rows of a call hold: gathered from their keepers.

    Attributes:
        values: of a call that trains, packed rows in the order of the plan, float32 [u, width]; of one that only reads,
            the weights of the distinct ids of the question, float32 [u, dim].
    """

    def __init__(self) -> None:
        from . import kernels

        self._gather = kernels.gather.ready()
        self.values = np.zeros((0, 0), np.float32)

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write the packed rows of the plan into `out`; `rows` are all of the plan's."""
        out[...] = self.values
        return out

    def read_part(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Write the weights of `rows` (answers of the question, int32 [n]) into `out`, float32 [n, dim]."""
        if len(rows) and len(self.values):
            self._gather(self.values, rows, out)


class ShardedTable:
    """See the module's text. Rows are called by their numbers among all processes (`Shards`).

    Args:
        table: this process's part.
    """

    next_row = 0  # row numbers are not looked up in a list of all of them

    def __init__(self, table: SparseTable) -> None:
        self.table = table
        self.shards = table.shards
        self.spec, self.width = table.spec, table.width
        self.store = CallRows()
        self.question = Question(np.zeros((0, 0), np.int64), None, stepwise=False)
        self._numbers = np.zeros(0, np.int32)

    def packed(self, weights: np.ndarray) -> np.ndarray:
        """See `SparseTable.packed`."""
        return self.table.packed(weights)

    # -- who has which row ---------------------------------------------------------------------------------------

    def ask(self, ids: np.ndarray, now: float, *, train: bool) -> np.ndarray:
        """Ask for the rows of a call's `ids`, int64 [steps, n], the same on all processes.

        Returns this process's answers, the numbers of the rows it keeps, int32, in the order of the question's keys.
        The owner gives new ids their rows, by its own admission, eviction and part of the capacity.
        """
        table, padding = self.table, padding_of(self, ids)
        stepwise = train and table.spec.admission is not None
        self.question = question = Question(ids, padding, stepwise=stepwise)
        own = self.shards.owned(question.keys)
        if not train:
            rows = table.lookup(question.keys[own])
        elif not stepwise:
            rows = table.plan(question.keys[own][None], None, now, steps=len(ids)).reshape(-1)
        else:
            rows = self._plan_steps(question, own, ids, now)[own]
        return self.shards.numbers(rows)

    def _plan_steps(self, question: Question, own: np.ndarray, ids: np.ndarray, now: float) -> np.ndarray:
        """Plan step by step, every sighting of an id counted; returns the rows of all keys, of others' keys 0."""
        mine = (question.inverse >= 0) & own[question.inverse] if len(own) else np.zeros(ids.shape, np.bool_)
        most = int(mine.sum(axis=1).max(initial=0))
        packed, none = np.zeros((len(ids), most), np.int64), np.ones((len(ids), most), np.bool_)
        for step, chosen in enumerate(mine):
            count = np.count_nonzero(chosen)
            packed[step, :count], none[step, :count] = ids[step, chosen], False
        planned = self.table.plan(packed, none, now)
        rows = np.zeros(len(question.keys), np.int32)
        for step, chosen in enumerate(mine):
            rows[question.inverse[step, chosen]] = planned[step, ~none[step]]
        return rows

    def learn(self, everyones: Sequence[np.ndarray]) -> None:
        """Take in the answers of all processes."""
        owners = self.shards.owners(self.question.keys)
        self.question.answers = np.empty(len(owners), np.int32)
        for rank, answers in enumerate(everyones):
            self.question.answers[owners == rank] = answers

    def answer_counts(self) -> np.ndarray:
        """Return how many answers each process gives, int64 [size]."""
        return np.bincount(self.shards.owners(self.question.keys), minlength=self.shards.size)

    def plan(
        self, ids: np.ndarray, padding: np.ndarray | None = None, now: float = 0.0, steps: int | None = None
    ) -> np.ndarray:
        """Return what was answered about `ids`: those of the question, or distinct ones of them, int64 [1, n]."""
        return self.question.rows() if steps is None else self.question.rows_of(ids)

    def lookup(self, ids: np.ndarray, padding: np.ndarray | None = None) -> np.ndarray:
        """Return what was answered about the question's ids, int32 [n], -1 for padding."""
        return self.question.rows().reshape(-1)

    def read_trained(self, ids: np.ndarray, padding: np.ndarray, out: np.ndarray) -> None:
        """Write the weights of the question's ids to `out`, float32 [n, dim], as their owners have trained them."""
        self.store.read_part(self.lookup(ids), out)

    def record(self, numbers: np.ndarray, inverse: np.ndarray, now: float) -> None:
        """Note the sightings of the rows kept here; see `SparseTable.record`."""
        own = self._own(numbers)
        place = np.zeros(len(numbers) + 1, np.int64)
        place[1:][own] = np.arange(1, np.count_nonzero(own) + 1)
        self.table.record(self.shards.rows(numbers[own]), place[inverse], now)

    # -- what is in it ---------------------------------------------------------------------------------------------

    def _own(self, numbers: np.ndarray) -> np.ndarray:
        return (numbers == DEFAULT_ROW) | (self.shards.keepers(numbers) == self.shards.rank)

    def row_counts(self, numbers: np.ndarray) -> np.ndarray:
        """Return how many of a plan's rows each process keeps, the default row left out, int64 [size]."""
        return np.bincount(self.shards.keepers(numbers[numbers != DEFAULT_ROW]), minlength=self.shards.size)

    def give(self, numbers: np.ndarray) -> np.ndarray:
        """Return the packed rows among a plan's that are kept here, the default row left out: float32 [n, width]."""
        own = (numbers != DEFAULT_ROW) & self._own(numbers)
        return self.table.store.read(self.shards.rows(numbers[own]))

    def take_in(self, numbers: np.ndarray, everyones: Sequence[np.ndarray]) -> None:
        """Take in what every process has given of a plan's rows."""
        values = np.empty((len(numbers), self.width), np.float32)
        keepers = self.shards.keepers(numbers)
        for rank, given in enumerate(everyones):
            values[(keepers == rank) & (numbers != DEFAULT_ROW)] = given
        default = numbers == DEFAULT_ROW
        values[default] = self.table.store.read(numbers[default])
        self.store.values, self._numbers = values, numbers

    def commit(self, values: np.ndarray) -> None:
        """Confirm the oldest plan with its trained rows, float32 [u, width] in the plan's order: keep one's own."""
        self.table.commit(values[self._own(self._numbers)])
