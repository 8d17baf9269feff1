"""`Patience`: what callbacks that act when a metric stops improving have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer.checks import number, whole

from ..callback import Callback
from .metric import Watched

if TYPE_CHECKING:
    from trainer.trainer import Trainer


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
