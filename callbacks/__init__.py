"""Callbacks: one file each, `callback.py` holds the contract.

Order within a hook: callbacks of order 0 as given, then `ProgressBar` (10), `ReduceLROnPlateau` (40),
`EarlyStopping` (50), `TerminateOnNaN` and `SkipNonFinite` (90), `ModelCheckpoint` (100).
"""

from callbacks.cadence import Every
from callbacks.callback import HOOKS, Callback, CallbackList
from callbacks.drift_monitor import DriftMonitor
from callbacks.early_stopping import EarlyStopping
from callbacks.health_file import HealthFile
from callbacks.history import History
from callbacks.lambda_callback import LambdaCallback
from callbacks.learning_rate import LearningRateMonitor, ReduceLROnPlateau
from callbacks.loss_monitor import LossMonitor
from callbacks.mindspore_adapter import adapt
from callbacks.model_checkpoint import ModelCheckpoint
from callbacks.non_finite import SkipNonFinite, TerminateOnNaN
from callbacks.progress_bar import ProgressBar
from callbacks.prometheus import PrometheusMonitor
from callbacks.tensorboard import TensorBoard
from callbacks.time_monitor import TimeMonitor

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
