"""`ProgressBar`: a bar on a terminal, one line per epoch elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from trainer.checks import number

from .callback import Callback
from .output import format_metrics, say

if TYPE_CHECKING:
    from trainer.trainer import Trainer

LEAST_SHOWN_WAIT = 0.1
# Of a window's metrics, those that say most in one line.
_SHOWN = ("window_auc", "lifetime_auc", "window_log_loss", "window_loss", "window_calibration", "lag", "staleness")


class ProgressBar(Callback):
    """Shows epoch, steps, loss and samples per second; online the window's metrics (AUC, lag) instead of epochs.

    Where the output is not a terminal it prints one line per epoch, and for a stream one line per `line_seconds`
    at most. Between two refreshes nothing is copied from the device.

    Args:
        refresh_seconds: time between two refreshes of the bar.
        line_seconds: least time between two lines of a stream without a terminal.
        file: where to; None for standard error.
        terminal: True or False to override the test for a terminal.

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
    ) -> None:
        self.refresh_seconds = number("ProgressBar(refresh_seconds=...)", refresh_seconds, least=0.0)
        self.line_seconds = number("ProgressBar(line_seconds=...)", line_seconds, least=0.0)
        self.file, self.terminal = file, terminal
        self._bar: Any = None
        self._running = self._validated = False

    def on_train_begin(self, trainer: Trainer) -> None:
        """Find out where to write; a run may begin in the middle of an epoch."""
        # Looked up now, not at import: the standard streams may have been redirected since.
        self._stream = self.file or sys.stderr
        self._on_terminal = self._stream.isatty() if self.terminal is None else bool(self.terminal)
        self._online = trainer.state.phase == "online"
        self._next_refresh = self._next_line = 0.0
        self._running, self._validated = True, False
        self._start(trainer, trainer.state.progress.step_in_epoch)

    def on_train_epoch_begin(self, trainer: Trainer) -> None:
        """Begin a bar."""
        self._start(trainer, 0)

    def _start(self, trainer: Trainer, done: int) -> None:
        progress = trainer.state.progress
        self._epoch = progress.epoch + 1
        self._first_step = progress.global_step - done
        self._steps, self._samples, self._began = progress.global_step, progress.samples_seen, time.monotonic()

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Refresh when due."""
        now = time.monotonic()
        if self._on_terminal and now >= self._next_refresh:
            self._next_refresh = now + self.refresh_seconds
            self._draw(trainer, {"loss": trainer.state.outputs.loss})

    def on_eval_begin(self, trainer: Trainer) -> None:
        """Stop the clock."""
        self._eval_began = time.monotonic()

    def on_eval_end(self, trainer: Trainer) -> None:
        """Leave validation out of the samples per second; from now on there are results to show."""
        if self._running:
            self._validated = True
            self._began += time.monotonic() - self._eval_began

    def on_window_end(self, trainer: Trainer) -> None:
        """Without a terminal, print a line when enough time has passed since the last."""
        now = time.monotonic()
        if not self._on_terminal and now >= self._next_line:
            self._next_line = now + self.line_seconds
            self._line(trainer)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Finish the bar or print the epoch's line."""
        self._close(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        """Finish what an unfinished epoch or a stream has open."""
        if self._bar is not None or trainer.state.progress.global_step > self._steps:
            self._close(trainer)
        if trainer.state.stop_reason is not None and trainer.state.stop_reason.kind != "limit":
            say(f"stopped: {trainer.state.stop_reason}", self._stream)

    def teardown(self, trainer: Trainer) -> None:
        """Leave the terminal in order, whatever happened."""
        self._running = False
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _close(self, trainer: Trainer) -> None:
        loss = trainer.state.train_loss
        if not self._on_terminal:
            self._line(trainer)
        else:
            outputs = trainer.state.outputs
            if loss is None and outputs is not None:
                loss = outputs.loss
            self._draw(trainer, {} if loss is None else {"loss": loss})
            self._bar.close()
            self._bar = None
        self._start(trainer, 0)

    def _numbers(self, trainer: Trainer, loss: dict[str, float]) -> str:
        rate = (trainer.state.progress.samples_seen - self._samples) / max(time.monotonic() - self._began, 1e-9)
        # the state holds the results of an earlier run, or of `evaluate`, until this one has its own
        values = trainer.state.metrics if self._validated else {}
        if self._online:
            window = trainer.state.window or {}
            rate = window.get("rows_per_second", rate)  # of the newest window: a mean since the start hides a stall
            values = {name: window[name] for name in _SHOWN if name in window and window[name] == window[name]}
        waited = trainer.state.data_wait or 0.0
        waiting = f"{waited:.0%} waiting for data" if waited >= LEAST_SHOWN_WAIT else ""
        shown = [format_metrics(loss), f"{rate:,.0f} samples/s", waiting, format_metrics(values)]
        return ", ".join(filter(None, shown))

    def _title(self, trainer: Trainer) -> str:
        if self._online:
            return "online"
        limits = trainer.state.limits
        total = None if limits is None else limits.epochs
        return f"epoch {self._epoch}/{total}" if total else f"epoch {self._epoch}"

    def _draw(self, trainer: Trainer, loss: dict[str, float]) -> None:
        if self._bar is None:
            from tqdm import tqdm

            class Bar(tqdm):
                monitor_interval = 0  # no watcher thread: the loop itself refreshes

            total = None if self._online else trainer.state.total_steps
            self._bar = Bar(
                total=total, initial=self._steps - self._first_step, unit="step", file=self._stream, dynamic_ncols=True
            )
        self._bar.set_description_str(self._title(trainer), refresh=False)
        self._bar.set_postfix_str(self._numbers(trainer, loss), refresh=False)
        self._bar.n = trainer.state.progress.global_step - self._first_step
        self._bar.refresh()

    def _line(self, trainer: Trainer) -> None:
        loss = trainer.state.train_loss
        steps = trainer.state.progress.global_step - self._first_step
        numbers = self._numbers(trainer, {} if loss is None or self._online else {"loss": loss})
        say(f"{self._title(trainer)}: {steps} steps, {numbers}", self._stream)
