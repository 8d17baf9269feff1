"""`ProgressBar`: a bar on a terminal, one line per epoch elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from trainer.checks import number

from . import summary
from .callback import Callback, Trainer
from .output import (
    SEPARATOR,
    Panel,
    fit_parts,
    format_metrics,
    in_notebook,
    monitored_metric,
    say,
    terminal_columns,
    without_equal_losses,
)

MIN_SHOWN_WAIT = 0.1  # smallest share of time waiting for data that is shown
MIN_BAR = 4  # columns
NOTEBOOK_COLUMNS = 120
LINE_COLUMNS = 80  # width of a log line; metrics may exceed it
MIN_COLUMNS_FOR_WORDS = 60  # narrower terminals show "2/5" instead of "epoch 2/5"
# The most informative window metrics, which fit on one line.
_SHOWN = ("window_auc", "lifetime_auc", "window_log_loss", "window_loss", "window_calibration", "lag", "staleness")


class ProgressBar(Callback):
    """Shows epoch, loss, speed and metrics; on a stream, window metrics (AUC, lag).

    If the terminal is too narrow, less important values are left out. The metric that a callback monitors is always
    shown, or the first metric if none is monitored. If the output is not a terminal, it prints one line per epoch, and
    for a stream at most one line per `line_seconds`. The loss is copied from the device only when the bar is refreshed.

    Args:
        refresh_seconds: time between two refreshes of the bar.
        line_seconds: minimum time between two lines of a stream if the output is not a terminal.
        file: output stream; None for standard error.
        terminal: True or False to override the test whether the output is a terminal.
        results: at the end, print why the run was stopped and, on a terminal, the last and best metrics. The command
            line passes False, because its log has the reason and its own table has the metrics.

    Raises:
        ConfigurationError: a time is not a number >= 0.
    """

    main_only = True
    reports_only = True
    order = 10

    def __init__(
        self,
        refresh_seconds: float = 0.2,
        line_seconds: float = 30.0,
        file: TextIO | None = None,
        terminal: bool | None = None,
        results: bool = True,
    ) -> None:
        self.refresh_seconds = number("ProgressBar(refresh_seconds=...)", refresh_seconds, minimum=0.0)
        self.line_seconds = number("ProgressBar(line_seconds=...)", line_seconds, minimum=0.0)
        self.file, self.terminal, self.results = file, terminal, results
        self._bar: Any = None
        self._panel: Panel | None = None
        self._running = self._ended = self._saving = False
        self._times = summary.Times()

    def setup(self, trainer: Trainer) -> None:
        """Start the clock, so that compiling and restoring are included."""
        self._times = summary.Times()

    def on_train_begin(self, trainer: Trainer) -> None:
        """Choose the output, and start the bar at the current step of the epoch."""
        # Look up the stream now, because it may have been redirected since the import.
        self._stream = self.file or sys.stderr
        # In notebooks, use `Panel` instead of tqdm.auto. Without ipywidgets, tqdm.auto warns and draws in the red box
        # of standard error; with ipywidgets, it leaves one bar per epoch.
        self._panel = Panel() if self.file is None and self.terminal is None and in_notebook() else None
        self._on_terminal = self._stream.isatty() if self.terminal is None else bool(self.terminal)
        self._online = trainer.state.phase == "online"
        self._next_refresh = self._next_line = 0.0
        self._running, self._validated, self._ended = True, False, False
        self._times.add("setting up")
        self._set_aside: str | None = None
        self._start(trainer, trainer.state.progress.step_in_epoch)

    def on_train_step_begin(self, trainer: Trainer) -> None:
        self._saving = False
        self._times.add("waiting for data")

    def on_train_epoch_begin(self, trainer: Trainer) -> None:
        self._start(trainer, 0)

    def _start(self, trainer: Trainer, done: int) -> None:
        progress = trainer.state.progress
        self._epoch = progress.epoch + 1
        self._first_step = progress.global_step - done
        self._steps, self._samples, self._start_time = progress.global_step, progress.samples_seen, time.monotonic()

    def on_train_step_end(self, trainer: Trainer) -> None:
        self._times.add("training")
        now = time.monotonic()
        if (self._on_terminal or self._panel) and now >= self._next_refresh:
            self._next_refresh = now + self.refresh_seconds
            self._draw(trainer, {"loss": trainer.state.outputs.loss})

    def on_eval_begin(self, trainer: Trainer) -> None:
        self._times.skip()
        self._eval_start = time.monotonic()

    def on_eval_end(self, trainer: Trainer) -> None:
        """Exclude the validation from the speed; show its results from now on."""
        if self._running:
            self._times.add("evaluation")
            self._validated = True
            self._start_time += time.monotonic() - self._eval_start

    def on_window_end(self, trainer: Trainer) -> None:
        """Print a line when due, if the output is not a terminal."""
        now = time.monotonic()
        if not self._on_terminal and self._panel is None and now >= self._next_line:
            self._next_line = now + self.line_seconds
            self._print_line(trainer)

    def on_checkpoint(self, trainer: Trainer) -> None:
        """Start timing a save, which is counted only if it ends before the next step."""
        self._times.skip()
        self._saving = True

    def on_save_checkpoint(self, trainer: Trainer) -> None:
        if self._saving:
            self._times.add("saving")

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        self._end_epoch(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        """Close the bar of an unfinished epoch or a stream."""
        if self._bar is not None or trainer.state.progress.global_step > self._steps:
            self._end_epoch(trainer)
        reason = trainer.state.stop_reason
        if reason is not None and reason.kind != "limit" and (self.results or self._panel is not None):
            text = f"stopped: {reason}"
            if self._panel is None:
                say(text, self._stream)
            else:
                self._panel.draw(self._title(trainer), text, None)
        self._times.skip()
        if trainer.run is not None:
            self._times.separate_preparing(trainer.run.seconds_preparing)
            self._set_aside = trainer.run.set_aside()
        self._ended = self._saving = True

    def teardown(self, trainer: Trainer) -> None:
        """Close the bar; print the results of a run that ended without an error."""
        has_ended, self._running, self._ended = self._ended, False, False
        self._close_bar()
        if has_ended and self._on_terminal and self._panel is None and trainer.history is not None:
            columns = terminal_columns(self._stream)
            lines = summary.lines(trainer.history, columns) if self.results else []
            for text in filter(None, (self._set_aside, self._times.describe())):
                lines += summary.wrapped(text, columns)
            for line in lines:
                say(line, self._stream)

    def _end_epoch(self, trainer: Trainer) -> None:
        if not self._on_terminal and self._panel is None:
            self._print_line(trainer)
        else:
            loss, outputs = trainer.state.train_loss, trainer.state.outputs
            if loss is None and outputs is not None:
                loss = outputs.loss
            self._draw(trainer, {} if loss is None else {"loss": loss})
            self._close_bar()
        self._start(trainer, 0)

    def _close_bar(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def _parts(self, trainer: Trainer, loss: dict[str, float]) -> list[tuple[int, str]]:
        """Return (rank, text) of the parts to show; rank 0 is shown at any width."""
        rate = (trainer.state.progress.samples_seen - self._samples) / max(time.monotonic() - self._start_time, 1e-9)
        # Before the first validation of this run, the state has the metrics of an earlier run or of `evaluate`.
        values = without_equal_losses(trainer.state.metrics) if self._validated else {}
        if self._online:
            window = trainer.state.window or {}
            rate = window.get("rows_per_second", rate)  # of the latest window: a long-term mean would hide a stall
            values = {name: window[name] for name in _SHOWN if name in window and not math.isnan(window[name])}
        parts = [(1, format_metrics(loss)), (2, f"{rate:,.0f} samples/s")]
        wait_share = trainer.state.data_wait or 0.0
        if wait_share >= MIN_SHOWN_WAIT:
            parts.append((4, f"{wait_share:.0%} waiting for data"))
        main_metric = _main_metric(monitored_metric(trainer), values)
        parts += [(0 if name == main_metric else 3, format_metrics({name: value})) for name, value in values.items()]
        return [(rank, text) for rank, text in parts if text]

    def _title(self, trainer: Trainer) -> str:
        if self._online:
            return "online"
        limits = trainer.state.limits
        total = None if limits is None else limits.epochs
        return f"epoch {self._epoch}/{total}" if total else f"epoch {self._epoch}"

    def _draw(self, trainer: Trainer, loss: dict[str, float]) -> None:
        done = trainer.state.progress.global_step - self._first_step
        total = None if self._online else trainer.state.steps_per_epoch
        title, parts = self._title(trainer), self._parts(trainer, loss)
        if total is None:
            parts.insert(0, (1, f"{done:,} steps"))
        else:
            parts.insert(0, (4, f"{done:,}/{total:,} steps"))
            parts.append((5, self._remaining(done, total)))
        if self._panel is not None:
            self._panel.draw(title, fit_parts(parts, NOTEBOOK_COLUMNS), total and min(done / total, 1))
            return
        columns = terminal_columns(self._stream)
        if total is None:
            line = _escaped(f"{title}: {fit_parts(parts, columns - len(title) - 3)}")
        else:
            title = title if columns >= MIN_COLUMNS_FOR_WORDS else title.removeprefix("epoch ")
            text = fit_parts(parts, columns - len(f"{title} 100%|| ") - MIN_BAR - 1)
            line = f"{_escaped(title)} {min(done / total, 1):4.0%}|{{bar}}| {_escaped(text)}"
        if self._bar is None:
            from tqdm import tqdm

            class Bar(tqdm):
                monitor_interval = 0  # no monitor thread, because the training loop refreshes the bar

            initial = self._steps - self._first_step
            self._bar = Bar(total=total, initial=initial, file=self._stream, ncols=columns, bar_format=line)
        self._bar.ncols, self._bar.bar_format, self._bar.n = columns, line, done
        self._bar.refresh()

    def _remaining(self, done: int, total: int) -> str:
        """Return the remaining time of the epoch at the mean rate so far."""
        from tqdm import tqdm

        done_in_run = done - (self._steps - self._first_step)
        if done_in_run <= 0 or done >= total:
            return ""
        return f"{tqdm.format_interval((time.monotonic() - self._start_time) / done_in_run * (total - done))} left"

    def _print_line(self, trainer: Trainer) -> None:
        loss, steps = trainer.state.train_loss, trainer.state.progress.global_step - self._first_step
        title = f"{self._title(trainer)}: "
        parts = [(4, f"{steps} steps"), *self._parts(trainer, {} if loss is None or self._online else {"loss": loss})]
        parts = [(0 if rank in (1, 3) else rank, text) for rank, text in parts]  # always log the loss and all metrics
        minimum = len(SEPARATOR.join(text for rank, text in parts if rank == 0))
        say(title + fit_parts(parts, max(LINE_COLUMNS - len(title), minimum)), self._stream)


def _main_metric(monitored: str | None, values: Mapping[str, float]) -> str | None:
    """Return the metric shown at any width: the monitored metric, else the first."""
    non_losses = [name for name in values if not name.endswith("loss")]
    return next((name for name in (monitored, f"window_{monitored}", *non_losses, *values) if name in values), None)


def _escaped(text: str) -> str:
    """Escape braces in `text` for a tqdm format string."""
    return text.replace("{", "{{").replace("}", "}}")
