"""`DriftMonitor`: watch a windowed metric for a change of the data, and answer it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from trainer.checks import function, number, refuse, whole
from trainer.errors import ConfigurationError

from .callback import Callback
from .watched import is_window_name, window_value

if TYPE_CHECKING:
    from trainer.trainer import Trainer

logger = logging.getLogger(__name__)


class Detector(Protocol):
    """A change detector, fed one value at a time; with `state_dict`/`load_state_dict` it survives a resume."""

    def update(self, value: float) -> bool:
        """Take the next value; return whether a change was detected at it."""


class DriftMonitor(Callback):
    """Feeds a metric of every closed online window to a detector; when it fires, raises the event `on_drift`.

    The event reaches every callback of the trainer; `trainer.state.drift` then holds "detector", "key", "value",
    "count" (changes so far), "global_step" and "samples_seen".

    Args:
        detector: what decides, `update(value) -> bool`.
        key: any value of a closed window: "window_log_loss" (or "log_loss"), "decayed_rmse", "lifetime_auc", "lag".
        on_drift: function of the trainer, called at the event besides other callbacks' hooks, or None.
        lr_factor: what the learning rate is multiplied by after a change, or None to leave it.
        lr_windows: windows after which the rate is divided by `lr_factor` again; a change in between starts the
            count anew and does not multiply a second time.

    Raises:
        ConfigurationError: an argument is not of the kind named; at `setup`, `lr_factor` is given and the learning
            rate cannot be set.
    """

    def __init__(
        self,
        detector: Detector,
        key: str = "window_log_loss",
        on_drift: Callable[[Any], Any] | None = None,
        lr_factor: float | None = None,
        lr_windows: int = 10,
    ) -> None:
        if not callable(getattr(detector, "update", None)):
            refuse("DriftMonitor(detector=...)", "an object with update(value) -> bool", detector)
        if not isinstance(key, str) or not key:
            refuse("DriftMonitor(key=...)", "the name of a window metric", key)
        self.detector, self.key = detector, key
        self.monitor = key if is_window_name(key) else f"window_{key}"
        self.lr_factor = number("DriftMonitor(lr_factor=...)", lr_factor, above=0, optional=True)
        self.lr_windows = whole("DriftMonitor(lr_windows=...)", lr_windows, 1)
        if function("DriftMonitor(on_drift=...)", on_drift) is not None:
            self.on_drift = on_drift  # type: ignore[method-assign, assignment]
        self.count = 0
        self._windows_left = 0

    def setup(self, trainer: Trainer) -> None:
        """Refuse a learning-rate response where the rate cannot be set."""
        if self.lr_factor is None:
            return
        if trainer.learning_rate is None:
            raise ConfigurationError("DriftMonitor(lr_factor=...) needs an optimizer with a constant learning rate")
        trainer.learning_rate = trainer.learning_rate  # raises for a schedule, now instead of in the middle of a run

    def on_window_end(self, trainer: Trainer) -> None:
        """Feed the detector; end a learning-rate response whose time is over."""
        if self._windows_left:
            self._windows_left -= 1
            if not self._windows_left:
                trainer.learning_rate = trainer.learning_rate / self.lr_factor
        value = window_value(trainer.state.window, self.key)
        if value is None or value != value or not self.detector.update(value):
            return
        self.count += 1
        progress = trainer.state.progress
        found = {
            "detector": type(self.detector).__name__,
            "key": self.key,
            "value": value,
            "count": self.count,
            "global_step": progress.global_step,
            "samples_seen": progress.samples_seen,
        }
        logger.warning("drift: %s = %.6g at step %d (change %d)", self.key, value, progress.global_step, self.count)
        if self.lr_factor is not None:
            if not self._windows_left:
                trainer.learning_rate = trainer.learning_rate * self.lr_factor
            self._windows_left = self.lr_windows
        trainer.report_drift(found)

    def state_dict(self) -> dict[str, Any]:
        """Return the count, what is left of a response, and the detector's state when it offers one."""
        save = getattr(self.detector, "state_dict", None)
        detector = save() if callable(save) else None
        return {"count": self.count, "windows_left": self._windows_left, "detector": detector}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.count = whole("count", state["count"], 0)
        self._windows_left = whole("windows_left", state["windows_left"], 0)
        load = getattr(self.detector, "load_state_dict", None)
        if state["detector"] is not None and callable(load):
            load(state["detector"])
