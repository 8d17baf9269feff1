"""Metrics of predictions: over an evaluation, over a stream's windows, and detectors of drift in them.

Names are imported when first used: the figures of a stream need no MindSpore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..hooks import lazy_names

if TYPE_CHECKING:
    from .binary_metrics import Auc, Calibration, LogLoss, NormalizedEntropy
    from .registry import (
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
        "Accuracy": ".registry",
        "Auc": ".binary_metrics",
        "Calibration": ".binary_metrics",
        "LogLoss": ".binary_metrics",
        "Loss": ".registry",
        "NormalizedEntropy": ".binary_metrics",
        "WeightedMean": ".registry",
        "get_metrics": ".registry",
        "metric_names": ".registry",
        "read_metrics": ".registry",
        "update_metrics": ".registry",
    },
)
