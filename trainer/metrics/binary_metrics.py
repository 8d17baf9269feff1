"""Metrics of binary predictions for evaluation: AUC, log loss, normalized entropy and calibration.

Streaming, in bounded memory, with the protocol of `mindspore.train.Metric`, so they also work in `mindspore.Model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mindspore.train import Metric, rearrange_inputs

from ..checks import whole
from ..errors import DataError
from .binary import BinarySums, binary_scores, check_link, hard_labels, row_weights
from .histogram import DEFAULT_BUCKETS, RowBuffer, ScoreHistogram


class Auc(Metric):
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
        self._buffer = RowBuffer()
        self._nan_seen = False

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        """Add rows.

        Args:
            inputs: predictions of shape [B], [B, 1] or [B, 2]; labels of shape [B] or [B, 1], each 0 or 1; and, if
                wanted, sample weights of shape [B].

        Raises:
            DataError: shapes that do not fit, labels other than 0 and 1.
        """
        predictions, labels, weights = unpack(inputs, "Auc")
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

    def eval(self) -> float:
        """Return the AUC of all rows since `clear`, or NaN."""
        self._fold()
        return float("nan") if self._nan_seen else self._histogram.auc()

    def _fold(self) -> None:
        if self._buffer.rows:
            self._histogram.fold(*self._buffer.drain())

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": {name: array}}``."""
        self._fold()
        return {"json": {"nan_seen": self._nan_seen}, "arrays": self._histogram.arrays()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.clear()
        self._histogram.load_arrays(state["arrays"])
        self._nan_seen = bool(state["json"]["nan_seen"])


class _BinaryMetric(Metric):
    """Base of the metrics that follow from `BinarySums`; arguments as of `LogLoss`."""

    def __init__(
        self, link: str = "auto", negative_sampling_rate: float | None = None, correct_probability: bool = True
    ) -> None:
        super().__init__()
        self._link = check_link(link)
        self._sums = BinarySums(link, negative_sampling_rate, correct_probability)

    def clear(self) -> None:
        """Forget everything."""
        self._sums.clear()

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        """Add rows.

        Args:
            inputs: predictions of shape [B], [B, 1] or [B, 2]; labels of shape [B] or [B, 1] in [0, 1]; and, if
                wanted, sample weights of shape [B].

        Raises:
            DataError: shapes that do not fit, labels outside [0, 1], probabilities outside [0, 1] with "identity".
        """
        predictions, labels, weights = unpack(inputs, type(self).__name__)
        scores, labels, logits = binary_scores(predictions, labels, self._link)
        if not len(labels):
            return
        low, high = labels.min(), labels.max()
        if not (low >= 0 and high <= 1):
            raise DataError(f"{type(self).__name__} takes labels in [0, 1]; received values in [{low}, {high}]")
        self._sums.logits_seen = self._sums.logits_seen or logits
        self._sums.add(scores, labels, row_weights(weights, len(scores)))

    def merge(self, other: _BinaryMetric) -> None:
        """Add the rows that `other` has seen."""
        self._sums.merge(other._sums)

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": {}}``."""
        return {"json": self._sums.state_dict(), "arrays": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._sums.load_state_dict(state["json"])


class LogLoss(_BinaryMetric):
    """Mean negative log likelihood of binary labels, in nats, over all rows since `clear`; NaN without rows.

    Args:
        link: how predictions become probabilities (see `trainer.metrics.binary.check_link`).
        negative_sampling_rate: share of negatives that was kept; each then counts 1 / rate.
        correct_probability: with a sampling rate, also correct predictions for it (see
            `trainer.metrics.binary.BinarySums`).

    Raises:
        ConfigurationError: unknown link, or a rate outside (0, 1].
    """

    def eval(self) -> float:
        """Return the log loss."""
        return self._sums.log_loss


class NormalizedEntropy(_BinaryMetric):
    """Log loss over the entropy of the observed base rate (He et al. 2014); NaN when all labels are equal.

    Below 1 the predictions are better than always predicting the base rate. Arguments and errors as of `LogLoss`.
    """

    def eval(self) -> float:
        """Return the normalized entropy."""
        return self._sums.normalized_entropy


class Calibration(_BinaryMetric):
    """Sum of predicted probabilities over the number of positives; 1 is perfect, NaN without positives.

    Arguments and errors as of `LogLoss`.
    """

    def eval(self) -> float:
        """Return predicted over observed."""
        return self._sums.calibration


def unpack(inputs: Sequence[Any], name: str) -> tuple[Any, Any, Any]:
    """Return predictions, labels and weights (or None) of the inputs of an `update`."""
    if len(inputs) not in (2, 3):
        raise DataError(
            f"{name}.update takes predictions, labels and optionally weights; received {len(inputs)} inputs"
        )
    return inputs[0], inputs[1], inputs[2] if len(inputs) == 3 else None
