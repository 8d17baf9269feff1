"""What the trainer takes from the package `callbacks`: the one place that names it.

A user's own ``callbacks.py`` may be found under that name; the package is then ``mindspore_trainer.callbacks``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mindspore_trainer import home_of

if TYPE_CHECKING:
    pass

_HOMES = {
    **dict.fromkeys(("ConfigurationError", "TrainerError", "did_you_mean", "nearest"), "._support.argument_errors"),
    **dict.fromkeys(
        ("choice", "function", "is_number", "is_whole", "number", "refuse", "whole"), "._support.arguments"
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
