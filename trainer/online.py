"""What online training adds to the loop: windows, progressive validation and the figures of the stream."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.feed import Chunk, Feed
from trainer.metrics.loss_meter import LossMeter
from trainer.metrics.prequential import PrequentialMetrics, Window, WindowClock

if TYPE_CHECKING:
    from trainer.trainer import Trainer

DEFAULT_WINDOW = Window(rows=10_000)
SCORED_ROWS = 4096  # rows scored at once: for a batch of 32 one by one costs ten times as much


class OnlineMetrics:
    """Scores every chunk by the forward that trained on it, and closes windows.

    Args:
        trainer: whose state is written and whose callbacks are called.
        feed: the feed under way.
        window: when windows close and what is read of the outputs.
        scored: whether the program returns predictions; without them a window has the loss alone.
    """

    def __init__(self, trainer: Trainer, feed: Feed, window: Window, *, scored: bool) -> None:
        self.trainer = trainer
        self.feed = feed
        self.window = window
        self.metrics = PrequentialMetrics.from_window(window) if scored else None
        self.clock = WindowClock(window)
        self.loss = LossMeter()
        self._unscored: list[tuple[np.ndarray, ...]] = []
        self._unscored_rows = 0
        self._event_time = float("nan")
        self._opened = time.monotonic()
        self._rows_at_open = 0

    def names(self) -> tuple[str, ...]:
        """Return the names a window has, for callbacks that monitor one."""
        scored: list[str] = []
        if self.metrics is not None:
            kinds = ("auc", "log_loss", "normalized_entropy", "calibration")
            scored = [f"{horizon}_{kind}" for horizon in ("window", "decayed", "lifetime") for kind in kinds]
        return ("window_loss", *scored, "lag", "staleness", "rows_per_second", "queue_depth")

    def start(self) -> None:
        """Open the first window."""
        self._opened = time.monotonic()
        self._rows_at_open = self.trainer.state.progress.samples_seen
        self.clock.start(self._rows_at_open, self._opened)

    def after_step(self, chunk: Chunk) -> None:
        """Take in one trained chunk; close the window when it is due and call `on_window_end`."""
        trainer = self.trainer
        outputs = trainer.state.outputs
        self.loss.add(outputs)
        if self.metrics is not None:
            self._keep(outputs.predictions, chunk)
        newest = self._newest(chunk)
        if newest is not None:
            self._event_time = newest
        if self.clock.closed(trainer.state.progress.samples_seen, time.monotonic(), newest):
            self.close_window()

    def _keep(self, predictions: np.ndarray, chunk: Chunk) -> None:
        if chunk.stacked:
            predictions = predictions[: chunk.num_batches].reshape(-1, *predictions.shape[2:])
        columns = [predictions, chunk.rows(self.label_column(chunk))]
        if self.window.group is not None:
            columns.append(np.concatenate([extras[self.window.group] for extras in chunk.extras]))
        self._unscored.append(tuple(columns))
        self._unscored_rows += chunk.num_samples
        if self._unscored_rows >= SCORED_ROWS:
            self._score()

    def _score(self) -> None:
        if not self._unscored:
            return
        kept, self._unscored, self._unscored_rows = self._unscored, [], 0
        predictions, labels, *groups = kept[0] if len(kept) == 1 else map(np.concatenate, zip(*kept, strict=True))
        self.metrics.update(predictions, labels, groups=groups[0] if groups else None)

    def label_column(self, chunk: Chunk) -> int:
        """Return the position of the label among the chunk's columns."""
        wanted = self.window.label
        if isinstance(wanted, int):
            return wanted
        return chunk.names.index(wanted) if wanted is not None else len(chunk.names) - self.trainer.label_count

    def _newest(self, chunk: Chunk) -> float | None:
        times = [extras["event_time"].max() for extras in chunk.extras if extras and "event_time" in extras]
        return float(max(times)) if times else None

    def figures(self) -> dict[str, float]:
        """Return lag (rows), staleness (seconds), rows a second of the open window, and queue depth (chunks)."""
        now = time.monotonic()
        rows = self.trainer.state.progress.samples_seen - self._rows_at_open
        lag = self.feed.source.stream.lag()
        return {
            "lag": float("nan") if lag is None else float(lag),
            "staleness": time.time() - self._event_time,
            "rows_per_second": rows / max(now - self._opened, 1e-9),
            "queue_depth": float(self.feed.depth),
        }

    def close_window(self) -> None:
        """Close the open window and call `on_window_end`."""
        trainer = self.trainer
        results = {"window_loss": self.loss.value()}
        if self.metrics is not None:
            self._score()
            results |= self.metrics.close_window()
        trainer.state.window = {**results, **self.figures()}
        self.loss.clear()
        self._opened, self._rows_at_open = time.monotonic(), trainer.state.progress.samples_seen
        trainer.callbacks.call("on_window_end", trainer)

    def finish(self, ended: bool) -> None:
        """Show the open window when the run ends; close it only when the stream `ended`.

        After any other stop the run may be resumed, and the window then goes on as if nothing had happened.
        """
        if self.loss.value() is None:
            return
        if ended:
            self.close_window()
            return
        scored = {}
        if self.metrics is not None:
            self._score()
            scored = self.metrics.peek()
        self.trainer.state.window = {"window_loss": self.loss.value(), **scored, **self.figures()}

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
            "event_time": self._event_time,
        }
        return {"json": state, "arrays": metrics["arrays"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        saved = state["json"]
        if self.metrics is not None and saved["metrics"] is not None:
            self.metrics.load_state_dict({"json": saved["metrics"], "arrays": state["arrays"]})
        self.clock.load_state_dict(saved["clock"], time.monotonic())
        self.loss.load_state_dict(saved["loss"])
        self._event_time = saved["event_time"]
