"""Which new ids get a row of their own: all, those seen often enough, or a random share of sightings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...checks import number, whole
from .hashing import mix64, uniform64


@dataclass(frozen=True)
class MinSightings:
    """An id gets a row at its `count`-th sighting, as estimated by a count-min sketch (never later, rarely earlier).

    Source: G. Cormode, S. Muthukrishnan, "An improved data stream summary: the count-min sketch", J. Algorithms 2005.

    Args:
        count: sightings needed, at least 1.
        width: cells in each of the sketch's rows, rounded up to a power of two; an estimate exceeds the truth by
            more than 2.7 / width of all sightings with a probability of exp(-depth).
        depth: rows of the sketch.
    """

    count: int
    width: int = 1 << 18
    depth: int = 4

    def __post_init__(self) -> None:
        for name in ("count", "width", "depth"):
            whole(f"MinSightings({name}=...)", getattr(self, name))


@dataclass(frozen=True)
class Probability:
    """Every step with an unknown id gives it a row with probability `p`, decided by a hash, so that replay agrees.

    Args:
        p: more than 0, at most 1.
    """

    p: float

    def __post_init__(self) -> None:
        number("Probability(p=...)", self.p, above=0, most=1)


class Admission:
    """Applies an admission policy to the unknown ids of one step, and can take the latest decisions back.

    Args:
        policy: `MinSightings`, `Probability`, or None to admit all.
        seed: seed of the hashes.
    """

    def __init__(self, policy: MinSightings | Probability | None, seed: int) -> None:
        self.policy = policy
        self.seed = seed
        self.sketch: np.ndarray | None = None
        if isinstance(policy, MinSightings):
            width = 1 << (policy.width - 1).bit_length()
            self.sketch = np.zeros((policy.depth, width), np.uint32)

    def admit(self, ids: np.ndarray, counts: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Decide about the distinct unknown `ids` (int64 [n]) seen `counts` times each in step number `step`.

        Returns (admitted, cells): a bool mask [n], and what `forget` needs to undo the counting.
        """
        if isinstance(self.policy, Probability):
            return uniform64(ids, self.seed + step & 0xFFFFFFFFFFFFFFFF) < self.policy.p, None
        if self.policy is None or self.sketch is None:
            return np.ones(len(ids), np.bool_), None
        depth, width = self.sketch.shape
        hashes = mix64(ids) ^ np.uint64(self.seed)
        cells = np.stack([mix64(hashes + np.uint64(row)) & np.uint64(width - 1) for row in range(depth)]).astype(
            np.int64
        )
        cells += np.arange(depth)[:, None] * width
        flat = self.sketch.reshape(-1)
        np.add.at(flat, cells, counts.astype(np.uint32)[None, :])
        return flat[cells].min(axis=0) >= self.policy.count, np.stack((cells.reshape(-1), np.tile(counts, depth)))

    def forget(self, cells: np.ndarray, sketch: np.ndarray | None = None) -> None:
        """Take one `admit` back, or take it from a copy of the sketch; counting can be undone in any order."""
        sketch = self.sketch if sketch is None else sketch
        if sketch is not None:
            np.subtract.at(sketch.reshape(-1), cells[0], cells[1].astype(np.uint32))
