"""Bags that the owners of their rows pool: one vector per bag and owner travels.

To the graph a bag is a single row of its own: the position of the bag's vector stands for its first id, and its other
ids are padding. So it is read, its gradient is summed, and it is listed for the owners like any row. Each owner that
has ids of the bag adds up their weights; the process adds up the owners' sums. The gradient goes back to all of them,
and each adds it to the rows of the bag's ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..tables.hashing import Shards
from ..tables.spec import PADDING, TableSpec
from .layout import FieldMap, Layout
from .sparse_plan import TablePlan

_SCALES = {
    "sum": lambda counts: np.ones(len(counts), np.float32),
    "mean": lambda counts: (1 / np.maximum(counts, 1)).astype(np.float32),
    "sqrtn": lambda counts: (1 / np.sqrt(np.maximum(counts, 1))).astype(np.float32),
}


def can_pool(index: int, fields: FieldMap, layout: Layout, specs: Sequence[TableSpec], accumulate: int) -> bool:
    """Return whether owners can pool the bags of table `index`.

    Every id of its stack needs a permanent row, the table needs an input column of its own that nothing else reads, and
    gradients must not be accumulated.
    """
    for bundle in layout.bundles:
        for number in bundle.components:
            component = fields.components[number]
            if index in component.specs:
                alone = len(component.specs) == len(component.parts) == len(bundle.stacks) == 1
                whole = component.parts[0].elements is None and not bundle.indirect
                kept = all(specs[table].keeps_every_id for table in layout.stacks[bundle.stacks[0]].tables)
                return alone and whole and kept and index not in fields.repeated and accumulate == 1
    return False


@dataclass(slots=True)
class Bags:
    """The bags of a table in one call, numbered from 1."""

    combiner: str  # "sum", "mean" or "sqrtn"
    length: int = 1  # ids of a bag, with padding
    # Row number of every id, -1 for padding, int32 [bags, length].
    rows: np.ndarray = field(default_factory=lambda: np.zeros((0, 1), np.int32))

    def begin(self, rows: np.ndarray) -> np.ndarray:
        """Take the rows of a call's ids; return numbers of bags in their place.

        Both are int32 [steps, n]. The number of a bag replaces its first row, padding the others.
        """
        self.rows = rows.reshape(-1, self.length)
        numbers = np.full(self.rows.shape, PADDING, np.int32)
        filled = np.flatnonzero((self.rows != PADDING).any(axis=1))
        numbers[filled, 0] = filled + 1
        return numbers.reshape(rows.shape)

    def scales(self, numbers: np.ndarray) -> np.ndarray:
        """Return what the sum of each bag is multiplied by, float32 [n]."""
        return _SCALES[self.combiner](np.count_nonzero(self.rows[numbers - 1] != PADDING, axis=1))


class StackRows:
    """The row, or the rows of a bag, that each position of a stack stands for.

    `parts` are the stack's tables, `bags` those of the pooled ones, by table, and `size` is the number of positions.
    """

    def __init__(self, parts: Sequence[TablePlan], bags: Mapping[int, Bags], size: int, shards: Shards) -> None:
        self._shards, self._members = shards, len(parts)
        self._counts = np.zeros(size, np.int64)
        self._scales = np.ones(size, np.float32)
        numbers, members = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for member in sorted(range(len(parts)), key=lambda member: parts[member].start):
            part = parts[member]
            own, inside = part.rows, part.inside
            self._counts[inside] = 1
            if part.table in bags:
                grid = bags[part.table].rows[part.rows - 1]
                present = grid != PADDING
                self._counts[inside], self._scales[inside] = present.sum(axis=1), bags[part.table].scales(part.rows)
                own = grid[present]
            numbers.append(own)
            members.append(np.full(len(own), member, np.int64))
        self._numbers, self._member_of = np.concatenate(numbers), np.concatenate(members)
        self._starts = np.cumsum(self._counts) - self._counts

    def divide_steps(
        self, steps: Sequence[np.ndarray]
    ) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]], list[np.ndarray]]:
        """Divide what the `steps`, int32 positions, read by owner.

        Returns the positions in the step for each step and rank, for each rank the lists to send, and
        `StackExchange.scales`. The lists are those of rows (`OwnerPlanner`) without sightings, then how many vectors
        each step has, and how many rows each vector is the sum of.
        """
        divided = [self.divide(positions) for positions in steps]
        heads = np.stack([np.concatenate((step.heads, 0 * step.heads), axis=1) for step in divided], axis=1)
        none = np.zeros(0, np.int32)
        lists = []
        for rank, head in enumerate(heads):
            rows, counts = [step.rows[rank] for step in divided], [step.counts[rank] for step in divided]
            totals = np.array(list(map(len, counts)), np.int32)
            lists.append([head, np.concatenate(rows), none, none, totals, np.concatenate(counts)])
        return [step.sent for step in divided], lists, [step.scales for step in divided]

    def divide(self, positions: np.ndarray) -> StepRows:
        """Divide what a step's `positions`, int32 [n], stand for by owner."""
        counts, size = self._counts[positions], self._shards.size
        ends = np.cumsum(counts)
        chosen = np.repeat(self._starts[positions] - (ends - counts), counts) + np.arange(counts.sum())
        numbers, at = self._numbers[chosen], np.repeat(np.arange(len(positions)), counts)
        groups = self._shards.owners_of_rows(numbers) * self._members + self._member_of[chosen]
        keys = groups * max(1, len(positions)) + at
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        firsts = np.flatnonzero(np.diff(keys, prepend=-1))
        heads = np.bincount(groups, minlength=size * self._members).reshape(size, self._members)
        vectors = groups[order][firsts] // self._members  # their owners
        rank_ends = np.searchsorted(vectors, np.arange(1, size + 1))
        return StepRows(
            heads.astype(np.int32),
            np.split(self._shards.rows(numbers[order]), np.cumsum(heads.sum(axis=1))[:-1]),
            np.split((at[order][firsts] + 1).astype(np.int32), rank_ends[:-1]),
            np.split(np.diff(firsts, append=len(keys)).astype(np.int32), rank_ends[:-1]),
            np.append(np.float32(1), self._scales[positions]),
        )


@dataclass(frozen=True, slots=True)
class StepRows:
    """What one step exchanges with each owner; lists have an entry for each rank."""

    heads: np.ndarray  # how many rows of each table, int32 [ranks, tables]
    rows: list[np.ndarray]  # the owner's row numbers
    sent: list[np.ndarray]  # the positions in the step of the vectors that it sends
    counts: list[np.ndarray]  # how many of its rows each of these vectors is the sum of
    scales: np.ndarray  # what the vectors' sum at each position in the step is multiplied by, float32; entry 0 is 1
