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
    """A change detector that takes one value at a time.

    With `state_dict` and `load_state_dict` it survives a resume.
    """

    def update(self, value: float) -> bool:
        """Add the next value; return whether a change was detected."""


class RisesAbove:
    """Fires when a value rises above a limit; again only after a value at or below it.

    Args:
        limit: the greatest value that is no change, above 0.
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

    When the detector fires, the hook `on_drift` of every callback is called, and may set `trainer.learning_rate`. With
    `feature`, the metric is "drift_<feature>": the population stability index of that declared feature's raw values in
    the window, compared with the rows that the features learned from, or with the first window if they learned from
    none. Below 0.1 a column is usually called unchanged, above 0.25 changed.

    Args:
        detector: object with `update(value) -> bool`, which decides; None, with `feature`: `RisesAbove(0.25)`.
        key: any value of a closed window: "window_log_loss" (or "log_loss"), "decayed_rmse", "lifetime_auc", "lag".
            None: "window_log_loss", or the drift of `feature`.
        feature: name of a declared feature (`trainer.features.Features`) whose values are compared, in place of `key`.

    Raises:
        ConfigurationError: an argument is invalid; before training, there is no such feature.
    """

    def __init__(
        self,
        detector: Detector | None = None,
        key: str | None = None,
        feature: str | None = None,
    ) -> None:
        if feature is not None:
            nonempty_text("DriftMonitor(feature=...)", feature, "the name of a declared feature")
            if key is not None:
                raise ConfigurationError("DriftMonitor takes key or feature, not both")
            self.drift_features = (feature,)
            key = f"drift_{feature}"
            detector = RisesAbove() if detector is None else detector
        key = "window_log_loss" if key is None else key
        if not callable(getattr(detector, "update", None)):
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
        return {"count": self.count, "detector": detector}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = whole("count", state["count"], 0)
        load = getattr(self.detector, "load_state_dict", None)
        if state["detector"] is not None and callable(load):
            load(state["detector"])
