"""Metrics of numbers: mean absolute error, root mean squared error, bias, R2, and Poisson deviance of counts.

Predictions and labels have one shape, up to axes of length 1. Each is computed for every output, which is a column of
labels [B, K] (or an entry of [B, ...]), and the mean over the outputs is returned: scikit-learn's "uniform_average".
MindSpore's own `mindspore.train.MAE` adds the columns of a row up instead. Weights count rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DataError
from .predictions import row_weights, to_numpy
from .window_metric import SumMetric


class OutputMetric(SumMetric):
    """Base of metrics of numbers: sums for each output, float64 [K], and "weight", the sum of the rows' weights."""

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows.

        Args:
            predictions, labels: [B], [B, 1] or [B, ...], as many values in both.
            weights: [B] or None.
            groups: not read.

        Raises:
            DataError: predictions and labels of different sizes.
        """
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
        self.add_outputs(
            predictions.reshape(labels.shape).astype(np.float64), labels, np.ones(rows) if weights is None else weights
        )

    def add_outputs(self, predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        """Add rows: predictions and labels float64 [B, K], weights float64 [B]."""
        self.total["weight"] += float(weights.sum())
        for name in self.sums[1:]:
            self.total[name] = self.total[name] + weights @ self.terms(predictions, labels)

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return what each row adds to the sum, float64 [B, K]; for metrics of one sum besides the weight."""
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
        """Return absolute errors."""
        return np.abs(predictions - labels)


class Rmse(OutputMetric):
    """Root mean squared error: the root of sum of w (p - y)^2 over sum of w; the mean over outputs."""

    name = "rmse"
    higher_is_better = False
    sums = ("weight", "squared")

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return squared errors."""
        return (predictions - labels) ** 2

    def value(self) -> float:
        """Return the error, in units of the label; NaN without rows."""
        return float(np.mean(np.sqrt(self.mean("squared"))))


class Bias(OutputMetric):
    """Mean of prediction minus label; the mean over outputs. Above 0 the network predicts too much."""

    name = "bias"
    sums = ("weight", "error")

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return errors."""
        return predictions - labels


class PoissonDeviance(OutputMetric):
    """Mean Poisson deviance of counts, 2 (y log(y / p) - y + p); the mean over outputs. 0 is perfect.

    P. McCullagh and J. A. Nelder, "Generalized Linear Models", 1989. Predictions are rates above 0; those of a loss of
    the log-rate (`nn.PoissonNLLLoss()`) become rates before they get here.

    Raises:
        DataError: a rate that is not above 0, or a label below 0.
    """

    name = "poisson_deviance"
    higher_is_better = False
    sums = ("weight", "deviance")

    def terms(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return deviances."""
        if not (predictions.min() > 0 and labels.min() >= 0):
            raise DataError(
                "PoissonDeviance takes rates above 0 and counts not below 0; received predictions from "
                f"{predictions.min():.6g} and labels from {labels.min():.6g}; Trainer(activation='exp') is for a "
                "network that returns log-rates"
            )
        ratio = np.divide(labels, predictions, out=np.ones_like(labels), where=labels > 0)
        return 2.0 * (labels * np.log(ratio) - labels + predictions)


class R2(OutputMetric):
    """Coefficient of determination, 1 - sum of w (p - y)^2 over sum of w (y - mean y)^2; the mean over outputs.

    1 is perfect, 0 as good as the mean label of the very rows. Outputs whose labels are all equal have none and do not
    count; NaN when no output has one. The spread of the labels is kept about their mean and merged as in T. F. Chan,
    G. H. Golub, R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979: a
    difference of two large sums would lose it.
    """

    name = "r2"
    higher_is_better = True
    sums = ("weight", "squared", "label_mean", "label_spread")

    def add_outputs(self, predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        """Add rows: predictions and labels float64 [B, K], weights float64 [B]."""
        weight = float(weights.sum())
        if weight:
            mean = weights @ labels / weight
            self._join(weight, weights @ (predictions - labels) ** 2, mean, weights @ (labels - mean) ** 2)

    def merge(self, other: R2) -> None:
        """Add the rows that `other` has seen."""
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
        """Multiply the weight of all rows; their mean label stays."""
        mean = self.total["label_mean"]
        super().decay(factor)
        self.total["label_mean"] = mean

    def value(self) -> float:
        """Return R2."""
        squared, spread = np.atleast_1d(self.total["squared"], self.total["label_spread"])
        known = spread > 0
        return float(np.mean(1.0 - squared[known] / spread[known])) if known.any() else float("nan")
