"""`Logger`: base class of the loggers; decides what to log and when."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.cadence import Every, cadence
from trainer.checks import refuse
from trainer.masking import mask_value

from ..callback import Callback, Trainer
from ..output import snapshot_step, window_numbers

MIN_POINTS = 200  # logged points per run, if `every` is None


class Logger(Callback):
    """Logs a run: losses, speed, validation, windows, hyperparameters, snapshots.

    A subclass for a backend overrides `open`, `log_metrics` and `close`. It may also override the other methods that
    are defined before `on_train_begin`; they do nothing by default. A run can have several loggers. The x-axis is the
    optimizer step.

    Names: train/loss, train/learning_rate, train/loss_scale, train/skipped_steps, train/samples_per_second,
    train/data_wait (share of time spent waiting for data); epoch/*; val/*; window/*.

    Args:
        every: cadence of train/*, or number of optimizer steps. A call with a logged step copies its losses from the
            device. None: at least 200 points over the run, if it has that many steps.
        hparams: values logged as the hyperparameters; None for the settings of the trainer.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    main_only = True
    leaves_files = True
    reports_only = True

    def __init__(self, every: Every | int | None = None, hparams: Mapping[str, Any] | None = None) -> None:
        name = type(self).__name__
        self.every = None if every is None else cadence(name, every)
        if not isinstance(hparams, Mapping | None):
            refuse(f"{name}(hparams=...)", "a mapping of names to values or None", hparams)
        self.hparams = hparams
        self._is_open = self._has_logged_hparams = False

    def open(self, trainer: Trainer, step: int) -> None:
        """Start logging; after a resume, drop earlier points after `step`."""
        raise NotImplementedError

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log name -> value, measured after `step` optimizer steps."""
        raise NotImplementedError

    def log_hyperparameters(self, values: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Log the hyperparameters, after the first training call.

        `metrics` are the names of the metrics that the run will produce.
        """

    def log_results(self, values: Mapping[str, float], step: int) -> None:
        """Log the last value of each metric, and the best value as ``best_<name>``."""

    def log_snapshot(self, path: Path, step: int) -> None:
        """Log a durable snapshot."""

    def flush(self) -> None:
        """Write logged data to disk."""

    def close(self) -> None:
        """End the log; also called after a failure."""

    def on_train_begin(self, trainer: Trainer) -> None:
        progress = trainer.state.progress
        self._has_logged_hparams = progress.global_step > 0  # a resumed run has already logged its hyperparameters
        self.open(trainer, progress.global_step)
        self._is_open = True
        if self.every is not None:
            self.every.start(progress)
        total, limits = trainer.state.steps_per_epoch, trainer.state.limits
        step_limits = () if limits is None else (limits.steps, total and limits.epochs and total * limits.epochs)
        self._stride = max(1, min(filter(None, step_limits), default=0) // MIN_POINTS)
        self._stride_start = progress.global_step
        self._rate_start = (time.perf_counter(), progress.samples_seen)

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Log the losses that are due, and the hyperparameters once."""
        if not self._is_open:  # `open` failed, and the run continues without this logger
            return
        if not self._has_logged_hparams:
            self._has_logged_hparams = True
            given = self.hparams if self.hparams is not None else hyperparameters(trainer)
            values = {str(name): value for name, value in given.items()}
            self.log_hyperparameters(mask_value(values), tuple(trainer.metric_directions))
        due = self._due(trainer)
        if due:
            outputs = trainer.state.outputs
            first = trainer.state.progress.global_step - outputs.chunk.num_steps + 1
            # `losses` has one value per micro-batch; the last step of an epoch may have fewer of them than the others.
            begun = outputs.chunk.start.micro_batches
            ends = range(trainer.accumulate - begun, len(outputs.losses), trainer.accumulate)
            losses = [float(part.mean()) for part in np.split(outputs.losses, ends)]
            for step in due[:-1]:
                self.log_metrics({"train/loss": losses[step - first]}, step)
            self._log_training(trainer, losses[due[-1] - first], due[-1])

    def _due(self, trainer: Trainer) -> list[int]:
        """Return the steps of the latest call that should be logged, ascending."""
        progress, steps = trainer.state.progress, trainer.state.outputs.chunk.num_steps
        last = progress.global_step
        if self.every is not None and self.every.unit != "steps":
            return [last] if self.every.unit != "epochs" and self.every.due(progress) else []
        stride = self._stride if self.every is None else int(self.every.n)
        due = [step for step in range(last - steps + 1, last + 1) if step % stride == 0]
        if self.every is None and last - self._stride_start >= 2 * MIN_POINTS * stride:
            self._stride *= 2  # log less and less often in a run of unknown length
            self._stride_start = last
        return due

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Log the epoch's mean loss, and train/* if the cadence is in epochs."""
        if not self._is_open:
            return
        state = trainer.state
        step = state.progress.global_step
        if state.train_loss is not None:
            losses = {"loss": state.train_loss, **state.task_losses}
            self.log_metrics({f"epoch/{name}": value for name, value in losses.items()}, step)
        if self.every is not None and self.every.unit == "epochs" and self.every.due(state.progress):
            self._log_training(trainer, state.train_loss, step)

    def _log_training(self, trainer: Trainer, loss: float | None, step: int) -> None:
        now, samples = time.perf_counter(), trainer.state.progress.samples_seen
        values = {
            "loss": loss,
            "learning_rate": trainer.learning_rate,
            "loss_scale": trainer.loss_scale,
            "samples_per_second": (samples - self._rate_start[1]) / max(now - self._rate_start[0], 1e-9),
            "data_wait": trainer.state.data_wait,
        }
        if values["loss_scale"] is not None:
            values["skipped_steps"] = trainer.read_counters()["skipped"]
        self._rate_start = (now, samples)
        if trainer.tasks is not None:  # task means of the current epoch or window, or of the epoch that just ended
            task_means = trainer.tasks.read_losses(keep=True)
            ended = trainer.state.task_losses
            values |= {name: ended.get(name) if math.isnan(mean) else mean for name, mean in task_means.items()}
        points = {f"train/{name}": float(value) for name, value in values.items() if value is not None}
        for callback in trainer.callbacks:
            points |= callback.logged_values()
        self.log_metrics(points, step)

    def on_eval_end(self, trainer: Trainer) -> None:
        if self._is_open:
            values = {f"val/{name.removeprefix('val_')}": value for name, value in trainer.state.metrics.items()}
            self.log_metrics(values, trainer.state.progress.global_step)

    def on_window_end(self, trainer: Trainer) -> None:
        if self._is_open:
            window = window_numbers(trainer)
            values = {f"window/{name.removeprefix('window_')}": value for name, value in window.items()}
            self.log_metrics(values, trainer.state.progress.global_step)

    def on_save_checkpoint(self, trainer: Trainer) -> None:
        """Log the snapshot, then flush all points to disk."""
        path = trainer.state.snapshot
        if self._is_open and path is not None:
            step = snapshot_step(path)  # may be before the current step, if the snapshot was written in the background
            self.log_snapshot(path, trainer.state.progress.global_step if step is None else step)
            self.flush()

    def on_train_end(self, trainer: Trainer) -> None:
        history = trainer.history
        if history is not None and self._is_open:
            results = {name: values[-1] for name, values in history.history.items() if values}
            results |= {f"best_{name}": best.value for name, best in history.best.items()}
            self.log_results(results, trainer.state.progress.global_step)

    def teardown(self, trainer: Trainer) -> None:
        if self._is_open:
            self._is_open = False
            self.close()


def hyperparameters(trainer: Trainer) -> dict[str, Any]:
    """Return the hyperparameters of the current training as plain values by name."""
    chunk, limits = trainer.state.outputs.chunk, trainer.state.limits
    schedule = getattr(trainer.optimizer, "learning_rate", None)
    values = {
        "network": type(trainer.network).__name__,
        "loss_fn": None if trainer.loss_fn is None else type(trainer.loss_fn).__name__,
        "optimizer": None if trainer.optimizer is None else type(trainer.optimizer).__name__,
        "learning_rate": trainer.learning_rate,
        "schedule": type(schedule).__name__ if callable(schedule) else "constant",
        "batch_size": chunk.num_samples // max(chunk.num_steps, 1),
        "epochs": None if limits is None else limits.epochs,
        "seed": trainer.seed,
        "amp_level": trainer.precision.level,
        "gradient_accumulation_steps": trainer.accumulate,
        "sink_mode": trainer.sink_mode,
        "features": None if trainer.features is None else len(trainer.features.features),
        "tasks": None if trainer.tasks is None else str(trainer.tasks.describe()),
    }
    return {name: value for name, value in values.items() if value is not None}
