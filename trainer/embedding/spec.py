"""What a sparse table is, apart from its content."""

from __future__ import annotations

from dataclasses import dataclass

from .admission import MinSightings, Probability
from .eviction import Eviction

DEFAULT_ROW = 0  # what ids without a row of their own read


@dataclass
class TableSpec:
    """What a table is, apart from its content.

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
