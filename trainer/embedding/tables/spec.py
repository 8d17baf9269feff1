"""`TableSpec`: defines a sparse table's size, initial values and policies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...checks import choice, number, whole
from .hashing import mix64, uniform64

DTYPES = ("float32", "float16")
DEFAULT_ROW = 0  # read by ids without their own row
PADDING = -1  # row number where there is no id


@dataclass(frozen=True)
class Eviction:
    """Decides when a table evicts rows; it never evicts rows of a running step.

    Args:
        when_full: "lru" evicts the least recently used ids, "lfu" the least frequently used ones; with None, new ids of
            a full table read and train the shared default row.
        ttl: seconds without a sighting after which an id is forgotten, or None.
        share: part of the capacity that is freed at once when the table is full, so that eviction is rare.
    """

    when_full: str | None = "lru"
    ttl: float | None = None
    share: float = 0.01

    def __post_init__(self) -> None:
        choice("Eviction(when_full=...)", self.when_full, ("lru", "lfu"), optional=True)
        number("Eviction(ttl=...)", self.ttl, above=0, optional=True, what="seconds")
        number("Eviction(share=...)", self.share, above=0, maximum=1)


@dataclass
class TableSpec:
    """The definition of a table, without its contents."""

    name: str  # unique; together with `seed` it determines all initial values
    dim: int  # length of a vector
    capacity: int | None = None  # maximum number of ids with their own row; None: unlimited
    initializer: str = "normal"  # or "uniform", "zeros"
    scale: float = 0.01  # standard deviation or bound of the initial values
    seed: int = 0
    admission: MinSightings | Probability | None = None
    eviction: Eviction | None = None
    padding: int | None = None  # id that marks a missing value and reads as zeros
    trainable: bool = True  # False: rows never change, and new ids get no row
    path: str | None = None  # file to keep the rows in; None: memory
    dtype: str = "float32"  # dtype of the weights: "float32" or "float16"

    @property
    def keeps_every_id(self) -> bool:
        """Whether every id gets its own permanent row."""
        return self.capacity is None and self.admission is None and self.eviction is None


@dataclass(frozen=True)
class MinSightings:
    """Admits an id at its `count`-th sighting: never later, rarely earlier.

    A count-min sketch estimates the sightings.

    Source: G. Cormode, S. Muthukrishnan, "An improved data stream summary: the count-min sketch", J. Algorithms 2005.

    Args:
        count: sightings needed, at least 1.
        width: cells in each of the sketch's rows, rounded up to a power of two. With probability exp(-depth), an
            estimate is too high by more than 2.7 / width of all sightings.
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
    """Admits an unknown id with probability `p` per step, by a repeatable hash.

    Args:
        p: more than 0, at most 1.
    """

    p: float

    def __post_init__(self) -> None:
        number("Probability(p=...)", self.p, above=0, maximum=1)


class Admission:
    """Decides which unknown ids get a row; a policy of None admits all."""

    def __init__(self, policy: MinSightings | Probability | None, seed: int) -> None:
        self.policy = policy
        self.seed = seed
        self.sketch: np.ndarray | None = None
        if isinstance(policy, MinSightings):
            width = 1 << (policy.width - 1).bit_length()
            self.sketch = np.zeros((policy.depth, width), np.uint32)

    def admit(self, ids: np.ndarray, counts: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Decide on distinct unknown `ids` (int64 [n]), seen `counts` times in `step`.

        Returns (admitted, cells): a bool mask [n], and the argument of `undo_counting`, or None without a sketch.
        """
        if isinstance(self.policy, Probability):
            return uniform64(ids, self.seed + step & 0xFFFFFFFFFFFFFFFF) < self.policy.p, None
        if self.policy is None or self.sketch is None:
            return np.ones(len(ids), np.bool_), None
        depth, width = self.sketch.shape
        hashes = mix64(ids) ^ np.uint64(self.seed)
        cells = mix64(hashes + np.arange(depth, dtype=np.uint64)[:, None]) & np.uint64(width - 1)
        cells = cells.astype(np.int64) + np.arange(depth)[:, None] * width
        flat = self.sketch.reshape(-1)
        np.add.at(flat, cells, counts.astype(np.uint32)[None, :])
        return flat[cells].min(axis=0) >= self.policy.count, np.stack((cells.reshape(-1), np.tile(counts, depth)))


def undo_counting(sketch: np.ndarray, cells: np.ndarray) -> None:
    """Subtract the counts that one `Admission.admit` added to a sketch."""
    np.subtract.at(sketch.reshape(-1), cells[0], cells[1].astype(np.uint32))
