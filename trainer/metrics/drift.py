"""Drift detectors: has the mean of a sequence of losses changed?

`PageHinkley` after E. S. Page, "Continuous Inspection Schemes", Biometrika 41, 1954. `Adwin` after A. Bifet and R.
Gavaldà, "Learning from Time-Changing Data with Adaptive Windowing", SDM 2007. Non-finite values are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..checks import number, whole


class PageHinkley:
    """Fires when values exceed their running mean by too much in sum.

    A rise of the mean by d is detected after about threshold / (d - delta) values; a fall never fires. It restarts
    after firing.

    Args:
        threshold: allowed rise of the sum above its minimum, in units of the loss.
        delta: tolerated rise of the mean, in units of the loss.
        min_values: minimum number of values before it can fire.

    Raises:
        ConfigurationError: threshold not positive, delta negative, min_values less than 1.
    """

    def __init__(self, threshold: float = 0.1, delta: float = 0.005, min_values: int = 5) -> None:
        self.threshold = number("threshold", threshold, above=0, below=math.inf)
        self.delta = number("delta", delta, least=0, below=math.inf)
        self.min_values = whole("min_values", min_values)
        self._restart()

    def _restart(self) -> None:
        self._count, self._mean, self._sum, self._lowest = 0, 0.0, 0.0, 0.0

    def update(self, value: float) -> bool:
        """Add a value; return whether the mean has risen."""
        value = float(value)
        if not math.isfinite(value):
            return False
        self._count += 1
        self._mean += (value - self._mean) / self._count
        self._sum += value - self._mean - self.delta
        self._lowest = min(self._lowest, self._sum)
        if self._count < self.min_values or self._sum - self._lowest <= self.threshold:
            return False
        self._restart()
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the running sums as JSON-serialisable values."""
        return {"count": self._count, "mean": self._mean, "sum": self._sum, "lowest": self._lowest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._count, self._mean = int(state["count"]), float(state["mean"])
        self._sum, self._lowest = float(state["sum"]), float(state["lowest"])


class Adwin:
    """A window of values that grows until their mean changes, then shrinks.

    The window is stored as an exponential histogram, `max_buckets` buckets for each power of two, so memory and time
    grow with the logarithm of its length. The bound assumes a value range of about 1, typical of mean log losses; set
    `scale` for other ranges.

    Args:
        delta: confidence parameter; smaller values fire later and cause fewer false alarms.
        scale: width of the range of values.
        rise_only: fire only if the newer part has the higher mean, which suits a loss; the older part is dropped in any
            case.
        max_buckets: buckets for each power of two.
        min_values: minimum number of values in each compared part.

    Raises:
        ConfigurationError: delta outside (0, 1), scale not positive, max_buckets or min_values less than 1.
    """

    def __init__(
        self,
        delta: float = 0.002,
        scale: float = 1.0,
        rise_only: bool = True,
        max_buckets: int = 5,
        min_values: int = 5,
    ) -> None:
        self.delta = number("delta", delta, above=0, below=1)
        self.scale = number("scale", scale, above=0, below=math.inf)
        self.rise_only = bool(rise_only)
        self.max_buckets, self.min_values = whole("max_buckets", max_buckets), whole("min_values", min_values)
        self._levels: list[list[tuple[float, float]]] = []  # level i: (sum, squared deviation) of 2**i values each

    @property
    def width(self) -> int:
        """Number of values in the window."""
        return sum(len(level) << power for power, level in enumerate(self._levels))

    @property
    def mean(self) -> float:
        """Mean of the values in the window; NaN when it is empty."""
        width = self.width
        return sum(total for level in self._levels for total, _ in level) * self.scale / width if width else math.nan

    @property
    def variance(self) -> float:
        """Population variance of the values in the window; NaN when it is empty."""
        width, _, squares = _merged(self._buckets())
        return squares * self.scale**2 / width if width else math.nan

    def update(self, value: float) -> bool:
        """Add a value; return whether the mean has changed (with `rise_only`, risen)."""
        value = float(value) / self.scale
        if not math.isfinite(value):
            return False
        self._insert(value)
        fired = False
        while (rise := self._first_cut()) is not None:
            fired = fired or rise > 0 or not self.rise_only
            self._levels[-1].pop(0)
            while self._levels and not self._levels[-1]:
                self._levels.pop()
        return fired

    def _insert(self, value: float) -> None:
        carried, power = (value, 0.0), 0
        while True:
            if power == len(self._levels):
                self._levels.append([])
            level = self._levels[power]
            level.append(carried)
            if len(level) <= self.max_buckets:
                return
            (first, first_squares), (second, second_squares) = level.pop(0), level.pop(0)
            squares = first_squares + second_squares + (first - second) ** 2 / (2 << power)
            carried, power = (first + second, squares), power + 1

    def _buckets(self) -> list[tuple[int, float, float]]:
        """Return size, sum and squared deviation of every bucket, oldest first."""
        powers = reversed(range(len(self._levels)))
        return [(1 << power, total, squares) for power in powers for total, squares in self._levels[power]]

    def _first_cut(self) -> float | None:
        """Return newer mean minus older mean at the first significant cut, or None."""
        buckets = self._buckets()
        width, total, squares = _merged(buckets)
        if width < 2 * self.min_values:
            return None
        variance, log_term = squares / width, math.log(2.0 * math.log(width) / self.delta)
        older, older_total = 0, 0.0
        for size, bucket_total, _ in buckets[:-1]:
            older, older_total = older + size, older_total + bucket_total
            newer = width - older
            if older < self.min_values or newer < self.min_values:
                continue
            inverse = 1.0 / older + 1.0 / newer  # 1 / m, with m the harmonic mean in the paper
            bound = math.sqrt(2.0 * inverse * variance * log_term) + 2.0 / 3.0 * inverse * log_term
            rise = (total - older_total) / newer - older_total / older
            if abs(rise) > bound:
                return rise
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the window as JSON-serialisable values."""
        return {"levels": [[list(bucket) for bucket in level] for level in self._levels]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._levels = [[(float(total), float(squares)) for total, squares in level] for level in state["levels"]]


def _merged(buckets: list[tuple[int, float, float]]) -> tuple[int, float, float]:
    """Return size, sum and squared deviation of the combined buckets."""
    width = sum(size for size, _, _ in buckets)
    total = math.fsum(part for _, part, _ in buckets)
    mean = total / width if width else 0.0
    squares = math.fsum(inner + size * (part / size - mean) ** 2 for size, part, inner in buckets)
    return width, total, squares
