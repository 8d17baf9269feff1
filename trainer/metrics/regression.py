"""Regression metrics: MAE, RMSE, bias, R2, and Poisson deviance of counts.

Predictions and labels have the same shape, up to axes of length 1. A metric is computed for every output, which is a
column of labels [B, K] (or an entry of [B, ...]), and averaged over outputs: scikit-learn's "uniform_average". In
contrast, `mindspore.train.MAE` sums over the columns. Weights are per row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DataError
from .predictions import row_weights, to_numpy
from .window_metric import SumMetric


class OutputMetric(SumMetric):
    """Base of regression metrics: sums per output, float64 [K], and of weights."""

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
            self.total[name] = self.total[name] + weights @ self.terms(predictions, labels)

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return each row's contribution to the metric's sum, float64 [B, K]."""
        raise NotImplementedError

    def value(self) -> float:
        """Return the mean over outputs; NaN without rows."""
        return float(np.mean(self.mean(self.sums[1])))


class Mae(OutputMetric):
    """Mean absolute error: sum of w |p - y| over sum of w; the mean over outputs."""

    name = "mae"
    higher_is_better = False
    sums = ("weight", "absolute")

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.abs(predictions - labels)


class Rmse(OutputMetric):
    """Root mean squared error in units of the label; the mean over outputs.

    The root of sum of w (p - y)^2 over sum of w.
    """

    name = "rmse"
    higher_is_better = False
    sums = ("weight", "squared")

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return (predictions - labels) ** 2

    def value(self) -> float:
        return float(np.mean(np.sqrt(self.mean("squared"))))


class Bias(OutputMetric):
    """Mean of prediction minus label over outputs; above 0: overestimated."""

    name = "bias"
    sums = ("weight", "error")

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return predictions - labels


class PoissonDeviance(OutputMetric):
    """Mean Poisson deviance of counts, 2 (y log(y / p) - y + p); 0 is perfect.

    The mean over outputs. P. McCullagh and J. A. Nelder, "Generalized Linear Models", 1989. Predictions are rates above
    0; log-rates (`nn.PoissonNLLLoss()`) are converted to rates beforehand.

    Raises:
        DataError: a rate that is not above 0, or a label below 0.
    """

    name = "poisson_deviance"
    higher_is_better = False
    sums = ("weight", "deviance")

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        if not (predictions.min() > 0 and labels.min() >= 0):
            raise DataError(
                "PoissonDeviance takes rates above 0 and counts not below 0; received predictions from "
                f"{predictions.min():.6g} and labels from {labels.min():.6g}; Trainer(activation='exp') is for a "
                "network that returns log-rates"
            )
        ratio = np.divide(labels, predictions, out=np.ones_like(labels), where=labels > 0)
        return 2.0 * (labels * np.log(ratio) - labels + predictions)


class R2(OutputMetric):
    """Coefficient of determination; the mean over outputs.

    1 - sum of w (p - y)^2 over sum of w (y - mean y)^2: 1 is perfect, 0 as good as predicting the mean label of these
    rows. Outputs whose labels are all equal have no R2 and are skipped; NaN if no output has one. The squared deviation
    of the labels from their mean is kept, merged as in T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating Formulae and a
    Pairwise Algorithm for Computing Sample Variances", 1979, because a difference of two large sums would lose
    precision.
    """

    name = "r2"
    higher_is_better = True
    sums = ("weight", "squared", "label_mean", "label_spread")

    def add_outputs(self, predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        weight = float(weights.sum())
        if weight:
            mean = weights @ labels / weight
            self._join(weight, weights @ (predictions - labels) ** 2, mean, weights @ (labels - mean) ** 2)

    def merge(self, other: R2) -> None:
        self._join(*(other.total[name] for name in self.sums))

    def _join(self, weight: float, squared: Any, mean: Any, spread: Any) -> None:
        total = self.total
        both = total["weight"] + weight
        if both:
            apart = mean - total["label_mean"]
            self.total = {
                "weight": both,
                "squared": total["squared"] + squared,
                "label_mean": total["label_mean"] + apart * weight / both,
                "label_spread": total["label_spread"] + spread + apart**2 * total["weight"] * weight / both,
            }

    def decay(self, factor: float) -> None:
        """Multiply the weight of all rows; keep their mean label."""
        mean = self.total["label_mean"]
        super().decay(factor)
        self.total["label_mean"] = mean

    def value(self) -> float:
        squared, spread = np.atleast_1d(self.total["squared"], self.total["label_spread"])
        known = spread > 0
        return float(np.mean(1.0 - squared[known] / spread[known])) if known.any() else float("nan")
