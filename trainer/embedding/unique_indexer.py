"""UniqueIndexer row numbers and inverse positions without sorting."""

from __future__ import annotations

import numpy as np


class UniqueIndexer:
    """Finds distinct numbers through a lookup table that is never cleared: only entries just written are read.

    One instance serves one thread.
    """

    def __init__(self) -> None:
        self._first = np.empty(0, np.int32)
        self._count = np.empty(0, np.int32)

    def __call__(self, numbers: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (distinct, inverse) of `numbers`, int32 [n] in [-1, bound).

        `distinct` (int32 [u]) is in the order of first occurrence, without -1; ``inverse`` (int32 [n]) counts from 1,
        0 standing for -1, so that ``distinct[inverse - 1] == numbers`` elsewhere.
        """
        if len(self._first) <= bound:
            self._first = np.empty(max(bound + 1, 2 * len(self._first)), np.int32)
        if len(self._count) < len(numbers):
            self._count = np.arange(len(numbers), dtype=np.int32)
        places = self._count[: len(numbers)]
        shifted = numbers + 1
        # Of several writes to one entry the last one stays, so writing backwards leaves the first place.
        self._first[shifted[::-1]] = places[::-1]
        first = np.take(self._first, shifted)
        new = first == places
        missing = numbers < 0
        any_missing = missing.any()
        if any_missing:
            new &= ~missing
        inverse = np.take(np.cumsum(new, dtype=np.int32), first)
        if any_missing:
            inverse[missing] = 0
        return numbers[new], inverse
