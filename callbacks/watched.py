"""`Watched`: a monitored metric or sum; `Patience`: counts improvements."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from trainer.checks import choice, number, refuse, whole
from trainer.errors import ConfigurationError

from .callback import Callback, Trainer

logger = logging.getLogger(__name__)

_STREAM = ("lag", "staleness", "rows_per_second", "queue_depth", "late_rows")


def is_window_name(name: str) -> bool:
    """Return whether `name` is a window value's full name: "lag", not "auc"."""
    return name in _STREAM or name.startswith(("window_", "decayed_", "lifetime_", "drift_"))


def window_value(window: Mapping[str, float] | None, name: str) -> float | None:
    """Return metric `name` of a window, or None; "auc" matches "window_auc"."""
    values = [window[key] for key in (name, f"window_{name}") if window and key in window]
    return float(values[0]) if values else None


def require_settable_rate(owner: str, trainer: Trainer) -> None:
    """Refuse a learning rate that cannot be set, now and not in the middle of a run."""
    if trainer.learning_rate is None:
        raise ConfigurationError(f"{owner} needs an optimizer with a constant learning rate; this run has none")
    trainer.learning_rate = trainer.learning_rate  # raises for a schedule


class Watched:
    """A metric, or several with weights: direction and least change that counts.

    Names: "loss" and, of several tasks, "<task>_loss" (means of the training epoch), "val_*" (validation), all others
    online windows ("window_auc", "lifetime_auc", "lag", "window_<task>_loss").

    With several metrics, the value is their weighted sum, subtracting those for which lower is better; a higher value
    is better.

    Args:
        owner: class name of the callback, for messages.
        monitor: name of the metric, or a mapping from names to weights, numbers above 0.
        mode: "min", "max", or "auto": as the metric's ``higher_is_better`` says, see `use_directions`. Several metrics
            go with "auto" alone.
        min_delta: least improvement that counts, in the unit of the value.

    Attributes:
        label: the name, or the sum in words, "0.7 val_auc - 0.3 val_loss", once the directions are known.
    """

    def __init__(
        self, owner: str, monitor: str | Mapping[str, float], mode: str = "auto", min_delta: float = 0.0
    ) -> None:
        self.owner = owner
        self._weights = _weights(owner, monitor)
        self.names = tuple(self._weights)
        self._signs = dict.fromkeys(self.names, 1.0)
        self.label = self.names[0] if isinstance(monitor, str) else ", ".join(self.names)
        self.several = not isinstance(monitor, str)
        self.requested_mode = self.mode = choice(f"{owner}(mode=...)", mode, ("auto", "min", "max"))
        self.min_delta = number(f"{owner}(min_delta=...)", min_delta, least=0.0)
        if self.several and mode != "auto":
            raise ConfigurationError(
                f"{owner}(mode={mode!r}): several metrics go with mode='auto', each in the direction that it declares"
            )

    def use_directions(self, higher_is_better: Mapping[str, bool | None]) -> None:
        """Set the metrics' declared directions for mode "auto"; refuse undeclared ones."""
        if self.requested_mode != "auto":
            return
        for name, higher in higher_is_better.items():
            if higher is None:
                cure = "leave it out" if self.several else "give mode='min' or mode='max'"
                raise ConfigurationError(
                    f"{self.owner}(mode='auto') cannot tell whether more or less of {name!r} is better: the metric "
                    f"declares no higher_is_better; {cure}"
                )
        self.mode = "max" if self.several or higher_is_better[self.names[0]] else "min"
        if not self.several:
            return
        self._signs = {name: 1.0 if higher_is_better[name] else -1.0 for name in self.names}
        parts = [f"{'-' if self._signs[n] < 0 else '+'} {self._weights[n]:g} {n}" for n in self.names]
        self.label = " ".join(parts).removeprefix("+ ")

    def hook(self, trainer: Trainer) -> str:
        """Return the hook in which a new value of this metric is available."""
        name = self.names[0]
        if name == "loss" or _of_task(trainer, name):
            return "on_train_epoch_end"
        return "on_eval_end" if name.startswith("val_") else "on_window_end"

    def read(self, trainer: Trainer) -> float | None:
        """Return the latest value, or None; call it in `hook` for a fresh one."""
        values = {name: self._read(trainer, name) for name in self.names}
        known = {name: value for name, value in values.items() if value is not None}
        if len(known) < len(values):
            return None
        if not self.several:
            return known[self.names[0]]
        value = sum(self._signs[name] * self._weights[name] * value for name, value in known.items())
        shown = ", ".join(f"{name} {value:.6g}" for name, value in known.items())
        logger.info("%s: %s = %.6g (%s)", self.owner, self.label, value, shown)
        return value

    def _read(self, trainer: Trainer, name: str) -> float | None:
        state = trainer.state
        if _of_task(trainer, name):
            return float(state.task_losses[name])
        if self.hook(trainer) == "on_window_end":
            return window_value(state.window, name)
        value = state.train_loss if name == "loss" else state.metrics.get(name)
        return None if value is None else float(value)

    def better(self, value: float, best: float | None) -> bool:
        """Return whether `value` beats `best` by `min_delta`; NaN never, None loses."""
        if math.isnan(value) or best is None:
            return not math.isnan(value)
        return value < best - self.min_delta if self.mode == "min" else value > best + self.min_delta


def _of_task(trainer: Trainer, name: str) -> bool:
    return trainer.state.phase == "fit" and name in trainer.state.task_losses


def _weights(owner: str, monitor: str | Mapping[str, float]) -> dict[str, float]:
    """Return the weight of each metric by name."""
    weights = {monitor: 1.0} if isinstance(monitor, str) else monitor
    if not (isinstance(weights, Mapping) and weights and all(isinstance(name, str) and name for name in weights)):
        accepted = "the name of a metric such as 'val_loss', or a mapping from names to weights"
        refuse(f"{owner}(monitor=...)", accepted, monitor)
    checked = {
        name: number(f"{owner}(monitor=...): the weight of {name!r}", weight, above=0, below=math.inf)
        for name, weight in weights.items()
    }
    times = {"validation" if name.startswith("val_") else "epoch" if name == "loss" else "" for name in checked}
    if len(times) > 1:
        raise ConfigurationError(
            f"{owner}(monitor=...): {', '.join(checked)} are not measured at the same time; take metrics of "
            "validations (val_*), of windows, or of training epochs"
        )
    return checked


class Patience(Callback):
    """Follows a metric: its best value, and measurements without improvement.

    A measurement is a validation ("val_*"), a closed online window ("window_*") or an epoch's mean loss ("loss"); a
    subclass responds to it in `measured`.

    Args:
        monitor: name of the metric, or several with weights, as {"val_auc": 0.7, "val_loss": 0.3}; see `Watched`.

    Attributes:
        best: best value so far, or None.
        best_step: optimizer step of the best value, or None.
        wait: measurements since the last improvement.
    """

    least_patience = 1

    def __init__(self, monitor: str | Mapping[str, float], patience: int, min_delta: float, mode: str) -> None:
        owner = type(self).__name__
        self.watched = Watched(owner, monitor, mode, min_delta)
        self.monitor = monitor
        self.patience = whole(f"{owner}(patience=...)", patience, self.least_patience)
        self._clear()

    def _clear(self) -> None:
        self.best: float | None = None
        self.best_step: int | None = None
        self.wait = 0

    def measured(self, trainer: Trainer, value: float, improved: bool) -> None:
        """Respond to a measurement; `improved` says whether `value` is the new best."""
        raise NotImplementedError

    def out_of_patience(self, good: bool) -> bool:
        """Count a measurement; return whether patience ran out. A `good` one resets."""
        self.wait = 0 if good else self.wait + 1
        return self.wait >= self.patience

    def setup(self, trainer: Trainer) -> None:
        """Forget earlier runs; a restored snapshot then puts back its own."""
        self._clear()

    def use_directions(self, higher_is_better: Mapping[str, bool | None]) -> None:
        self.watched.use_directions(higher_is_better)

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
        self._measure("on_eval_end", trainer)

    def on_window_end(self, trainer: Trainer) -> None:
        self._measure("on_window_end", trainer)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        self._measure("on_train_epoch_end", trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "wait": self.wait}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        best = number("best", state["best"], optional=True)
        best_step = whole("best_step", state["best_step"], 0, optional=True)
        self.best, self.best_step, self.wait = best, best_step, whole("wait", state["wait"], 0)
