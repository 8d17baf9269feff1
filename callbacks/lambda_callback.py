"""`LambdaCallback`: a callback whose hooks are given as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer.checks import function, is_whole, refuse
from trainer.errors import ConfigurationError, did_you_mean

from .callback import HOOKS, Callback


class LambdaCallback(Callback):
    """Calls a given function for each hook, with the trainer as argument.

    ``LambdaCallback(on_train_end=lambda trainer: ...)`` calls the function at the end of the training.

    Args:
        order: position among callbacks, low first.
        hooks: hook name (see `callbacks.callback.HOOKS`) -> function of one argument.

    Raises:
        ConfigurationError: a name is not a hook.
        TypeError: a value is not callable, or `order` is not a whole number.
    """

    def __init__(self, *, order: int = 0, **hooks: Callable[[Any], Any]) -> None:
        if not is_whole(order):
            refuse("LambdaCallback(order=...)", "a whole number", order)
        self.order = order
        for name, hook in hooks.items():
            if name not in HOOKS:
                raise ConfigurationError(
                    f"LambdaCallback has no hook {name!r}{did_you_mean(name, HOOKS)}; hooks: {', '.join(HOOKS)}"
                )
            function(f"LambdaCallback({name}=...)", hook, optional=False)
            setattr(self, name, hook)
