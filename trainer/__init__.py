"""A trainer for MindSpore: finite datasets and endless streams with one loop.

    from trainer import Trainer
    Trainer(net, loss, opt, amp_level="O2").fit(ds)

Importing the package does not import MindSpore; the first use of a name that needs it does.
"""

from __future__ import annotations

from .hooks import lazy_names

__version__ = "0.1.0"

_HOMES = {
    "Trainer": ".trainer",
    "Limits": ".run.limits",
    "ParquetFolder": ".data.parquet_folder",
    "MultiTaskLoss": ".graph.multi_task",
    "Window": ".metrics.window",
}
_CALLBACKS = (
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
)
_HOMES.update(dict.fromkeys(_CALLBACKS, ".hooks"))
__all__ = ["__version__", *sorted(_HOMES)]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
