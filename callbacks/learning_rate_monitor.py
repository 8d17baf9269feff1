"""`LearningRateMonitor` records the learning rate, `ReduceLROnPlateau` lowers it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from trainer.cadence import Every, cadence
from trainer.checks import number, whole

from .callback import Callback, Trainer
from .history import Curve
from .output import say
from .watched import Patience, require_settable_rate

logger = logging.getLogger(__name__)


class LearningRateMonitor(Callback):
    """Records the learning rate of the latest step at a cadence, in bounded memory.

    Args:
        every: cadence or number of optimizer steps. Each record copies the rate to the host. None: after each call that
            crosses a multiple of 50 steps.
        verbose: print a line when the rate has changed since the last record.
        max_points: maximum number of points; longer records are thinned evenly.

    Attributes:
        curve: (step, learning rate) points.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    reports_only = True

    def __init__(self, every: Every | int | None = None, verbose: bool = False, max_points: int = 1000) -> None:
        self.every = cadence("LearningRateMonitor", every, Every(steps=50))
        self.verbose = bool(verbose)
        self.max_points = whole("LearningRateMonitor(max_points=...)", max_points, 2)
        self.curve = Curve(self.max_points)

    def setup(self, trainer: Trainer) -> None:
        self.curve = Curve(self.max_points)

    def on_train_begin(self, trainer: Trainer) -> None:
        self.every.start(trainer.state.progress)
        if not len(self.curve):  # a resumed run goes on with the points of its snapshot
            self._record(trainer)

    def on_train_step_end(self, trainer: Trainer) -> None:
        if self.every.unit != "epochs" and self.every.due(trainer.state.progress):
            self._record(trainer)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        if self.every.unit == "epochs" and self.every.due(trainer.state.progress):
            self._record(trainer)

    def _record(self, trainer: Trainer) -> None:
        rate, step = trainer.learning_rate, trainer.state.progress.global_step
        if rate is None:
            return
        if self.verbose and self.curve.values[-1:] != [rate]:
            say(f"step {step}: learning rate {rate:.6g}")
        self.curve.add(step, rate)

    def state_dict(self) -> dict[str, Any]:
        return {"curve": self.curve.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.curve.load_state_dict(state["curve"])


class ReduceLROnPlateau(Patience):
    """Multiplies the learning rate by `factor` when a metric stops improving.

    The rates of parameter groups, and of several optimizers, are multiplied each.

    Args:
        monitor: name of the metric ("val_*", "window_*" or "loss").
        factor: factor by which the rate is multiplied, in (0, 1).
        patience: number of measurements without improvement after which the rate is lowered.
        min_delta: minimum change that counts as an improvement, in the metric's unit.
        mode: "min", "max", or "auto", which uses the metric's ``higher_is_better``.
        cooldown: number of measurements after a reduction that do not count for `patience`.
        min_lr: lower bound of the rate.

    Raises:
        ConfigurationError: an argument is invalid; at `setup`, the learning rate cannot be set (it
            follows a schedule, or there is no optimizer).
    """

    order = 40

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 3,
        min_delta: float = 1e-4,
        mode: str = "auto",
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__(monitor, patience, min_delta, mode)
        self.factor = number("ReduceLROnPlateau(factor=...)", factor, above=0, below=1)
        self.cooldown = whole("ReduceLROnPlateau(cooldown=...)", cooldown, 0)
        self.min_lr = number("ReduceLROnPlateau(min_lr=...)", min_lr, minimum=0.0)

    def _clear(self) -> None:
        super()._clear()
        self.cooling = 0

    def setup(self, trainer: Trainer) -> None:
        super().setup(trainer)
        require_settable_rate("ReduceLROnPlateau", trainer)

    def handle_measurement(self, trainer: Trainer, value: float, improved: bool) -> None:
        if not self.out_of_patience(improved or self.cooling > 0):
            self.cooling = max(0, self.cooling - 1)
            return
        rates = trainer.learning_rates
        self.wait, self.cooling = 0, self.cooldown
        if max(rates) > self.min_lr:
            new_rates = [min(rate, max(rate * self.factor, self.min_lr)) for rate in rates]
            trainer.learning_rates = new_rates
            logger.info(
                "ReduceLROnPlateau: %s has not improved in %d measurements; learning rate %.6g -> %.6g",
                *(self.watched.name, self.patience, rates[0], new_rates[0]),
            )

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "cooling": self.cooling}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.cooling = whole("cooling", state["cooling"], 0)
