"""A drift detector that reports a rise of the mean in a sequence of losses.

`PageHinkley` implements the test of E. S. Page, "Continuous Inspection Schemes", Biometrika 41, 1954. Non-finite values
are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..checks import number, whole


class PageHinkley:
    """Detects a rise of the mean from the accumulated excess over the running mean.

    A rise of the mean by d is detected after about threshold / (d - delta) values; a fall is never reported. The
    detector restarts after each detection.

    Args:
        threshold: how far the accumulated excess may rise above its minimum before a rise is reported, in units of the
            loss.
        delta: tolerated rise of the mean, in units of the loss.
        min_values: minimum number of values before a rise can be reported.

    Raises:
        ConfigurationError: threshold not positive, delta negative, min_values less than 1.
    """

    def __init__(self, threshold: float = 0.1, delta: float = 0.005, min_values: int = 5) -> None:
        self.threshold = number("threshold", threshold, above=0, below=math.inf)
        self.delta = number("delta", delta, minimum=0, below=math.inf)
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
