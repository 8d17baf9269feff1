"""Metrics of predictions: over an evaluation, over a stream's windows, and detectors of drift in them.

Names are imported when first used: windows and drift detectors need no MindSpore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..hooks import lazy_names

if TYPE_CHECKING:
    from .adapters import BySlice
    from .binary_metrics import Auc, BinaryMetrics, Calibration, NormalizedEntropy
    from .classes import Accuracy, LogLoss
    from .ranking import Gauc, HitRateAtK, Ndcg, RecallAtK
    from .registry import (
        Loss,
        WeightedMean,
        clear_metrics,
        get_metrics,
        metric_names,
        numbers,
        read_metric,
        read_metrics,
        update_metrics,
    )
    from .regression import R2, Bias, Mae, Rmse
    from .window_metric import WindowMetric

_HOMES = {
    "Accuracy": ".classes",
    "Auc": ".binary_metrics",
    "Bias": ".regression",
    "BinaryMetrics": ".binary_metrics",
    "BySlice": ".adapters",
    "Calibration": ".binary_metrics",
    "Gauc": ".ranking",
    "HitRateAtK": ".ranking",
    "LogLoss": ".classes",
    "Loss": ".registry",
    "Mae": ".regression",
    "Ndcg": ".ranking",
    "NormalizedEntropy": ".binary_metrics",
    "R2": ".regression",
    "RecallAtK": ".ranking",
    "Rmse": ".regression",
    "WeightedMean": ".registry",
    "WindowMetric": ".window_metric",
    "clear_metrics": ".registry",
    "get_metrics": ".registry",
    "metric_names": ".registry",
    "numbers": ".registry",
    "read_metric": ".registry",
    "read_metrics": ".registry",
    "update_metrics": ".registry",
}
__all__ = [
    "R2",
    "Accuracy",
    "Auc",
    "Bias",
    "BinaryMetrics",
    "BySlice",
    "Calibration",
    "Gauc",
    "HitRateAtK",
    "LogLoss",
    "Loss",
    "Mae",
    "Ndcg",
    "NormalizedEntropy",
    "RecallAtK",
    "Rmse",
    "WeightedMean",
    "WindowMetric",
    "clear_metrics",
    "get_metrics",
    "metric_names",
    "numbers",
    "read_metric",
    "read_metrics",
    "update_metrics",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
