"""What an operator watches: `gauges` reads it from a trainer, for the Prometheus endpoint and the health file alike."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.trainer import Trainer


class Throughput:
    """Samples per second between one reading and the next."""

    def __init__(self) -> None:
        self._time, self._samples = time.monotonic(), 0

    def start(self, samples_seen: int) -> None:
        """Begin to measure at `samples_seen`."""
        self._time, self._samples = time.monotonic(), samples_seen

    def read(self, samples_seen: int) -> float:
        """Return samples per second since the last reading."""
        now = time.monotonic()
        rate = (samples_seen - self._samples) / max(now - self._time, 1e-9)
        self._time, self._samples = now, samples_seen
        return rate


def gauges(trainer: Trainer) -> dict[str, float]:
    """Return the counters, the newest loss (a host copy), and the newest validation and window values by name."""
    state = trainer.state
    progress = state.progress
    values: dict[str, Any] = {
        "epoch": progress.epoch,
        "global_step": progress.global_step,
        "samples_seen": progress.samples_seen,
        "skipped_steps": state.skipped_steps,
    }
    if state.outputs is not None:
        values["loss"] = state.outputs.loss
    values |= {name: value for name, value in state.metrics.items() if name.startswith("val_")}
    values |= state.task_losses
    values |= {name: value for name, value in (state.window or {}).items() if isinstance(value, int | float)}
    return values
