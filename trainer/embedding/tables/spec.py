"""What defines a sparse table, apart from its content."""

from __future__ import annotations

from dataclasses import dataclass

from ...checks import choice, number
from .admission import MinSightings, Probability

DEFAULT_ROW = 0  # what ids without a row of their own read
PADDING = -1  # in place of a row, where there is no id


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
        choice("Eviction(when_full=...)", self.when_full, ("lru", "lfu"), optional=True)
        number("Eviction(ttl=...)", self.ttl, above=0, optional=True, what="seconds")
        number("Eviction(share=...)", self.share, above=0, most=1)

    @classmethod
    def of(cls, value: Eviction | str | None) -> Eviction | None:
        """Return `value` as an `Eviction`; "lru" and "lfu" are short for ``Eviction(when_full=...)``."""
        return cls(when_full=value) if isinstance(value, str) else value


@dataclass
class TableSpec:
    """What defines a table, apart from its content.

    Attributes:
        name: unique name; with `seed` it decides every first value.
        dim: columns of a weight.
        capacity: most ids with a row of their own, or None.
        initializer: "normal", "uniform" or "zeros".
        scale: standard deviation or bound of the first values.
        seed: seed of first values and hashes.
        admission: see `Admission`.
        eviction: see `Eviction`.
        padding: id that stands for nothing (a row of zeros), or None.
        trainable: False keeps the rows as they are and gives new ids none.
        path: file to keep the rows in, or None for memory.
    """

    name: str
    dim: int
    capacity: int | None = None
    initializer: str = "normal"
    scale: float = 0.01
    seed: int = 0
    admission: MinSightings | Probability | None = None
    eviction: Eviction | None = None
    padding: int | None = None
    trainable: bool = True
    path: str | None = None

    @property
    def keeps_every_id(self) -> bool:
        """Whether every id gets a row of its own for good."""
        return self.capacity is None and self.admission is None and self.eviction is None
