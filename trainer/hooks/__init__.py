"""What the trainer takes from the package `callbacks`: the one place that names it.

A user's own ``callbacks.py`` may be found under that name; the package is then ``mindspore_trainer.callbacks``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mindspore_trainer import home_of

if TYPE_CHECKING:
    from callbacks import Callback as Callback
    from callbacks import CallbackList as CallbackList
    from callbacks import History as History
    from callbacks import ProgressBar as ProgressBar
    from callbacks import adapt as adapt
    from callbacks._support.argument_errors import ConfigurationError as ConfigurationError
    from callbacks._support.argument_errors import TrainerError as TrainerError
    from callbacks._support.argument_errors import did_you_mean as did_you_mean
    from callbacks._support.argument_errors import nearest as nearest
    from callbacks._support.arguments import any_number as any_number
    from callbacks._support.arguments import choice as choice
    from callbacks._support.arguments import function as function
    from callbacks._support.arguments import is_number as is_number
    from callbacks._support.arguments import is_whole as is_whole
    from callbacks._support.arguments import number as number
    from callbacks._support.arguments import refuse as refuse
    from callbacks._support.arguments import whole as whole
    from callbacks._support.cadence import Every as Every
    from callbacks._support.lazy import lazy_names as lazy_names
    from callbacks.mindspore_adapter import train_network as train_network

_HOMES = {
    **dict.fromkeys(("ConfigurationError", "TrainerError", "did_you_mean", "nearest"), "._support.argument_errors"),
    **dict.fromkeys(
        ("any_number", "choice", "function", "is_number", "is_whole", "number", "refuse", "whole"),
        "._support.arguments",
    ),
    "Every": "._support.cadence",
    **dict.fromkeys(
        ("MASK", "is_masked", "is_secret", "mask_text", "mask_value", "remember_secret"), "._support.masking"
    ),
    "lazy_names": "._support.lazy",
    "train_network": ".mindspore_adapter",
}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    package = home_of("callbacks")
    globals()[name] = value = getattr(import_module(package + _HOMES.get(name, "")), name)
    return value
