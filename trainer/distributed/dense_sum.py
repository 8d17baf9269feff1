"""Sum dense gradients over processes, using the connections of `AllToAll`.

MindSpore's AllReduce on CPU moves twice the bytes of a ring and waits longer: docs/scaling.md compares them.
"""

from __future__ import annotations

import numpy as np

from .group import Group

WHOLE_BYTES = 1 << 16  # up to this size each process sends its whole array to all others, which saves a wait


class DenseSum:
    """Sum over all processes in rank order: the same bits on every process.

    Args:
        group: the processes; they are connected (`Group.connect`) before the first sum.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        # Reused by size: MindSpore copies an operator's result, and fresh memory costs more than the addition.
        self._totals: dict[int, np.ndarray] = {}

    def add(self, values: np.ndarray, token: np.ndarray | None = None) -> np.ndarray:
        """Return the sum of the `values` of all processes, float32 [n].

        The next sum of this size overwrites it. An operator of a running graph calls this method.
        """
        total = self._totals.get(values.size)
        if total is None:
            total = self._totals[values.size] = np.empty(values.size, np.float32)
        rank, size = self._group.rank, self._group.size
        if size == 2 or values.nbytes <= WHOLE_BYTES:
            self._add_up([values] * size, total)
            return total
        pieces = np.array_split(total, size)
        self._add_up(np.array_split(values, size), pieces[rank])
        parts = self._group.all_to_all([pieces[rank]] * size, in_graph=True)
        for piece, part in zip(pieces, parts, strict=True):
            piece[:] = np.frombuffer(part, np.float32)
        return total

    def _add_up(self, parts: list[np.ndarray], total: np.ndarray) -> None:
        """Send `parts[r]` to each rank r; set `total` to the sum of the received parts."""
        first, *others = self._group.all_to_all(parts, in_graph=True)
        total[:] = np.frombuffer(first, np.float32)
        for other in others:
            total += np.frombuffer(other, np.float32)
