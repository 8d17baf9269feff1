"""What online training adds to the loop: windows, progressive validation and the figures of the stream."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..data.feed import Chunk, Feed
from ..metrics.prequential import PrequentialMetrics, Window, WindowClock
from ..state import Stateful, StepOutputs
from .loss_meter import LossMeter
from .output_buffer import OutputBuffer

DEFAULT_WINDOW = Window(rows=10_000)
SCORED_ROWS = 4096  # rows scored at once: for a batch of 32 one by one costs ten times as much


class OnlineMetrics(Stateful):
    """Scores every chunk by the forward that trained on it, and closes windows.

    Args:
        feed: the feed under way.
        window: when windows close and what is read of the outputs.
        label_count: how many of the last columns go to the loss; the first of them is the label.
        scored: whether the program returns predictions; without them a window has the loss alone.
    """

    def __init__(self, feed: Feed, window: Window, label_count: int, *, scored: bool) -> None:
        self.feed = feed
        self.label_count = label_count
        self.window = window
        self.metrics = PrequentialMetrics.from_window(window) if scored else None
        self.clock = WindowClock(window)
        self.loss = LossMeter()
        self._label: int | None = None
        self._predictions = OutputBuffer()
        self._row_shape: tuple[int, ...] = ()
        self._row_size = 1
        self._labels: list[np.ndarray] = []
        self._groups: list[np.ndarray] = []
        self._unscored_rows = 0
        self._newest_extras: list[Mapping[str, Any] | None] = []
        self._restored_event_time = float("nan")
        self._opened = time.monotonic()
        self._rows_at_open = 0

    def names(self) -> tuple[str, ...]:
        """Return the names a window has, for callbacks that monitor one."""
        scored: list[str] = []
        if self.metrics is not None:
            kinds = ("auc", "log_loss", "normalized_entropy", "calibration")
            scored = [f"{horizon}_{kind}" for horizon in ("window", "decayed", "lifetime") for kind in kinds]
        return ("window_loss", *scored, "lag", "staleness", "rows_per_second", "queue_depth")

    def start(self, rows_seen: int) -> None:
        """Open the first window; `rows_seen` is the number of rows trained on so far."""
        self._opened = time.monotonic()
        self._rows_at_open = rows_seen
        self.clock.start(self._rows_at_open, self._opened)

    def after_step(self, chunk: Chunk, outputs: StepOutputs, rows_seen: int) -> dict[str, float] | None:
        """Take in one trained chunk; return the results of the window that closed with it, if one did."""
        self._keep(chunk, outputs)
        event_time = self._event_time() if self.clock.unit == "event_time" else None
        if self.clock.closed(rows_seen, time.monotonic(), event_time):
            return self._close_window(rows_seen)
        return None

    def _keep(self, chunk: Chunk, outputs: StepOutputs) -> None:
        self.loss.add(outputs)
        self._newest_extras = chunk.extras
        if self.metrics is None:
            return
        if self._label is None:
            self._label = self._label_column(chunk)
            self._row_shape = outputs.predictions_device.shape[2 if chunk.stacked else 1 :]
            self._row_size = math.prod(self._row_shape)
        self._predictions.add(outputs.predictions_device, chunk.num_samples * self._row_size)
        self._labels.append(chunk.rows(self._label))
        if self.window.group is not None:
            self._groups += [of_batch[self.window.group] for of_batch in chunk.extras]
        self._unscored_rows += chunk.num_samples
        if self._unscored_rows >= SCORED_ROWS:
            self._score()

    def _score(self) -> None:
        if not self._unscored_rows:
            return
        labels, groups = self._labels, self._groups
        self._labels, self._groups, self._unscored_rows = [], [], 0
        predictions = self._predictions.read().reshape(-1, *self._row_shape)
        self.metrics.update(predictions, np.concatenate(labels), groups=np.concatenate(groups) if groups else None)

    def _label_column(self, chunk: Chunk) -> int:
        wanted = self.window.label
        if isinstance(wanted, int):
            return wanted
        return chunk.names.index(wanted) if wanted is not None else len(chunk.names) - self.label_count

    def _event_time(self) -> float:
        """Return the greatest event time of the chunk trained on last, seconds since the epoch; NaN without any."""
        times = [extras["event_time"].max() for extras in self._newest_extras if extras and "event_time" in extras]
        return float(max(times)) if times else self._restored_event_time

    def figures(self, rows_seen: int) -> dict[str, float]:
        """Return lag (rows), staleness (seconds), rows per second of the open window, and queue depth (chunks)."""
        now = time.monotonic()
        rows = rows_seen - self._rows_at_open
        lag = self.feed.source.stream.lag()
        return {
            "lag": float("nan") if lag is None else float(lag),
            "staleness": time.time() - self._event_time(),
            "rows_per_second": rows / max(now - self._opened, 1e-9),
            "queue_depth": float(self.feed.depth),
        }

    def _close_window(self, rows_seen: int) -> dict[str, float]:
        results = {"window_loss": self.loss.value()}
        if self.metrics is not None:
            self._score()
            results |= self.metrics.close_window()
        results |= self.figures(rows_seen)
        self.loss.clear()
        self._opened, self._rows_at_open = time.monotonic(), rows_seen
        return results

    def finish(self, ended: bool, rows_seen: int) -> dict[str, float] | None:
        """Return the results of the open window when the run ends; close it only when the stream `ended`.

        After any other stop the run may be resumed, and the window then goes on as if nothing had happened. None when
        the open window has no rows.
        """
        if self.loss.value() is None:
            return None
        if ended:
            return self._close_window(rows_seen)
        scored = {}
        if self.metrics is not None:
            self._score()
            scored = self.metrics.peek()
        return {"window_loss": self.loss.value(), **scored, **self.figures(rows_seen)}

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": ...}``, the open window included."""
        metrics: dict[str, Any] = {"json": None, "arrays": {}}
        if self.metrics is not None:
            self._score()
            metrics = self.metrics.state_dict()
        state = {
            "metrics": metrics["json"],
            "clock": self.clock.state_dict(time.monotonic()),
            "loss": self.loss.state_dict(),
            "event_time": self._event_time(),
        }
        return {"json": state, "arrays": metrics["arrays"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        saved = state["json"]
        if self.metrics is not None and saved["metrics"] is not None:
            self.metrics.load_state_dict({"json": saved["metrics"], "arrays": state["arrays"]})
        self.clock.load_state_dict(saved["clock"], time.monotonic())
        self.loss.load_state_dict(saved["loss"])
        self._newest_extras, self._restored_event_time = [], saved["event_time"]
