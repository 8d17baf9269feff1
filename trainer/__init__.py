"""A trainer for MindSpore: finite datasets and endless streams with one loop.

    from trainer import Trainer
    Trainer(net, loss, opt, amp_level="O2").fit(ds)

Importing the package does not import MindSpore; the first use of a name that needs it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .hooks import lazy_names

if TYPE_CHECKING:
    from callbacks import Callback as Callback
    from callbacks import CallbackList as CallbackList
    from callbacks import DriftMonitor as DriftMonitor
    from callbacks import EarlyStopping as EarlyStopping
    from callbacks import Every as Every
    from callbacks import HealthFile as HealthFile
    from callbacks import History as History
    from callbacks import LambdaCallback as LambdaCallback
    from callbacks import LearningRateMonitor as LearningRateMonitor
    from callbacks import LossMonitor as LossMonitor
    from callbacks import ModelCheckpoint as ModelCheckpoint
    from callbacks import ProgressBar as ProgressBar
    from callbacks import PrometheusMonitor as PrometheusMonitor
    from callbacks import ReduceLROnPlateau as ReduceLROnPlateau
    from callbacks import SkipNonFinite as SkipNonFinite
    from callbacks import TensorBoard as TensorBoard
    from callbacks import TerminateOnNaN as TerminateOnNaN
    from callbacks import TimeMonitor as TimeMonitor

    from .compat.model import Model as Model
    from .compat.model import RecModel as RecModel
    from .data.parquet_folder import ParquetFolder as ParquetFolder
    from .graph.multi_task import MultiTaskLoss as MultiTaskLoss
    from .metrics.window import Window as Window
    from .run.limits import Limits as Limits
    from .trainer import Trainer as Trainer

__version__ = "0.1.0"

_HOMES = {
    "Trainer": ".trainer",
    "Model": ".compat.model",
    "RecModel": ".compat.model",
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
