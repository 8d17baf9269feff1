"""Helpers for the output of callbacks: terminal lines, notebooks and files."""

from __future__ import annotations

import contextlib
import html
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from trainer.checks import four_digits
from trainer.errors import ConfigurationError

from .callback import Trainer

SEPARATOR = ", "
_TOLERANCE = 1e-4  # relative; larger than the difference between float32 and float64 sums of the same loss


def say(text: str, file: TextIO | None = None) -> None:
    """Print one line to `file` (standard output), above any progress bar."""
    from tqdm import tqdm

    stream = file or sys.stdout
    if stream is None or stream.closed:  # the process has no terminal
        return
    tqdm.write(text, file=stream)
    stream.flush()


def format_metrics(metrics: dict[str, float]) -> str:
    """Format metrics as ``"loss 0.1234, auc 0.7"``, with four significant digits."""
    return SEPARATOR.join(f"{name} {four_digits(value)}" for name, value in metrics.items())


def without_equal_losses(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Remove each "...loss" that equals its "...log_loss".

    A value that is not finite may be None, as in a run's files.
    """
    finite = {name: value for name, value in metrics.items() if value is not None}
    return {
        name: value
        for name, value in metrics.items()
        if not (
            value is not None
            and (prefix := name.removesuffix("loss")) != name
            and math.isclose(value, finite.get(f"{prefix}log_loss", math.nan), rel_tol=_TOLERANCE)
        )
    }


def require_writable(argument: str, folder: Path) -> None:
    """Create `folder` and check that it can be written; errors name `argument`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        raise ConfigurationError(
            f"{argument}: {folder} cannot be written: {error.strerror or error}; choose another folder"
        ) from error


def in_run_folder(trainer: Trainer, name: str) -> Path | None:
    """Return the path of `name` in the run folder; None if the run has no folder."""
    return None if trainer.run_dir is None else Path(trainer.run_dir) / name


def replace_text(path: Path, text: str) -> None:
    """Write a text file atomically: readers see either the old or the new text."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, "utf-8")
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def snapshot_step(path: Path) -> int | None:
    """Return the optimizer step in a snapshot's name; None for other folders."""
    step = path.name.rpartition("_")[2]
    return int(step) if step.isdecimal() else None


def window_numbers(trainer: Trainer) -> dict[str, float]:
    """Return the numeric values of the latest online window."""
    return {name: value for name, value in (trainer.state.window or {}).items() if isinstance(value, int | float)}


def finite(value: Any) -> Any:
    """Replace NaN and infinities by None, also in nested dicts."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def terminal_columns(stream: TextIO) -> int:
    """Return the width in columns of the terminal of `stream`; 80 if it has none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # raised by a StringIO or a closed file
        return shutil.get_terminal_size((80, 24)).columns


def fit_parts(parts: Sequence[tuple[int, str]], columns: int) -> str:
    """Join the parts that fit into `columns`, in the given order.

    Args:
        parts: (rank, text) of each part. Rank 0 is the most important, and the first part with rank 0 is always kept.
        columns: maximum length of the result.
    """
    kept: list[int] = []
    used = -len(SEPARATOR)
    for index, (_, text) in sorted(enumerate(parts), key=lambda part: part[1][0]):
        width = len(SEPARATOR) + len(text)
        if text and (not kept or used + width <= columns):
            kept.append(index)
            used += width
    return SEPARATOR.join(parts[index][1] for index in sorted(kept))


def monitored_metric(trainer: Trainer) -> str | None:
    """Return the metric of the first callback that monitors one, or None."""
    return next((callback.monitor for callback in trainer.callbacks if callback.monitor), None)


def in_notebook() -> bool:
    """Return whether this process is a notebook kernel, which can show HTML."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and hasattr(running, "kernel")


class Panel:
    """A progress bar with a line of text below a notebook cell, redrawn in place.

    It uses IPython display handles, which work in every front end. `tqdm.notebook` would need ipywidgets and leave one
    bar per epoch.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, title: str, text: str, share: float | None) -> None:
        """Show the bar at `share` (0 to 1) between `title` and `text`; None for no bar."""
        from IPython.display import display

        bar = "" if share is None else f'<progress value="{share:.4f}" max="1" style="width:9em"></progress> '
        # In a narrow cell, lines break only between the parts.
        parts = [f'<span style="white-space:nowrap">{html.escape(part)}</span>' for part in text.split(SEPARATOR)]
        markup = (
            f'<div style="font-family:monospace"><span style="white-space:nowrap">{html.escape(title)} {bar}</span>'
            f"{SEPARATOR.join(parts)}</div>"
        )
        bundle = {"text/html": markup, "text/plain": f"{title} {text}"}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
