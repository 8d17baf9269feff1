"""A trainer for MindSpore: finite datasets and endless streams with one loop.

    from trainer import Trainer
    Trainer(net, loss, opt, amp_level="O2").fit(ds)

Importing the package does not import MindSpore; the first use of a name that needs it does.
"""

from __future__ import annotations

import importlib

from trainer.lazy import lazy_names

__version__ = "0.1.0"

_HOMES = {
    "Trainer": "trainer.trainer",
    "Limits": "trainer.limits",
    "Window": "trainer.metrics.prequential",
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
_HOMES.update(dict.fromkeys(_CALLBACKS, "callbacks"))
__all__ = ["__version__", *sorted(_HOMES)]


def _refuse_shadow() -> None:
    """Say which file hides the `callbacks` package, when a user's own callbacks.py does."""
    package = importlib.import_module("callbacks")
    if not hasattr(package, "__path__"):
        raise ImportError(
            f"{package.__file__} hides the package 'callbacks' that trainer needs; rename that file "
            "(for example to my_callbacks.py)"
        )


__getattr__, __dir__ = lazy_names(__name__, _HOMES, before=_refuse_shadow)
