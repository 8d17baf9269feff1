"""A trainer for MindSpore: finite datasets and endless streams with one loop.

    from trainer import Trainer
    Trainer(net, loss, opt, amp_level="O2").fit(ds)

Importing the package does not import MindSpore; the first use of a name that needs it does.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Trainer": ".trainer",
    "Limits": ".run.limits",
    "Window": ".metrics.prequential",
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


def __getattr__(name: str) -> Any:
    return _lazy_names()[0](name)


def __dir__() -> list[str]:
    return _lazy_names()[1]()


def _lazy_names() -> Any:
    try:
        from callbacks._support.lazy import lazy_names
    except ImportError as error:
        raise shadow_error() or error from None
    return lazy_names(__name__, _HOMES)


def shadow_error() -> ImportError | None:
    """Return an error that says which file hides the `callbacks` package, or None when none does."""
    import callbacks

    if hasattr(callbacks, "__path__"):
        return None
    return ImportError(
        f"{callbacks.__file__} hides the package 'callbacks' that trainer needs; rename that file "
        "(for example to my_callbacks.py)"
    )
