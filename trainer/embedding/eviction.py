"""Which ids lose their row: the least recently used, the least frequently used, or those not seen for too long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..checks import choice, number

_KINDS = ("lru", "lfu")


@dataclass(frozen=True)
class Eviction:
    """How a table forgets. Rows that steps in preparation or in progress refer to are never touched.

    Args:
        when_full: "lru", "lfu", or None: with None, ids that find the table full read and train the shared default row.
        ttl: seconds without a sighting after which an id is forgotten, or None.
        share: part of the capacity that is freed at once when the table is full, so that eviction is rare.
    """

    when_full: str | None = "lru"
    ttl: float | None = None
    share: float = 0.01

    def __post_init__(self) -> None:
        choice("Eviction(when_full=...)", self.when_full, _KINDS, optional=True)
        number("Eviction(ttl=...)", self.ttl, above=0, optional=True, what="seconds")
        number("Eviction(share=...)", self.share, above=0, most=1)

    @classmethod
    def of(cls, value: Eviction | str | None) -> Eviction | None:
        """Return `value` as an `Eviction`; "lru" and "lfu" are short for ``Eviction(when_full=...)``."""
        return cls(when_full=value) if isinstance(value, str) else value


def least(keys: np.ndarray, allowed: np.ndarray, count: int) -> np.ndarray:
    """Return the `count` allowed positions with the smallest key, ascending; of equal keys the lower position wins.

    Args:
        keys: integers [n].
        allowed: bool [n].
        count: how many; fewer are returned when fewer are allowed.
    """
    candidates = np.flatnonzero(allowed)
    if len(candidates) <= count:
        return candidates
    values = keys[candidates]
    bound = np.partition(values, count - 1)[count - 1]
    chosen = candidates[values < bound]
    tied = candidates[values == bound][: count - len(chosen)]
    return np.sort(np.concatenate((chosen, tied)))
