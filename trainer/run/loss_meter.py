"""The mean training loss, summed at the moments when somebody reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..metrics import WeightedMean
from ..state import StepOutputs
from .output_buffer import OutputBuffer

HELD_CALLS = 1024


class LossMeter:
    """Sample-weighted mean loss; losses are put aside as they come and summed when somebody reads it."""

    def __init__(self) -> None:
        self._mean = WeightedMean()
        self._losses = OutputBuffer()
        self._calls: list[tuple[int, int]] = []

    def add(self, outputs: StepOutputs) -> None:
        """Take the losses of one call; folds every `HELD_CALLS` calls so that memory stays bounded."""
        self._losses.add(outputs.losses_device, outputs.num_steps)
        self._calls.append((outputs.num_steps, outputs.num_samples))
        if len(self._calls) >= HELD_CALLS:
            self._fold()

    def _fold(self) -> None:
        if not self._calls:
            return
        steps, samples = np.array(self._calls).T
        self._calls = []
        self._mean.update(self._losses.read(), np.repeat(samples // steps, steps))

    def value(self) -> float | None:
        """Return the mean so far, or None without steps."""
        self._fold()
        return self._mean.eval() if self._mean.samples else None

    def clear(self) -> None:
        """Start anew."""
        self._mean.clear()
        self._losses, self._calls = OutputBuffer(), []

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        self._fold()
        return self._mean.state_dict()["json"]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.clear()
        self._mean.load_state_dict({"json": state, "arrays": {}})
