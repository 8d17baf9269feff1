"""Metrics of real-valued predictions: mean absolute error, root mean squared error, bias and R2.

Predictions and labels have one shape, up to axes of length 1. Weights count rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import DataError
from .rows import row_weights, to_numpy
from .window_metric import SumMetric


def residuals(predictions: Any, labels: Any, weights: Any, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return prediction minus label and label, float64 [B, D], and the rows' weights, float64 [B, 1].

    Raises:
        DataError: predictions and labels of different sizes.
    """
    predictions, labels = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
    rows = len(labels) if labels.ndim else 0
    if predictions.shape[:1] != labels.shape[:1] or predictions.size != labels.size:
        raise DataError(
            f"{name} takes predictions and labels of one shape, such as [B] or [B, 1]; received predictions "
            f"{predictions.shape} and labels {labels.shape}"
        )
    labels = labels.reshape(rows, -1 if rows else 1).astype(np.float64)
    weights = row_weights(weights, rows)
    weights = np.ones(rows) if weights is None else weights
    return predictions.reshape(labels.shape).astype(np.float64) - labels, labels, weights[:, None]


class Mae(SumMetric):
    """Mean absolute error: sum of w |p - y| over sum of w. As in MindSpore, the values of a row count by their sum."""

    sums = ("weight", "absolute")

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows."""
        error, _, weights = residuals(predictions, labels, weights, "Mae")
        self.total["weight"] += float(weights.sum())
        self.total["absolute"] += float((weights * np.abs(error)).sum())

    def value(self) -> float:
        """Return the mean; NaN without rows."""
        return self.mean("absolute")


class Rmse(SumMetric):
    """Root mean squared error: the square root of sum of w (p - y)^2 over sum of w, over all values."""

    sums = ("weight", "squared")

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows."""
        error, _, weights = residuals(predictions, labels, weights, "Rmse")
        self.total["weight"] += float(weights.sum()) * error.shape[1]
        self.total["squared"] += float((weights * error**2).sum())

    def value(self) -> float:
        """Return the error, in units of the label; NaN without rows."""
        return math.sqrt(self.mean("squared"))


class Bias(SumMetric):
    """Mean of prediction minus label, over all values: above 0 the network predicts too much."""

    sums = ("weight", "error")

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows."""
        error, _, weights = residuals(predictions, labels, weights, "Bias")
        self.total["weight"] += float(weights.sum()) * error.shape[1]
        self.total["error"] += float((weights * error).sum())

    def value(self) -> float:
        """Return the bias, in units of the label; NaN without rows."""
        return self.mean("error")


class R2(SumMetric):
    """Coefficient of determination, 1 - sum of w (p - y)^2 over sum of w (y - mean y)^2, over all values.

    1 is perfect, 0 as good as the mean label of the very rows, NaN when all labels are equal. The spread of the labels
    is kept about their mean and joined as in T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating Formulae and a Pairwise
    Algorithm for Computing Sample Variances", 1979, for a difference of two large sums would lose it.
    """

    sums = ("weight", "squared", "label_mean", "label_spread")

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows."""
        error, labels, weights = residuals(predictions, labels, weights, "R2")
        weight = float(weights.sum()) * error.shape[1]
        if not weight:
            return
        mean = float((weights * labels).sum()) / weight
        spread = float((weights * (labels - mean) ** 2).sum())
        self._join(weight, float((weights * error**2).sum()), mean, spread)

    def merge(self, other: R2) -> None:
        """Add the rows that `other` has seen."""
        self._join(*(other.total[name] for name in self.sums))

    def _join(self, weight: float, squared: float, mean: float, spread: float) -> None:
        total = self.total
        both = total["weight"] + weight
        if not both:
            return
        apart = mean - total["label_mean"]
        total["label_spread"] += spread + apart**2 * total["weight"] * weight / both
        total["label_mean"] += apart * weight / both
        total["squared"] += squared
        total["weight"] = both

    def decay(self, factor: float) -> None:
        """Multiply the weight of all rows; their mean label stays."""
        mean = self.total["label_mean"]
        super().decay(factor)
        self.total["label_mean"] = mean

    def value(self) -> float:
        """Return R2."""
        spread = self.total["label_spread"]
        return 1.0 - self.total["squared"] / spread if spread else float("nan")
