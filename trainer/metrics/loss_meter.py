"""The mean training loss, without a host copy between the moments when somebody reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.metrics import WeightedMean
from trainer.state import StepOutputs, host_losses

HELD_LOSSES = 1024


class LossMeter:
    """Sample-weighted mean loss that leaves losses on the device until somebody reads it."""

    def __init__(self) -> None:
        self._mean = WeightedMean()
        self._held: list[tuple[Any, int, int]] = []

    def add(self, outputs: StepOutputs) -> None:
        """Take the losses of one call; folds every `HELD_LOSSES` calls so that memory stays bounded."""
        self._held.append((outputs.losses_device, outputs.num_steps, outputs.num_samples))
        if len(self._held) >= HELD_LOSSES:
            self._fold()

    def _fold(self) -> None:
        if not self._held:
            return
        losses = [host_losses(device, steps) for device, steps, _ in self._held]
        rows = [samples // steps for _, steps, samples in self._held]
        self._mean.update(np.concatenate(losses), np.repeat(rows, [len(values) for values in losses]))
        self._held.clear()

    def value(self) -> float | None:
        """Return the mean so far, or None without steps."""
        self._fold()
        return self._mean.eval() if self._mean.samples else None

    def clear(self) -> None:
        """Start anew."""
        self._mean.clear()
        self._held.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        self._fold()
        return self._mean.state_dict()["json"]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.clear()
        self._mean.load_state_dict({"json": state, "arrays": {}})
