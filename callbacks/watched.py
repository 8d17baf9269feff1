"""`Watched`: a monitored metric; `Patience`: counts values without improvement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainer.checks import choice, nonempty_text, number, whole
from trainer.errors import ConfigurationError

from .callback import Callback, Trainer

_STREAM_VALUES = ("lag", "staleness", "rows_per_second", "queue_depth", "late_rows")


def is_window_name(name: str) -> bool:
    """Return whether `name` is the full name of a window value: "lag", but not "auc"."""
    return name in _STREAM_VALUES or name.startswith(("window_", "decayed_", "lifetime_", "drift_", "stream_"))


def window_value(window: Mapping[str, float] | None, name: str) -> float | None:
    """Return metric `name` of a window, or None; "auc" matches "window_auc"."""
    values = [window[key] for key in (name, f"window_{name}") if window and key in window]
    return float(values[0]) if values else None


def require_settable_rate(owner: str, trainer: Trainer) -> None:
    """Check before the run that the learning rate can be changed."""
    if trainer.learning_rate is None:
        raise ConfigurationError(f"{owner} needs an optimizer with a constant learning rate; this run has none")
    if not trainer.learning_rates:
        trainer.learning_rate = trainer.learning_rate  # raises for a schedule


class Watched:
    """A monitored metric with its direction and the minimum change that counts.

    The name determines the source. "loss" and, with several tasks, "<task>_loss" are means of a training epoch; "val_*"
    are from validation; all other names are from online windows ("window_auc", "lifetime_auc", "lag",
    "window_<task>_loss").

    Args:
        owner: class name of the callback, for messages.
        name: name of the metric.
        mode: "min", "max", or "auto", which uses the metric's ``higher_is_better``; see `use_direction`.
        min_delta: minimum change that counts as an improvement, in the unit of the metric.
    """

    def __init__(self, owner: str, name: str, mode: str = "auto", min_delta: float = 0.0) -> None:
        self.owner = owner
        self.name = nonempty_text(f"{owner}(monitor=...)", name, "the name of a metric such as 'val_loss'")
        self.requested_mode = self.mode = choice(f"{owner}(mode=...)", mode, ("auto", "min", "max"))
        self.min_delta = number(f"{owner}(min_delta=...)", min_delta, minimum=0.0)

    def use_direction(self, higher_is_better: bool | None) -> None:
        """Set the direction for mode "auto"; raise an error if the metric declares none."""
        if self.requested_mode != "auto":
            return
        if higher_is_better is None:
            raise ConfigurationError(
                f"{self.owner}(mode='auto') cannot tell whether more or less of {self.name!r} is better: the metric "
                "declares no higher_is_better; give mode='min' or mode='max'"
            )
        self.mode = "max" if higher_is_better else "min"

    def hook(self, trainer: Trainer) -> str:
        """Return the hook in which a new value of this metric is available."""
        if self.name == "loss" or _is_task_loss(trainer, self.name):
            return "on_train_epoch_end"
        return "on_eval_end" if self.name.startswith("val_") else "on_window_end"

    def read(self, trainer: Trainer) -> float | None:
        """Return the latest value of the metric, or None."""
        state = trainer.state
        if _is_task_loss(trainer, self.name):
            return float(state.task_losses[self.name])
        if self.hook(trainer) == "on_window_end":
            return window_value(state.window, self.name)
        value = state.train_loss if self.name == "loss" else state.metrics.get(self.name)
        return None if value is None else float(value)

    def better(self, value: float, best: float | None) -> bool:
        """Return whether `value` beats `best` by `min_delta`.

        NaN never beats `best`; any other value beats a `best` of None.
        """
        if math.isnan(value) or best is None:
            return not math.isnan(value)
        return value < best - self.min_delta if self.mode == "min" else value > best + self.min_delta


def _is_task_loss(trainer: Trainer, name: str) -> bool:
    return trainer.state.phase == "fit" and name in trainer.state.task_losses


class Patience(Callback):
    """Tracks a metric's best value and the measurements without improvement.

    A measurement is a validation ("val_*"), a closed online window ("window_*") or an epoch's mean loss ("loss").
    Subclasses respond to it in `handle_measurement`.

    Args:
        monitor: name of the metric; see `Watched`.
        patience: number of measurements without improvement after which `out_of_patience` returns True.
        min_delta, mode: see `Watched`.

    Attributes:
        best: best value so far, or None.
        best_step: optimizer step of the best value, or None.
        wait: measurements since the last improvement.
    """

    minimum_patience = 1

    def __init__(self, monitor: str, patience: int, min_delta: float, mode: str) -> None:
        owner = type(self).__name__
        self.watched = Watched(owner, monitor, mode, min_delta)
        self.monitor = monitor
        self.patience = whole(f"{owner}(patience=...)", patience, self.minimum_patience)
        self._clear()

    def _clear(self) -> None:
        self.best: float | None = None
        self.best_step: int | None = None
        self.wait = 0

    def handle_measurement(self, trainer: Trainer, value: float, improved: bool) -> None:
        """Respond to a measurement; `improved` says whether `value` is the new best."""
        raise NotImplementedError

    def out_of_patience(self, good: bool) -> bool:
        """Count a measurement; return whether patience ran out. `good` resets the count."""
        self.wait = 0 if good else self.wait + 1
        return self.wait >= self.patience

    def setup(self, trainer: Trainer) -> None:
        """Clear the state of earlier runs; a snapshot restored afterwards replaces it."""
        self._clear()

    def use_direction(self, higher_is_better: bool | None) -> None:
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
        self.handle_measurement(trainer, value, improved)

    def on_eval_end(self, trainer: Trainer) -> None:
        self._measure("on_eval_end", trainer)

    def on_window_end(self, trainer: Trainer) -> None:
        self._measure("on_window_end", trainer)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        self._measure("on_train_epoch_end", trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"monitor": self.monitor, "best": self.best, "best_step": self.best_step, "wait": self.wait}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the best value and the wait, if they are of the same metric."""
        best = number("best", state["best"], optional=True)
        best_step = whole("best_step", state["best_step"], 0, optional=True)
        self.best, self.best_step, self.wait = best, best_step, whole("wait", state["wait"], 0)
        if state.get("monitor", self.monitor) != self.monitor:  # not in snapshots of earlier releases
            self._clear()
