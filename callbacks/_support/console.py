"""One way to print a line, so that lines and a progress bar on the same terminal do not run into each other."""

from __future__ import annotations

import sys
from typing import TextIO


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
