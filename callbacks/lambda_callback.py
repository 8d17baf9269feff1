"""`LambdaCallback`: functions as a callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._support.arguments import nearest
from .callback import HOOKS, Callback


class LambdaCallback(Callback):
    """Calls the functions given, each with the trainer: ``LambdaCallback(on_train_end=lambda trainer: ...)``.

    Args:
        order: position among callbacks, low first.
        hooks: functions of one argument by hook name (`callbacks.callback.HOOKS`).

    Raises:
        ValueError: a name is not a hook.
        TypeError: a value cannot be called, or `order` is not a whole number.
    """

    def __init__(self, *, order: int = 0, **hooks: Callable[[Any], Any]) -> None:
        if isinstance(order, bool) or not isinstance(order, int):
            raise TypeError(f"LambdaCallback(order=...) takes a whole number; received {order!r}")
        self.order = order
        for name, hook in hooks.items():
            if name not in HOOKS:
                raise ValueError(
                    f"LambdaCallback has no hook {name!r}{nearest(name, HOOKS)}; hooks: {', '.join(HOOKS)}"
                )
            if not callable(hook):
                raise TypeError(f"LambdaCallback({name}=...) takes a function of the trainer; received {hook!r}")
            setattr(self, name, hook)
