"""A trainer for MindSpore: finite datasets and endless streams with one loop.

    from trainer import Trainer
    Trainer(net, loss, opt, amp_level="O2").fit(ds)

Importing the package does not import MindSpore; the first use of a name that needs it does.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Trainer": "trainer.trainer",
    "Limits": "trainer.limits",
    "Window": "trainer.prequential",
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from trainer.errors import did_you_mean

        raise AttributeError(f"module 'trainer' has no attribute {name!r}{did_you_mean(name, _HOMES)}")
    _refuse_shadow()
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
