"""`Watched`: the metric a callback follows; `Patience`: what callbacks share that act when it stops improving."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer.checks import choice, number, refuse, whole
from trainer.errors import ConfigurationError

from .callback import Callback

if TYPE_CHECKING:
    from trainer.trainer import Trainer


MODES = ("auto", "min", "max")
_STREAM = ("lag", "staleness", "rows_per_second", "queue_depth")


def is_window_name(name: str) -> bool:
    """Return whether `name` is the full name of a value of a window: "decayed_auc" or "lag", but not "auc"."""
    return name in _STREAM or name.startswith(("window_", "decayed_", "lifetime_"))


def window_value(window: Mapping[str, float] | None, name: str) -> float | None:
    """Return the metric `name` of a closed window, or None; "auc" also finds "window_auc"."""
    for key in (name, f"window_{name}"):
        if window and key in window:
            return float(window[key])
    return None


class Watched:
    """A metric by name, with its direction and the least change that counts.

    Names: "loss" and, of several tasks, "<task>_loss" (means of the training epoch), "val_*" (validation), all others
    online windows ("window_auc", "lifetime_auc", "lag", "window_<task>_loss").

    Args:
        owner: class name of the callback, for messages.
        name: name of the metric.
        mode: "min", "max", or "auto": as the metric's ``higher_is_better`` says, see `use_direction`.
        min_delta: least improvement that counts, in the metric's unit.
    """

    def __init__(self, owner: str, name: str, mode: str = "auto", min_delta: float = 0.0) -> None:
        if not isinstance(name, str) or not name:
            refuse(f"{owner}(monitor=...)", "the name of a metric such as 'val_loss'", name)
        self.owner, self.name = owner, name
        self.given_mode = self.mode = choice(f"{owner}(mode=...)", mode, MODES)
        self.min_delta = number(f"{owner}(min_delta=...)", min_delta, least=0.0)

    def use_direction(self, higher_is_better: bool | None) -> None:
        """Take the direction that the metric declares, where the mode is "auto".

        Raises:
            ConfigurationError: the metric declares none and no mode was given.
        """
        if self.given_mode != "auto":
            return
        if higher_is_better is None:
            raise ConfigurationError(
                f"{self.owner}(mode='auto') cannot tell whether more or less of {self.name!r} is better: the metric "
                "declares no higher_is_better; give mode='min' or mode='max'"
            )
        self.mode = "max" if higher_is_better else "min"

    def hook(self, trainer: Trainer) -> str:
        """Return the hook in which a new value of this metric can be read."""
        if self.name == "loss" or self._of_task(trainer):
            return "on_train_epoch_end"
        return "on_eval_end" if self.name.startswith("val_") else "on_window_end"

    def _of_task(self, trainer: Trainer) -> bool:
        return trainer.state.phase == "fit" and self.name in trainer.state.task_losses

    def read(self, trainer: Trainer) -> float | None:
        """Return the newest value, or None when there is none; call it in `hook` for a fresh one."""
        state = trainer.state
        if self._of_task(trainer):
            return float(state.task_losses[self.name])
        if self.hook(trainer) == "on_window_end":
            return window_value(state.window, self.name)
        value = state.train_loss if self.name == "loss" else state.metrics.get(self.name)
        return None if value is None else float(value)

    def better(self, value: float, best: float | None) -> bool:
        """Return whether `value` improves on `best` by more than `min_delta`; NaN never does, None always yields."""
        if math.isnan(value):
            return False
        if best is None:
            return True
        return value < best - self.min_delta if self.mode == "min" else value > best + self.min_delta


class Patience(Callback):
    """Follows a metric, its best value and how many measurements in a row were without an improvement.

    A measurement is a validation ("val_*"), a closed online window ("window_*") or an epoch's mean loss ("loss"); a
    subclass answers it in `measured`.

    Args:
        monitor: name of the metric.
        patience: measurements without improvement that are put up with.
        min_delta: least change that counts as an improvement, in the metric's unit.
        mode: "min", "max", or "auto": as the metric's ``higher_is_better`` says.

    Attributes:
        best: best value so far, or None.
        best_step: optimizer step of the best value, or None.
        wait: measurements since the last improvement.

    Raises:
        ConfigurationError: an argument is not of the kind named; before training, "auto" with a metric that
            declares no direction.
    """

    def __init__(self, monitor: str, patience: int, min_delta: float, mode: str) -> None:
        owner = type(self).__name__
        self.watched = Watched(owner, monitor, mode, min_delta)
        self.monitor = monitor
        self.patience = whole(f"{owner}(patience=...)", patience, 1)
        self._clear()

    def _clear(self) -> None:
        self.best: float | None = None
        self.best_step: int | None = None
        self.wait = 0

    def measured(self, trainer: Trainer, value: float, improved: bool) -> None:
        """Answer a measurement; `improved` says that `value` has just become the best."""
        raise NotImplementedError

    def out_of_patience(self, good: bool) -> bool:
        """Count a measurement and return whether the patience is used up; a `good` one gives all of it back."""
        self.wait = 0 if good else self.wait + 1
        return self.wait >= self.patience

    def setup(self, trainer: Trainer) -> None:
        """Forget earlier runs; a restored snapshot then puts back its own."""
        self._clear()

    def use_direction(self, higher_is_better: bool | None) -> None:
        """Take the metric's direction where the mode is "auto"."""
        self.watched.use_direction(higher_is_better)

    def _measure(self, hook: str, trainer: Trainer) -> None:
        if hook != self.watched.hook(trainer) or trainer.state.phase == "evaluate":
            return
        value = self.watched.read(trainer)
        if value is None:
            return
        improved = self.watched.better(value, self.best)
        if improved:
            self.best, self.best_step = value, trainer.state.progress.global_step
        self.measured(trainer, value, improved)

    def on_eval_end(self, trainer: Trainer) -> None:
        """Measure a validation metric."""
        self._measure("on_eval_end", trainer)

    def on_window_end(self, trainer: Trainer) -> None:
        """Measure a window metric."""
        self._measure("on_window_end", trainer)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Measure the training loss."""
        self._measure("on_train_epoch_end", trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return best value, its step and the patience used up."""
        return {"best": self.best, "best_step": self.best_step, "wait": self.wait}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        best = number("best", state["best"], optional=True)
        best_step = whole("best_step", state["best_step"], 0, optional=True)
        self.best, self.best_step, self.wait = best, best_step, whole("wait", state["wait"], 0)
