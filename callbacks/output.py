"""What callbacks report with: a line on the terminal, a folder that can be written, the gauges of a run."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from trainer.errors import ConfigurationError

if TYPE_CHECKING:
    from trainer.trainer import Trainer


def say(text: str, file: TextIO | None = None) -> None:
    """Print one line to `file` (standard output), above any progress bar that is on the terminal.

    Raises:
        OSError: the disk behind it is full, or the reader of a pipe is gone.
    """
    from tqdm import tqdm

    stream = file or sys.stdout
    if stream is None or stream.closed:  # a process without a terminal
        return
    tqdm.write(text, file=stream)
    stream.flush()


def format_metrics(metrics: dict[str, float]) -> str:
    """Return ``"loss 0.1234, auc 0.7"``: names and values with four significant digits."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def writable(place: str, folder: Path) -> None:
    """Make `folder` where it is missing and prove that a file can be written there.

    Args:
        place: the argument that names it, for the message.
        folder: the folder.

    Raises:
        ConfigurationError: it cannot be made or written; the message says why.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        raise ConfigurationError(
            f"{place}: {folder} cannot be written: {error.strerror or error}; choose another folder"
        ) from error


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
