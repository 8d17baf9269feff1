"""Distinct row numbers and inverse positions, in the order of first occurrence."""

from __future__ import annotations

import numpy as np

from ...native.memory import zeros


class UniqueIndexer:
    """Finds distinct numbers without sorting, by a lookup table never cleared.

    Not safe to share between threads.

    Attributes:
        first: index of each distinct number's first occurrence in the latest call, int32 [u].
    """

    def __init__(self) -> None:
        from ..tables import kernels

        self._number = kernels.number.ready()
        self._slots = np.zeros(0, np.int32)
        self.first = np.zeros(0, np.int32)

    def __call__(self, numbers: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (distinct, inverse) of `numbers`, int32 [n] in [-1, bound).

        `distinct` (int32 [u]) is in the order of first occurrence, without -1; ``inverse`` (int32 [n]) counts from 1,
        with 0 for -1, so that ``distinct[inverse - 1] == numbers`` elsewhere.
        """
        if len(self._slots) < bound:
            self._slots = zeros((max(bound, 2 * len(self._slots)),), np.int32)
        numbers = np.ascontiguousarray(numbers, np.int32)
        distinct, first, inverse = (np.empty(len(numbers), np.int32) for _ in range(3))
        count = self._number(numbers, self._slots, distinct, first, inverse)
        self.first = first[:count]
        return distinct[:count], inverse


class SortingIndexer:
    """Like `UniqueIndexer`, but sorts: memory does not grow with the numbers."""

    def __init__(self) -> None:
        self.first = np.zeros(0, np.int32)

    def __call__(self, numbers: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (distinct, inverse) as `UniqueIndexer` does; ignores `bound`."""
        distinct, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        none = int(len(distinct) and distinct[0] < 0)
        order = np.argsort(first[none:])
        number = np.zeros(len(distinct), np.int32)
        number[none:][order] = np.arange(1, len(order) + 1, dtype=np.int32)
        self.first = first[none:][order].astype(np.int32)
        return distinct[none:][order].astype(np.int32), number[inverse.reshape(-1)]
