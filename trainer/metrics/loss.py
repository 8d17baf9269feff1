"""The loss as a metric: the mean over samples, independent of batch sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mindspore.train import Metric, rearrange_inputs

from ..checks import any_number
from .predictions import to_numpy


class WeightedMean:
    """Mean of batch values weighted by number of samples, summed in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        self.total: float = 0.0
        self.samples: float = 0

    def update(self, value: Any, samples: Any = 1) -> None:
        """Add one batch, or K batches at once.

        Args:
            value: mean of the batch, or the means of K batches, shape [K].
            samples: number of rows of the batch, or of each batch, shape [K]. For weighted rows, the sum of weights.
        """
        if isinstance(value, float) and isinstance(samples, int):
            self.total, self.samples = self.total + value * samples, self.samples + samples
            return
        values = np.asarray(to_numpy(value), np.float64).reshape(-1)
        counts = np.broadcast_to(np.asarray(samples).reshape(-1), values.shape)
        self.total += float(np.dot(values, counts))
        self.samples += counts.sum(dtype=np.int64 if counts.dtype.kind == "i" else np.float64).item()

    def eval(self) -> float:
        """Return the mean; NaN without samples."""
        return self.total / self.samples if self.samples else float("nan")

    def state_dict(self) -> dict[str, Any]:
        return {"json": {"total": self.total, "samples": self.samples}, "arrays": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.total, self.samples = float(state["json"]["total"]), any_number("samples", state["json"]["samples"])


class Loss(WeightedMean, Metric):
    """Mean loss over samples, with each batch weighted by its rows; NaN without rows."""

    higher_is_better = False

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        """Add a batch.

        Args:
            inputs: the loss, as a scalar (batch mean) or one value per row. A scalar may be followed by the number of
                rows (default 1).
        """
        loss = to_numpy(inputs[0], "loss")
        self.add(loss, int(inputs[1]) if len(inputs) > 1 else max(loss.size, 1))

    def add(self, loss: Any, samples: float) -> None:
        """Add a batch.

        Args:
            loss: the batch mean, or one value per row.
            samples: number of rows, or the sum of their weights.
        """
        super().update(to_numpy(loss, "loss").mean(dtype=np.float64), samples)
