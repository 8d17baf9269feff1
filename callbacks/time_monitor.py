"""`TimeMonitor`: measures the time of each epoch."""

from __future__ import annotations

import time

from .callback import Callback, Trainer
from .output import say


class TimeMonitor(Callback):
    """Measures each epoch: seconds, samples per second, share of waiting for data.

    Training seconds exclude validation. A stream has no epochs, so the whole run is one record, added at its end.
    Steps are dispatched asynchronously, so only sums over many steps are meaningful.

    Args:
        verbose: print one line per epoch.

    Attributes:
        records: one dict per epoch with keys "epoch", "seconds", "steps", "seconds_per_step",
            "samples_per_second", "data_wait" (0 to 1) and "eval_seconds".
    """

    reports_only = True

    def __init__(self, verbose: bool = True) -> None:
        self.verbose = bool(verbose)
        self.records: list[dict[str, float]] = []
        self._started = 0.0
        self._is_timing = False

    def on_train_epoch_begin(self, trainer: Trainer) -> None:
        progress = trainer.state.progress
        self._epoch, self._steps, self._samples = progress.epoch + 1, progress.global_step, progress.samples_seen
        self._started = self._waiting_since = time.perf_counter()
        self._is_timing = True
        self._wait_seconds = self._eval_seconds = 0.0

    def on_train_begin(self, trainer: Trainer) -> None:
        """Start the clock here, because a run may begin in the middle of an epoch."""
        self.records = []
        # Do not call `self.on_train_epoch_begin`: it may be a subclass's hook, which the loop calls as well.
        TimeMonitor.on_train_epoch_begin(self, trainer)

    def on_train_step_begin(self, trainer: Trainer) -> None:
        self._wait_seconds += time.perf_counter() - self._waiting_since

    def on_train_step_end(self, trainer: Trainer) -> None:
        self._waiting_since = time.perf_counter()

    def on_eval_begin(self, trainer: Trainer) -> None:
        self._eval_start = time.perf_counter()

    def on_eval_end(self, trainer: Trainer) -> None:
        if self._is_timing:
            self._waiting_since = time.perf_counter()
            self._eval_seconds += self._waiting_since - self._eval_start

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        progress = trainer.state.progress
        steps, samples = progress.global_step - self._steps, progress.samples_seen - self._samples
        seconds = max(time.perf_counter() - self._started - self._eval_seconds, 1e-9)
        self._is_timing = False
        record = {
            "epoch": self._epoch,
            "seconds": seconds,
            "steps": steps,
            "seconds_per_step": seconds / max(steps, 1),
            "samples_per_second": samples / seconds,
            "data_wait": min(self._wait_seconds / seconds, 1.0),
            "eval_seconds": self._eval_seconds,
        }
        self.records.append(record)
        if self.verbose:
            say(
                f"epoch {self._epoch}: {seconds:.2f} s, {1000 * record['seconds_per_step']:.3f} ms/step, "
                f"{record['samples_per_second']:,.0f} samples/s, {100 * record['data_wait']:.0f} % waiting for data"
            )

    def on_train_end(self, trainer: Trainer) -> None:
        """Record the time of the last, unfinished epoch or of the whole stream."""
        if self._is_timing and trainer.state.progress.global_step > self._steps:
            TimeMonitor.on_train_epoch_end(self, trainer)
        self._is_timing = False
