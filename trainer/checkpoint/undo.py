"""`Undo`: remembers small objects, to put them back when a later step fails."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import nn

# Parts of stateful objects that have no `load_state_dict` of their own, by the module of their class.
_ROOMS = ("trainer.metrics.", "trainer.run.", "trainer.state.", "callbacks.", "mindspore_trainer.callbacks.")


class Undo:
    """Remembers attributes, containers and arrays of stateful objects, and of the stateful objects they hold.

    Cells, data sources and whatever else has no `load_state_dict` are held by reference: their insides are not copied.

    Args:
        leave: objects not to be looked into.
    """

    def __init__(self, *leave: Any) -> None:
        self._seen = {id(value) for value in leave}
        self._alive: list[Any] = list(leave)  # so that no number of `_seen` is given to another object
        self._steps: list[Callable[[], Any]] = []

    def remember(self, value: Any) -> None:
        """Remember `value` as it is now."""
        if id(value) in self._seen or isinstance(value, nn.Cell | str | int | float | bytes | None):
            return
        self._seen.add(id(value))
        self._alive.append(value)
        if isinstance(value, np.ndarray):
            kept = value.copy()
            self._steps.append(lambda: _write(value, kept))
        elif isinstance(value, dict):
            self._hold(value, value.update)
            self._remember_all(value.values())
        elif isinstance(value, list | deque):
            self._hold(value, value.extend)
            self._remember_all(value)
        elif isinstance(value, tuple):
            self._remember_all(value)
        elif hasattr(value, "__dict__") and _is_stateful(value):
            self._hold(vars(value), vars(value).update)
            self._remember_all(vars(value).values())

    def _remember_all(self, values: Any) -> None:
        for value in list(values):
            self.remember(value)

    def _hold(self, container: Any, fill: Callable[[Any], Any]) -> None:
        kept = copy.copy(container)
        self._steps.append(lambda: (container.clear(), fill(kept)))

    def put_back(self) -> None:
        """Make everything what it was when it was remembered."""
        for step in reversed(self._steps):
            step()


def _write(array: np.ndarray, kept: np.ndarray) -> None:
    if array.flags.writeable:
        array[...] = kept


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "load_state_dict") or f"{type(value).__module__}.".startswith(_ROOMS)
