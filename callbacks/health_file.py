"""`HealthFile`: a small JSON file with the state of a run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from trainer.cadence import Every, cadence
from trainer.masking import mask_text

from .callback import Callback, Trainer
from .output import Throughput, finite, gauges, replace_text, writable
from .watched import window_value


class HealthFile(Callback):
    """Writes a JSON file at a cadence, atomically: a reader sees all of it.

    Keys: "status" ("running", "ended", "failed"), "pid", "time" (seconds since 1970), "last_step", "lag" (rows behind
    the source, or null), "auc" (of the newest window or validation, or null), "last_snapshot" (path or null),
    "samples_per_second", "stop_reason", "exception", "values" (counters, loss, "val_*", "window_*"). A number that is
    not finite is written as null. While a source is silent, no step ends and the file is not updated: check "time".

    Args:
        path: the file; its folder is made when missing.
        every: cadence, or number of optimizer steps.

    Raises:
        ConfigurationError: an argument is invalid; at `setup`, the folder cannot be written.
    """

    main_only = True
    leaves_files = True
    reports_only = True

    def __init__(self, path: str | Path, every: Every | int | None = None) -> None:
        self.path = Path(path)
        self.every = cadence("HealthFile", every, Every(seconds=5))
        self._throughput = Throughput()

    def setup(self, trainer: Trainer) -> None:
        writable("HealthFile(path=...)", self.path.parent)

    def on_train_begin(self, trainer: Trainer) -> None:
        self.every.start(trainer.state.progress)
        self._throughput.start(trainer.state.progress.samples_seen)
        self._write(trainer, "running")

    def on_train_step_end(self, trainer: Trainer) -> None:
        if self.every.due(trainer.state.progress):
            self._write(trainer, "running")

    def on_train_end(self, trainer: Trainer) -> None:
        self._write(trainer, "ended")

    def on_exception(self, trainer: Trainer) -> None:
        self._write(trainer, "failed")

    def report(self, trainer: Trainer, status: str) -> dict[str, Any]:
        """Return the report as JSON-serialisable values."""
        state = trainer.state
        auc = window_value(state.window, "auc")
        error = state.exception
        return {
            "status": status,
            "pid": os.getpid(),
            "time": time.time(),
            "last_step": state.progress.global_step,
            "lag": window_value(state.window, "lag"),
            "auc": state.metrics.get("val_auc") if auc is None else auc,
            "last_snapshot": None if state.snapshot is None else str(state.snapshot),
            "samples_per_second": self._throughput.read(state.progress.samples_seen),
            "stop_reason": None if state.stop_reason is None else str(state.stop_reason),
            "exception": None if error is None else mask_text(f"{type(error).__name__}: {error}"),
            "values": gauges(trainer),
        }

    def _write(self, trainer: Trainer, status: str) -> None:
        replace_text(self.path, json.dumps(finite(self.report(trainer, status)), indent=1, allow_nan=False) + "\n")
