"""Callbacks of the trainer; `callback.py` defines their hooks.

Within a hook, callbacks run by ascending `order`, and callbacks of equal order as given: order 0 by default, then
`ProgressBar` (10), `ReduceLROnPlateau` (40), `EarlyStopping` (50), `TerminateOnNaN` and `SkipNonFinite` (90),
`ModelCheckpoint` (100).

Names are imported on first use, so unused callbacks need no import time and no dependencies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mindspore_trainer as _named  # noqa: F401 - raises an error if a user's file hides a package

from .lazy_names import declared_imports, lazy_names

if TYPE_CHECKING:
    from trainer.cadence import Every as Every

    from .callback import HOOKS as HOOKS
    from .callback import Callback as Callback
    from .callback import CallbackList as CallbackList
    from .device_stats import DeviceStats as DeviceStats
    from .drift_monitor import DriftMonitor as DriftMonitor
    from .early_stopping import EarlyStopping as EarlyStopping
    from .history import History as History
    from .lambda_callback import LambdaCallback as LambdaCallback
    from .learning_rate_monitor import LearningRateMonitor as LearningRateMonitor
    from .learning_rate_monitor import ReduceLROnPlateau as ReduceLROnPlateau
    from .loggers.logger import Logger as Logger
    from .loggers.mlflow import MLflowLogger as MLflowLogger
    from .loggers.tensorboard import TensorBoard as TensorBoard
    from .loggers.text_files import CSVLogger as CSVLogger
    from .loggers.text_files import JSONLinesLogger as JSONLinesLogger
    from .loggers.wandb import WandbLogger as WandbLogger
    from .loss_monitor import LossMonitor as LossMonitor
    from .lr_finder import LRFinder as LRFinder
    from .mindspore_adapter import adapt as adapt
    from .model_checkpoint import ModelCheckpoint as ModelCheckpoint
    from .non_finite import SkipNonFinite as SkipNonFinite
    from .non_finite import TerminateOnNaN as TerminateOnNaN
    from .profiler import Profiler as Profiler
    from .progress_bar import ProgressBar as ProgressBar
    from .prometheus import PrometheusMonitor as PrometheusMonitor
    from .run_record import RunRecord as RunRecord
    from .time_monitor import TimeMonitor as TimeMonitor
    from .weight_averages import EMA as EMA
    from .weight_averages import SWA as SWA

_HOMES = declared_imports(__file__)
if not TYPE_CHECKING:  # type checkers already export the imports above
    __all__ = sorted(_HOMES)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
