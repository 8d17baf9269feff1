"""Regression metrics: MAE, RMSE, bias, R2, and Poisson deviance of counts.

Predictions and labels have the same shape, up to axes of length 1. Each column of labels [B, K] (or entry of [B, ...])
is an output. A metric is computed for every output and averaged over outputs, like scikit-learn's "uniform_average"; in
contrast, `mindspore.train.MAE` sums over the columns. In the formulas, p is the prediction, y the label, and w the row
weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DataError
from .predictions import row_weights, to_numpy, weighted_sum
from .window_metric import SumMetric


class OutputMetric(SumMetric):
    """Base of regression metrics: one sum per output, float64 [K], and total weight."""

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows: predictions and labels of equal size, [B], [B, 1] or [B, ...]."""
        predictions, labels = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
        rows = len(labels) if labels.ndim else 0
        if predictions.shape[:1] != labels.shape[:1] or predictions.size != labels.size:
            raise DataError(
                f"{type(self).__name__} takes predictions and labels of one shape, such as [B] or [B, 1]; received "
                f"predictions {predictions.shape} and labels {labels.shape}"
            )
        if not rows:
            return
        labels = labels.reshape(rows, -1).astype(np.float64)
        weights = row_weights(weights, rows)
        weights = np.ones(rows) if weights is None else weights
        self.add_outputs(predictions.reshape(labels.shape).astype(np.float64), labels, weights)

    def add_outputs(self, predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        """Add rows: predictions and labels float64 [B, K], weights float64 [B]."""
        self.total["weight"] += float(weights.sum())
        for name in self.sums[1:]:
            self.total[name] = self.total[name] + weighted_sum(weights, self.terms(predictions, labels))

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the contribution of each row to the metric's sum, float64 [B, K]."""
        raise NotImplementedError

    def value(self) -> float:
        """Return the mean over outputs; NaN without rows."""
        return float(np.mean(self.mean(self.sums[1])))


class Mae(OutputMetric):
    """Mean absolute error, averaged over outputs: sum of w |p - y| / sum of w."""

    name = "mae"
    higher_is_better = False
    sums = ("weight", "absolute")

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.abs(predictions - labels)


class Rmse(OutputMetric):
    """Root mean squared error in units of the label, averaged over outputs.

    The formula is sqrt(sum of w (p - y)^2 / sum of w).
    """

    name = "rmse"
    higher_is_better = False
    sums = ("weight", "squared")

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return (predictions - labels) ** 2

    def value(self) -> float:
        return float(np.mean(np.sqrt(self.mean("squared"))))


class Bias(OutputMetric):
    """Mean of prediction minus label; positive if predictions are too high."""

    name = "bias"
    sums = ("weight", "error")

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return predictions - labels


class PoissonDeviance(OutputMetric):
    """Mean Poisson deviance of counts, averaged over outputs; 0 is perfect.

    The deviance of a row is 2 (y log(y / p) - y + p); see P. McCullagh and J. A. Nelder, "Generalized Linear Models",
    1989. Predictions are positive rates; log-rates (`nn.PoissonNLLLoss()`) are converted to rates before.

    Raises:
        DataError: a rate that is not positive, or a negative label.
    """

    name = "poisson_deviance"
    higher_is_better = False
    sums = ("weight", "deviance")

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        if not (predictions.min() > 0 and labels.min() >= 0):
            raise DataError(
                "PoissonDeviance takes rates above 0 and counts not below 0; received predictions from "
                f"{predictions.min():.6g} and labels from {labels.min():.6g}; "
                "Trainer(prediction_activation='exp') is for a network that returns log-rates"
            )
        ratio = np.divide(labels, predictions, out=np.ones_like(labels), where=labels > 0)
        return 2.0 * (labels * np.log(ratio) - labels + predictions)


class R2(OutputMetric):
    """Coefficient of determination, averaged over outputs.

    The formula is 1 - sum of w (p - y)^2 / sum of w (y - mean y)^2. A value of 1 is perfect; 0 is as good as always
    predicting the mean label of these rows. Outputs whose labels are all equal have no R2 and are skipped; the value is
    NaN if no output has one. The sum of squared deviations from the mean label is updated directly, because computing
    it as the difference of two large sums would lose precision; see T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating
    Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
    """

    name = "r2"
    higher_is_better = True
    sums = ("weight", "squared", "label_mean", "label_spread")

    def add_outputs(self, predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        weight = float(weights.sum())
        if weight:
            mean = weighted_sum(weights, labels) / weight
            squared = weighted_sum(weights, (predictions - labels) ** 2)
            self._combine(weight, squared, mean, weighted_sum(weights, (labels - mean) ** 2))

    def merge(self, other: R2) -> None:
        self._combine(*(other.total[name] for name in self.sums))

    def _combine(self, weight: float, squared: Any, mean: Any, spread: Any) -> None:
        total = self.total
        weight_sum = total["weight"] + weight
        if weight_sum:
            difference = mean - total["label_mean"]
            self.total = {
                "weight": weight_sum,
                "squared": total["squared"] + squared,
                "label_mean": total["label_mean"] + difference * weight / weight_sum,
                "label_spread": total["label_spread"] + spread + difference**2 * total["weight"] * weight / weight_sum,
            }

    def decay(self, factor: float) -> None:
        """Multiply the weight of all rows by `factor`; keep their mean label."""
        mean = self.total["label_mean"]
        super().decay(factor)
        self.total["label_mean"] = mean

    def value(self) -> float:
        squared, spread = np.atleast_1d(self.total["squared"], self.total["label_spread"])
        has_spread = spread > 0
        return float(np.mean(1.0 - squared[has_spread] / spread[has_spread])) if has_spread.any() else float("nan")
