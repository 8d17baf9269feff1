"""`History` holds the results of a run; `Curve` holds a series in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.cadence import Every, cadence
from trainer.checks import any_number, whole

from .callback import Callback, Trainer
from .output import snapshot_step, window_numbers
from .summary import history_html


class Curve:
    """A series of (step, value) points of bounded length.

    When it is full, it drops every second point and from then on records new points half as often. The points of a long
    run are thus evenly spaced, and their number stays between `max_points / 2` and `max_points`.
    """

    def __init__(self, max_points: int | None = None) -> None:
        self.max_points = max_points
        self.steps: list[int] = []
        self.values: list[float] = []
        self._stride = 1
        self._offered = 0

    def add(self, step: int, value: float) -> None:
        """Append every `_stride`-th point."""
        self._offered += 1
        if (self._offered - 1) % self._stride:
            return
        self.steps.append(int(step))
        self.values.append(float(value))
        if self.max_points is not None and len(self.steps) >= self.max_points:
            del self.steps[1::2], self.values[1::2]
            self._stride *= 2

    def __len__(self) -> int:
        return len(self.steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the points and counters as plain values."""
        points = {"steps": list(self.steps), "values": list(self.values)}
        return {**points, "stride": self._stride, "offered": self._offered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        steps = [whole("step", step, 0) for step in state["steps"]]
        values = [any_number("value", value) for value in state["values"]]
        if len(steps) != len(values):
            raise ValueError(f"a curve has {len(steps)} steps and {len(values)} values")
        self._stride, self._offered = whole("stride", state["stride"]), whole("offered", state["offered"], 0)
        self.steps, self.values = steps, values


@dataclass(frozen=True)
class Best:
    """The best value of a metric.

    Attributes:
        value: value of the metric.
        step: optimizer step at which it was measured.
        snapshot: name of the snapshot of this step, or None.
    """

    value: float
    step: int
    snapshot: str | None = None


class History(Callback):
    """Records the loss of each epoch, validations, windows, and a loss curve.

    Args:
        every: cadence of the loss curve: a number of optimizer steps or an `Every`. Each point copies the loss to the
            host. None: a point after each call that passes a multiple of 50 steps.
        max_points: maximum length of the loss curve and of each window series; longer series are thinned evenly.

    Attributes:
        epoch: numbers of the finished epochs, counted from 1.
        curve: the loss of single steps (`Curve`).
        directions: metric -> whether higher is better; None if the metric does not declare it.
        stop_reason: why the run ended, as text; None while it is running.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(self, every: Every | int | None = None, max_points: int = 1000) -> None:
        self.every = cadence("History", every, Every(steps=50))
        self.max_points = whole("History(max_points=...)", max_points, 2)
        self._clear()

    def _clear(self) -> None:
        self.epoch: list[int] = []
        self.curve = Curve(self.max_points)
        self.stop_reason: str | None = None
        self.directions: dict[str, bool | None] = {}
        self._series: dict[str, Curve] = {}
        self._best: dict[str, tuple[float, int]] = {}
        self._snapshots: dict[int, Path] = {}

    @property
    def history(self) -> dict[str, list[float]]:
        """Name -> values: "loss" per epoch, "val_*" per validation, others per window."""
        return {name: series.values for name, series in self._series.items()}

    @property
    def steps(self) -> dict[str, list[int]]:
        """Name -> optimizer step of each value in `history`."""
        return {name: series.steps for name, series in self._series.items()}

    @property
    def best(self) -> dict[str, Best]:
        """Name -> best value with its step and snapshot, for metrics with a direction."""
        snapshots = {step: path.name for step, path in self._snapshots.items() if path.is_dir()}
        return {name: Best(value, step, snapshots.get(step)) for name, (value, step) in self._best.items()}

    def _repr_html_(self) -> str:
        return history_html(self)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON-serialisable values."""
        return {
            "epoch": list(self.epoch),
            "history": {name: list(values) for name, values in self.history.items()},
            "steps": {name: list(steps) for name, steps in self.steps.items()},
            "curve": {"steps": list(self.curve.steps), "loss": list(self.curve.values)},
            "best": {name: vars(best) for name, best in self.best.items()},
            "directions": dict(self.directions),
            "stop_reason": self.stop_reason,
        }

    def _record(self, name: str, step: int, value: float, *, bounded: bool = False) -> None:
        self._series.setdefault(name, Curve(self.max_points if bounded else None)).add(step, value)
        higher = self.directions.get(name)
        if higher is None or math.isnan(value):
            return
        best = self._best.get(name)
        if best is None or (value > best[0] if higher else value < best[0]):
            self._best[name] = (value, step)

    def setup(self, trainer: Trainer) -> None:
        """Start with an empty history; a snapshot restored afterwards replaces it."""
        self._clear()

    def on_train_begin(self, trainer: Trainer) -> None:
        self.stop_reason = None
        self.directions = dict(trainer.metric_directions)
        self.every.start(trainer.state.progress)

    def on_train_step_end(self, trainer: Trainer) -> None:
        if self.every.due(trainer.state.progress):
            self.curve.add(trainer.state.progress.global_step, trainer.state.outputs.loss)

    def on_eval_end(self, trainer: Trainer) -> None:
        for name, value in trainer.state.metrics.items():
            self._record(name, trainer.state.progress.global_step, value)

    def on_window_end(self, trainer: Trainer) -> None:
        for name, value in window_numbers(trainer).items():
            self._record(name, trainer.state.progress.global_step, value, bounded=True)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        self.epoch.append(trainer.state.progress.epoch)
        for name, value in {"loss": trainer.state.train_loss, **trainer.state.task_losses}.items():
            if value is not None:
                self._record(name, trainer.state.progress.global_step, value)

    def on_save_checkpoint(self, trainer: Trainer) -> None:
        """Record the snapshot under its own step, which may be before the current step."""
        path = trainer.state.snapshot
        step = None if path is None else snapshot_step(path)
        if path is not None and step is not None:
            existing = {number: folder for number, folder in self._snapshots.items() if folder.is_dir()}
            self._snapshots = existing | {step: path}

    on_load_checkpoint = on_save_checkpoint

    def on_train_end(self, trainer: Trainer) -> None:
        self.stop_reason = str(trainer.state.stop_reason) if trainer.state.stop_reason else None

    def on_exception(self, trainer: Trainer) -> None:
        self.stop_reason = f"exception: {type(trainer.state.exception).__name__}: {trainer.state.exception}"

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": list(self.epoch),
            "curve": self.curve.state_dict(),
            "series": {name: series.state_dict() for name, series in self._series.items()},
            "best": {name: list(best) for name, best in self._best.items()},
            "directions": dict(self.directions),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._clear()
        self.epoch = [whole("epoch", epoch, 0) for epoch in state["epoch"]]
        self.curve.load_state_dict(state["curve"])
        for name, series in state["series"].items():
            bounded = name != "loss" and not name.startswith("val_")
            self._series[name] = Curve(self.max_points if bounded else None)
            self._series[name].load_state_dict(series)
        self.directions = dict(state.get("directions", {}))  # missing in older snapshots
        best = state.get("best", {})
        self._best = {name: (any_number("best", value), whole("step", step, 0)) for name, (value, step) in best.items()}
