"""Metrics of binary predictions: AUC, normalized entropy, calibration, and all of them in one pass.

Streaming, in bounded memory; log loss, which serves several classes too, is in `trainer.metrics.classes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..checks import whole
from .binary import BinarySumMetric, binary_scores, check_link, hard_labels
from .histogram import DEFAULT_BUCKETS, DEFAULT_BUFFER_ROWS, RowBuffer, ScoreHistogram
from .rows import row_weights
from .window_metric import RowMetric

BUCKETS = 4_096  # in `BinaryMetrics`, of which a stream keeps three


class Auc(RowMetric):
    """Area under the ROC curve over all rows since `clear`, in bounded memory.

    Within 1e-3 of the exact value at 10^6 scores, however they are distributed (see `trainer.metrics.histogram`); exact
    while there are no more distinct scores than buckets. NaN when only one class, no row, or a NaN prediction was seen.

    Args:
        link: how two columns become one score (see `trainer.metrics.binary.check_link`); only the order of rows counts.
        buckets: resolution; memory is 24 bytes times this, and 1 MB for rows waiting to be sorted.

    Raises:
        ConfigurationError: unknown link, or fewer than 2 buckets.
    """

    def __init__(self, link: str = "auto", buckets: int = DEFAULT_BUCKETS) -> None:
        super().__init__()
        self._link = check_link(link)
        self._histogram = ScoreHistogram(whole("buckets", buckets, 2))
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._histogram.clear()
        self._buffer = RowBuffer(DEFAULT_BUFFER_ROWS)
        self._nan_seen = False

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows: predictions [B], [B, 1] or [B, 2]; labels [B] or [B, 1], each 0 or 1; weights [B] or None."""
        scores, labels, _ = binary_scores(predictions, labels, self._link)
        positive = hard_labels(labels)
        weights = row_weights(weights, len(scores))
        self._nan_seen = self._nan_seen or bool(np.isnan(scores).any())
        for block in self._buffer.push(scores, positive, np.ones(len(scores)) if weights is None else weights):
            self._histogram.fold(*block)

    def merge(self, other: Auc) -> None:
        """Add the rows that `other` has seen; `other` keeps its value."""
        self._fold()
        other._fold()
        self._histogram.merge(other._histogram)
        self._nan_seen = self._nan_seen or other._nan_seen

    def decay(self, factor: float) -> None:
        """Multiply the weight of all rows."""
        self._fold()
        self._histogram.scale(factor)

    def value(self) -> float:
        """Return the AUC of all rows since `clear`, or NaN."""
        self._fold()
        return float("nan") if self._nan_seen else self._histogram.auc()

    def _fold(self) -> None:
        if self._buffer.rows:
            self._histogram.fold(*self._buffer.drain())

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": {name: array}}``; rows that wait to be sorted are among the arrays."""
        waiting = {f"waiting.{name}": array for name, array in self._buffer.state_dict()["arrays"].items()}
        return {"json": {"nan_seen": self._nan_seen}, "arrays": {**self._histogram.arrays(), **waiting}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.clear()
        self._histogram.load_arrays(state["arrays"])
        self._buffer.load_state_dict({"arrays": below("waiting.", state["arrays"])})
        self._nan_seen = bool(state["json"]["nan_seen"])


class NormalizedEntropy(BinarySumMetric):
    """Log loss over the entropy of the observed base rate (He et al. 2014); NaN when all labels are equal.

    Below 1 the predictions are better than always predicting the base rate. Arguments and errors as of `LogLoss`.
    """

    def value(self) -> float:
        """Return the normalized entropy."""
        return self._sums.normalized_entropy


class Calibration(BinarySumMetric):
    """Sum of predicted probabilities over the number of positives; 1 is perfect, NaN without positives.

    Arguments and errors as of `LogLoss`.
    """

    def value(self) -> float:
        """Return predicted over observed."""
        return self._sums.calibration


class BinaryMetrics(BinarySumMetric):
    """AUC, log loss, normalized entropy and calibration together, for a third of the work of four metrics.

    `value` returns them by these names. Rows are sorted as they come: give thousands at a time.

    Args:
        link, negative_sampling_rate, correct_probability: as of `LogLoss`.
        buckets: resolution of the AUC; see `trainer.metrics.histogram.ScoreHistogram`.

    Raises:
        ConfigurationError: a value out of range.
    """

    parts = ("auc", "log_loss", "normalized_entropy", "calibration")

    def __init__(
        self,
        link: str = "auto",
        negative_sampling_rate: float | None = None,
        correct_probability: bool = True,
        buckets: int = BUCKETS,
    ) -> None:
        super().__init__(link, negative_sampling_rate, correct_probability)
        self._histogram = ScoreHistogram(whole("buckets", buckets, 2))

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._histogram.clear()

    def restart(self) -> None:
        """Forget all rows; that predictions are logits stays known."""
        super().restart()
        self._histogram.clear()

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows: predictions [B], [B, 1] or [B, 2]; labels [B] or [B, 1], each 0 or 1; weights [B] or None."""
        scores, labels, logits = binary_scores(predictions, labels, self._link)
        if not len(scores):
            return
        positive = hard_labels(labels)
        weights = row_weights(weights, len(scores))
        self._sums.logits_seen = self._sums.logits_seen or logits
        self._sums.add(scores, positive, weights)
        self._histogram.fold(scores, positive, weights)

    def value(self) -> dict[str, float]:
        """Return the four values."""
        sums = self._sums
        values = (self._histogram.auc(), sums.log_loss, sums.normalized_entropy, sums.calibration)
        return dict(zip(self.parts, values, strict=True))

    def merge(self, other: BinaryMetrics) -> None:
        """Add the rows that `other` has seen."""
        super().merge(other)
        self._histogram.merge(other._histogram)

    def decay(self, factor: float) -> None:
        """Multiply the weight of all rows."""
        super().decay(factor)
        self._histogram.scale(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": {name: array}}``."""
        return {**super().state_dict(), "arrays": self._histogram.arrays()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self._histogram.load_arrays(state["arrays"])


def below(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays whose names begin with `prefix`, by the rest of their names."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
