"""`DriftMonitor`: reports drift of a window metric or a feature."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Protocol

from trainer.checks import nonempty_text, number, refuse, whole
from trainer.errors import ConfigurationError

from .callback import Callback, Trainer
from .watched import is_window_name, window_value

logger = logging.getLogger(__name__)


class Detector(Protocol):
    """A change detector that receives one value at a time.

    If it has `state_dict` and `load_state_dict`, snapshots save its state.
    """

    def update(self, value: float) -> bool:
        """Add the next value; return whether a change was detected."""


class RisesAbove:
    """Detects when a value rises above a limit.

    It does not fire again before a value is at or below the limit.

    Args:
        limit: the largest value that does not count as a change, above 0.
    """

    def __init__(self, limit: float = 0.25) -> None:
        self.limit = number("RisesAbove(limit=...)", limit, above=0)
        self._above = False

    def update(self, value: float) -> bool:
        """Add a value; return whether it rises above the limit."""
        was_above, self._above = self._above, value > self.limit
        return self._above and not was_above

    def state_dict(self) -> dict[str, Any]:
        return {"above": self._above}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._above = bool(state["above"])


class DriftMonitor(Callback):
    """Feeds a metric of every closed window to a drift detector.

    When the detector fires, the hook `on_drift` of all callbacks is called; it may set `trainer.learning_rate`.

    With `feature`, the metric is "drift_<feature>". It is the population stability index of the feature's raw values in
    the window, compared with the rows on which the features were fitted, or with the first window if they were not
    fitted. By convention, a column counts as unchanged below 0.1 and as changed above 0.25.

    Args:
        detector: object with `update(value) -> bool` that detects changes. None is allowed with `feature` and means
            `RisesAbove(0.25)`.
        key: name of a value of closed windows: "window_log_loss" (or "log_loss"), "decayed_rmse", "lifetime_auc",
            "lag". None: "window_log_loss", or the drift of `feature`.
        feature: name of a declared feature (`trainer.features.Features`) to monitor instead of `key`.

    Raises:
        ConfigurationError: an argument is invalid, or, when training starts, the feature does not exist.
    """

    def __init__(self, detector: Detector | None = None, key: str | None = None, feature: str | None = None) -> None:
        if feature is not None:
            nonempty_text("DriftMonitor(feature=...)", feature, "the name of a declared feature")
            if key is not None:
                raise ConfigurationError("DriftMonitor takes key or feature, not both")
            self.drift_features = (feature,)
            key = f"drift_{feature}"
            detector = RisesAbove() if detector is None else detector
        key = "window_log_loss" if key is None else key
        if detector is None or not callable(getattr(detector, "update", None)):
            refuse("DriftMonitor(detector=...)", "an object with update(value) -> bool", detector)
        self.detector, self.key = detector, nonempty_text("DriftMonitor(key=...)", key, "the name of a window metric")
        self.monitor = key if is_window_name(key) else f"window_{key}"
        self.count = 0

    def on_window_end(self, trainer: Trainer) -> None:
        value = window_value(trainer.state.window, self.key)
        if value is None or math.isnan(value) or not self.detector.update(value):
            return
        self.count += 1
        progress = trainer.state.progress
        logger.warning("drift: %s = %.6g at step %d (change %d)", self.key, value, progress.global_step, self.count)
        trainer.report_drift(
            {
                "detector": type(self.detector).__name__,
                "key": self.key,
                "value": value,
                "count": self.count,
                "global_step": progress.global_step,
                "samples_seen": progress.samples_seen,
            }
        )

    def state_dict(self) -> dict[str, Any]:
        save = getattr(self.detector, "state_dict", None)
        detector = save() if callable(save) else None
        return {"key": self.key, "count": self.count, "detector": detector}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the count, and the detector if it has seen the same metric."""
        self.count = whole("count", state["count"], 0)
        if state.get("key", self.key) != self.key:  # snapshots of earlier releases have no key
            return
        load = getattr(self.detector, "load_state_dict", None)
        if state["detector"] is not None and callable(load):
            load(state["detector"])
