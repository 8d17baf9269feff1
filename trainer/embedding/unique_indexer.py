"""Distinct row numbers and inverse positions without sorting."""

from __future__ import annotations

import numpy as np


class UniqueIndexer:
    """Finds distinct numbers through a lookup table that is never cleared: only entries just written are read.

    One instance serves one thread.

    Attributes:
        first: where each distinct number of the latest call occurred first, int32 [u].
    """

    def __init__(self) -> None:
        from . import kernels

        self._number = kernels.number.ready()
        self._slots = np.zeros(0, np.int32)
        self.first = np.zeros(0, np.int32)

    def __call__(self, numbers: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (distinct, inverse) of `numbers`, int32 [n] in [-1, bound).

        `distinct` (int32 [u]) is in the order of first occurrence, without -1; ``inverse`` (int32 [n]) counts from 1,
        0 standing for -1, so that ``distinct[inverse - 1] == numbers`` elsewhere.
        """
        if len(self._slots) < bound:
            self._slots = np.zeros(max(bound, 2 * len(self._slots)), np.int32)
        numbers = np.ascontiguousarray(numbers, np.int32)
        distinct, first, inverse = (np.empty(len(numbers), np.int32) for _ in range(3))
        count = self._number(numbers, self._slots, distinct, first, inverse)
        self.first = first[:count]
        return distinct[:count], inverse
