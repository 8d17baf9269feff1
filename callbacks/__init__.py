"""Callbacks: one file each, `callback.py` holds the contract.

Order within a hook: callbacks of order 0 as given, then `ProgressBar` (10), `ReduceLROnPlateau` (40),
`EarlyStopping` (50), `TerminateOnNaN` and `SkipNonFinite` (90), `ModelCheckpoint` (100).

Names are imported when first used, so that what nobody uses costs no time and no dependency.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._support.lazy import lazy_names

if TYPE_CHECKING:
    from ._support.cadence import Every
    from .callback import HOOKS, Callback, CallbackList
    from .drift_monitor import DriftMonitor
    from .early_stopping import EarlyStopping
    from .health_file import HealthFile
    from .history import History
    from .lambda_callback import LambdaCallback
    from .learning_rate_monitor import LearningRateMonitor, ReduceLROnPlateau
    from .loss_monitor import LossMonitor
    from .mindspore_adapter import adapt
    from .model_checkpoint import ModelCheckpoint
    from .non_finite import SkipNonFinite, TerminateOnNaN
    from .progress_bar import ProgressBar
    from .prometheus import PrometheusMonitor
    from .tensorboard import TensorBoard
    from .time_monitor import TimeMonitor

__all__ = [
    "HOOKS",
    "Callback",
    "CallbackList",
    "DriftMonitor",
    "EarlyStopping",
    "Every",
    "HealthFile",
    "History",
    "LambdaCallback",
    "LearningRateMonitor",
    "LossMonitor",
    "ModelCheckpoint",
    "ProgressBar",
    "PrometheusMonitor",
    "ReduceLROnPlateau",
    "SkipNonFinite",
    "TensorBoard",
    "TerminateOnNaN",
    "TimeMonitor",
    "adapt",
]

_HOMES = {
    "Every": "._support.cadence",
    "HOOKS": ".callback",
    "Callback": ".callback",
    "CallbackList": ".callback",
    "DriftMonitor": ".drift_monitor",
    "EarlyStopping": ".early_stopping",
    "HealthFile": ".health_file",
    "History": ".history",
    "LambdaCallback": ".lambda_callback",
    "LearningRateMonitor": ".learning_rate_monitor",
    "ReduceLROnPlateau": ".learning_rate_monitor",
    "LossMonitor": ".loss_monitor",
    "adapt": ".mindspore_adapter",
    "ModelCheckpoint": ".model_checkpoint",
    "SkipNonFinite": ".non_finite",
    "TerminateOnNaN": ".non_finite",
    "ProgressBar": ".progress_bar",
    "PrometheusMonitor": ".prometheus",
    "TensorBoard": ".tensorboard",
    "TimeMonitor": ".time_monitor",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
