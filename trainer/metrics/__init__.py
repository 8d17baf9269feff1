"""Metrics of predictions: over an evaluation, over a stream's windows, and detectors of drift in them.

Names are imported when first used: the figures of a stream need no MindSpore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.lazy import lazy_names

if TYPE_CHECKING:
    from trainer.metrics.binary_metrics import Auc, Calibration, LogLoss, NormalizedEntropy
    from trainer.metrics.registry import (
        Accuracy,
        Loss,
        WeightedMean,
        get_metrics,
        metric_names,
        read_metrics,
        update_metrics,
    )

__all__ = [
    "Accuracy",
    "Auc",
    "Calibration",
    "LogLoss",
    "Loss",
    "NormalizedEntropy",
    "WeightedMean",
    "get_metrics",
    "metric_names",
    "read_metrics",
    "update_metrics",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Accuracy": "trainer.metrics.registry",
        "Auc": "trainer.metrics.binary_metrics",
        "Calibration": "trainer.metrics.binary_metrics",
        "LogLoss": "trainer.metrics.binary_metrics",
        "Loss": "trainer.metrics.registry",
        "NormalizedEntropy": "trainer.metrics.binary_metrics",
        "WeightedMean": "trainer.metrics.registry",
        "get_metrics": "trainer.metrics.registry",
        "metric_names": "trainer.metrics.registry",
        "read_metrics": "trainer.metrics.registry",
        "update_metrics": "trainer.metrics.registry",
    },
)
