"""Counts of one binary label: loss sums and a score histogram.

Log loss and calibration are standard; normalized entropy and the correction for negative down-sampling are from X. He
et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..checks import number
from .histogram import RowBuffer, ScoreHistogram
from .predictions import Sums, check_link, joined_states, outside_unit, split_states, weighted_sum


class BinarySums(Sums):
    """Sums for log loss, normalized entropy and calibration.

    With link "auto" and one column, predictions may be probabilities or logits. The sums of both readings are kept
    until a prediction outside [0, 1] shows that they are logits, so the result does not depend on batch sizes. See
    `LogLoss` for the arguments.
    """

    sums = ("weight", "positives", "loss_identity", "predicted_identity", "loss_sigmoid", "predicted_sigmoid")

    def __init__(
        self, link: str = "auto", negative_sampling_rate: float | None = None, correct_probability: bool = True
    ) -> None:
        self.link = check_link(link)
        rate = number("negative_sampling_rate", negative_sampling_rate, above=0, maximum=1, optional=True)
        self.rate = 1.0 if rate is None else rate
        self.shift = math.log(self.rate) if correct_probability else 0.0
        self.logits_seen = link in ("sigmoid", "softmax")
        self.restart()

    restart = Sums.clear

    def add(self, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Add rows.

        Args:
            scores: shape [N], from `binary_scores`.
            labels: from 0 to 1, shape [N].
            weights: shape [N], or None.
        """
        labels = labels.astype(np.float64)
        if weights is None:
            weights = np.ones(len(labels))
        if self.rate != 1.0:
            weights = weights * (labels + (1.0 - labels) / self.rate)
        self.total["weight"] += float(weights.sum())
        self.total["positives"] += float(weighted_sum(weights, labels))
        if self.link == "auto" and not self.logits_seen:
            self.logits_seen = outside_unit(scores)
        if not self.logits_seen:
            loss, predicted = self._from_probabilities(scores, labels, weights)
            self.total["loss_identity"] += loss
            self.total["predicted_identity"] += predicted
        if self.link != "identity":
            loss, predicted = self._from_logits(scores.astype(np.float64), labels, weights)
            self.total["loss_sigmoid"] += loss
            self.total["predicted_sigmoid"] += predicted

    def _from_probabilities(self, p: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
        eps = float(np.finfo(p.dtype).eps)
        p = p.astype(np.float64)
        if self.shift:
            p = p / (p + (1.0 - p) / self.rate)
        clipped = np.clip(p, eps, 1.0 - eps)
        loss = labels * np.log(clipped) + (1.0 - labels) * np.log1p(-clipped)
        return -float(weighted_sum(weights, loss)), float(weighted_sum(weights, p))

    def _from_logits(self, z: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
        z = np.clip(z + self.shift, -1e30, 1e30)
        small = np.exp(-np.abs(z))
        loss = np.maximum(z, 0.0) - z * labels + np.log1p(small)
        p = np.where(z >= 0, 1.0, small) / (1.0 + small)
        return float(weighted_sum(weights, loss)), float(weighted_sum(weights, p))

    def merge(self, other: BinarySums) -> None:
        super().merge(other)
        self.logits_seen = self.logits_seen or other.logits_seen

    @property
    def log_loss(self) -> float:
        """Mean negative log likelihood in nats; NaN without rows.

        Probabilities are clipped to [eps, 1 - eps] with the eps of their dtype; logits are not clipped.
        """
        return self.mean("loss_sigmoid" if self.logits_seen else "loss_identity")

    @property
    def calibration(self) -> float:
        """Sum of predicted probabilities divided by sum of labels; NaN without positives."""
        return self.mean("predicted_sigmoid" if self.logits_seen else "predicted_identity", "positives")

    @property
    def normalized_entropy(self) -> float:
        """Log loss divided by the base rate's entropy; NaN if all labels are equal."""
        rate = self.mean("positives")
        if not 0.0 < rate < 1.0:
            return float("nan")
        return self.log_loss / -(rate * math.log(rate) + (1.0 - rate) * math.log1p(-rate))

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "json": {**state["json"], "logits_seen": self.logits_seen}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.logits_seen = bool(state["json"]["logits_seen"])


class AucCounts:
    """A histogram of scores with a buffer of unsorted rows.

    Args:
        buckets: resolution of the histogram; see `ScoreHistogram`.
        buffer_rows: number of rows collected before they are sorted; 0 sorts each batch immediately.
    """

    def __init__(self, buckets: int, buffer_rows: int) -> None:
        self._histogram = ScoreHistogram(buckets)
        self._buffer = RowBuffer(buffer_rows) if buffer_rows else None
        self._nan_seen = False

    def restart(self) -> None:
        self._histogram.clear()
        self._nan_seen = False
        if self._buffer is not None:
            self._buffer.rows = 0

    def add(self, scores: np.ndarray, positive: np.ndarray, weights: np.ndarray | None) -> None:
        """Add rows: float scores [N], bool `positive` [N], and weights [N] or None."""
        self._nan_seen = self._nan_seen or bool(np.isnan(scores).any())
        if self._buffer is None:
            self._histogram.add(scores, positive, weights)
            return
        for block in self._buffer.push(scores, positive, np.ones(len(scores)) if weights is None else weights):
            self._histogram.add(*block)

    def auc(self) -> float:
        """Return the AUC; NaN if a score was NaN or a class is missing."""
        self._flush()
        return float("nan") if self._nan_seen else self._histogram.auc()

    @property
    def histogram(self) -> ScoreHistogram:
        """Score histogram of all rows. The caller must not modify it."""
        self._flush()
        return self._histogram

    def merge(self, other: AucCounts) -> None:
        self._flush()
        other._flush()
        self._histogram.merge(other._histogram)
        self._nan_seen = self._nan_seen or other._nan_seen

    def decay(self, factor: float) -> None:
        self._flush()
        self._histogram.decay(factor)

    def _flush(self) -> None:
        if self._buffer is not None and self._buffer.rows:
            self._histogram.add(*self._buffer.drain())

    def state_dict(self) -> dict[str, Any]:
        states = {"histogram": {"json": {"nan_seen": self._nan_seen}, "arrays": self._histogram.arrays()}}
        if self._buffer is not None:
            states["waiting"] = {"json": None, **self._buffer.state_dict()}
        return joined_states(states)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        states = split_states(state)
        self._histogram.load_arrays(states["histogram"]["arrays"])
        self._nan_seen = bool(states["histogram"]["json"]["nan_seen"])
        if self._buffer is not None:
            self._buffer.load_state_dict(states["waiting"])
