"""Metrics of predictions, for evaluations and windows; drift detectors.

Names are imported on first use, because windows and drift detectors work without MindSpore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callbacks.lazy_names import declared_imports, lazy_names

if TYPE_CHECKING:
    from .adapters import BySlice as BySlice
    from .binary import Auc as Auc
    from .binary import BinaryMetrics as BinaryMetrics
    from .binary import Calibration as Calibration
    from .binary import NormalizedEntropy as NormalizedEntropy
    from .calibrator import Calibrator as Calibrator
    from .classes import Accuracy as Accuracy
    from .classes import LogLoss as LogLoss
    from .loss import Loss as Loss
    from .loss import WeightedMean as WeightedMean
    from .ranking import Gauc as Gauc
    from .ranking import HitRateAtK as HitRateAtK
    from .ranking import Ndcg as Ndcg
    from .ranking import RecallAtK as RecallAtK
    from .registry import clear_metrics as clear_metrics
    from .registry import get_metrics as get_metrics
    from .registry import metric_names as metric_names
    from .registry import numbers as numbers
    from .registry import read_metric as read_metric
    from .registry import read_metrics as read_metrics
    from .registry import update_metrics as update_metrics
    from .regression import R2 as R2
    from .regression import Bias as Bias
    from .regression import Mae as Mae
    from .regression import PoissonDeviance as PoissonDeviance
    from .regression import Rmse as Rmse
    from .window_metric import WindowMetric as WindowMetric

_HOMES = declared_imports(__file__)
__all__ = sorted(_HOMES)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
