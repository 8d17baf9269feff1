"""Binary predictions as metrics read them: accepted shapes, links from score to probability, and additive sums.

Sources of the formulas: log loss and calibration are the usual ones; normalized entropy and the correction for negative
down-sampling are from X. He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..checks import choice, number
from ..errors import DataError
from .rows import row_weights, to_numpy
from .window_metric import RowMetric

LINKS = ("auto", "sigmoid", "identity", "softmax")
_SHAPES = "predictions of shape [B], [B, 1] or [B, 2] and labels of shape [B] or [B, 1]"


def check_link(link: str) -> str:
    """Return `link` if it is a known one.

    - "sigmoid": predictions are logits of the positive class, shape [B] or [B, 1].
    - "identity": predictions are probabilities, of the positive class [B] or [B, 1], or of both classes [B, 2].
    - "softmax": predictions are logits of both classes, shape [B, 2].
    - "auto": two columns are probabilities where each row sums to 1, else logits. One column is logits where a Trainer
      with `nn.BCEWithLogitsLoss` asks for the metric; elsewhere it is taken for probabilities as long as every
      prediction seen lay in [0, 1], and for logits from the first one outside.

    Raises:
        ConfigurationError: there is no such link.
    """
    return choice("link", link, LINKS)


def binary_scores(predictions: Any, labels: Any, link: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return one score per row and its label.

    Args:
        predictions: shape [B], [B, 1] or [B, 2]; Tensor or array.
        labels: shape [B] or [B, 1]; Tensor or array of int, float or bool.
        link: see `check_link`. Two columns become one logit (with "identity", one probability).

    Returns:
        Scores, shape [B], float32 (float64 if the predictions are); labels, shape [B], any numeric dtype; and whether
        the scores are known to be logits. Both arrays may alias the inputs.

    Raises:
        DataError: the shapes do not fit each other or the link, or a probability lies outside [0, 1].
    """
    scores, labels = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
    shape, label_shape = scores.shape, labels.shape
    columns = shape[1] if len(shape) == 2 else 1 if len(shape) == 1 else 0
    label_columns = label_shape[1] if len(label_shape) == 2 else 1 if len(label_shape) == 1 else 0
    if columns not in (1, 2) or label_columns != 1 or shape[0] != label_shape[0]:
        raise DataError(f"a binary metric takes {_SHAPES}; received predictions {shape} and labels {label_shape}")
    if (link == "softmax" and columns == 1) or (link == "sigmoid" and columns == 2):
        wanted = "[B, 2]" if link == "softmax" else "[B] or [B, 1]"
        raise DataError(f"link={link!r} takes predictions of shape {wanted}; received predictions {shape}")
    if scores.dtype.kind != "f":
        scores = scores.astype(np.float32 if scores.dtype.itemsize < 4 else np.float64)
    scores = _one_column(scores, link) if columns == 2 else scores.reshape(-1)
    if link == "identity" and _outside_unit(scores):
        span = f"[{np.nanmin(scores):.6g}, {np.nanmax(scores):.6g}]"
        raise DataError(f"link='identity' takes probabilities in [0, 1]; received values in {span}; for logits, give "
                        "link='sigmoid'")  # fmt: skip
    known_logits = link in ("sigmoid", "softmax") or (link == "auto" and columns == 2)
    return scores, labels.reshape(-1), known_logits


def _one_column(scores: np.ndarray, link: str) -> np.ndarray:
    if link == "identity":
        return scores[:, 1]
    if link == "auto" and len(scores) and not _outside_unit(scores) and np.abs(scores.sum(axis=1) - 1).max() < 1e-5:
        tiny = np.finfo(scores.dtype).tiny
        return np.log(np.maximum(scores[:, 1], tiny)) - np.log(np.maximum(scores[:, 0], tiny))
    return scores[:, 1] - scores[:, 0]


def _outside_unit(scores: np.ndarray) -> bool:
    return len(scores) > 0 and bool(scores.min() < 0 or scores.max() > 1)


def hard_labels(labels: np.ndarray) -> np.ndarray:
    """Return whether each label is 1, shape [B], bool.

    Raises:
        DataError: a label is neither 0 nor 1.
    """
    positive = labels == 1
    if np.count_nonzero(positive) + np.count_nonzero(labels == 0) != len(labels):
        row = int(np.flatnonzero(~(positive | (labels == 0)))[0])
        raise DataError(f"labels of a binary metric are 0 or 1; received {labels[row]!r} in row {row}")
    return positive


class BinarySums:
    """Sums from which log loss, normalized entropy and calibration follow; mergeable, and scalable for decay.

    With link "auto" and predictions of one column both readings are kept, until a prediction outside [0, 1] decides for
    logits, so the result depends neither on the order of batches nor on how they were cut.

    Args:
        link: see `check_link`.
        negative_sampling_rate: share r of negatives that was kept, 0 < r <= 1; each negative then stands for 1 / r.
        correct_probability: with a sampling rate, take p for trained on the sample and read it as
            p / (p + (1 - p) / r). False when training weighted the negatives by 1 / r already.
    """

    _SUMS = ("weight", "positives", "loss_identity", "predicted_identity", "loss_sigmoid", "predicted_sigmoid")

    def __init__(
        self, link: str = "auto", negative_sampling_rate: float | None = None, correct_probability: bool = True
    ) -> None:
        self.link = check_link(link)
        rate = number("negative_sampling_rate", negative_sampling_rate, above=0, most=1, optional=True)
        self.rate = 1.0 if rate is None else rate
        self.shift = math.log(self.rate) if correct_probability else 0.0
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        for name in self._SUMS:
            setattr(self, name, 0.0)
        self.logits_seen = self.link in ("sigmoid", "softmax")

    def expect_logits(self) -> None:
        """Take predictions for logits until `clear`, where link is "auto"."""
        self.logits_seen = self.logits_seen or self.link == "auto"

    def restart(self) -> None:
        """Forget all rows; that predictions are logits, once seen, stays known."""
        logits_seen = self.logits_seen
        self.clear()
        self.logits_seen = logits_seen

    def add(self, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Add rows.

        Args:
            scores: shape [N], as `binary_scores` returns them.
            labels: shape [N]; 0, 1 or a probability between.
            weights: shape [N], float64; None counts each row once.
        """
        labels = labels.astype(np.float64)
        if weights is None:
            weights = np.ones(len(labels))
        if self.rate != 1.0:
            weights = weights * (labels + (1.0 - labels) / self.rate)
        self.weight += float(weights.sum())
        self.positives += float(np.dot(weights, labels))
        if self.link == "auto" and not self.logits_seen:
            self.logits_seen = _outside_unit(scores)
        if not self.logits_seen:
            loss, predicted = self._from_probabilities(scores, labels, weights)
            self.loss_identity += loss
            self.predicted_identity += predicted
        if self.link != "identity":
            loss, predicted = self._from_logits(scores.astype(np.float64), labels, weights)
            self.loss_sigmoid += loss
            self.predicted_sigmoid += predicted

    def _from_probabilities(self, p: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
        eps = float(np.finfo(p.dtype).eps)
        p = p.astype(np.float64)
        if self.shift:
            p = p / (p + (1.0 - p) / self.rate)
        clipped = np.clip(p, eps, 1.0 - eps)
        loss = labels * np.log(clipped) + (1.0 - labels) * np.log1p(-clipped)
        return -float(np.dot(weights, loss)), float(np.dot(weights, p))

    def _from_logits(self, z: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
        z = np.clip(z + self.shift, -1e30, 1e30)
        small = np.exp(-np.abs(z))
        loss = np.maximum(z, 0.0) - z * labels + np.log1p(small)
        p = np.where(z >= 0, 1.0, small) / (1.0 + small)
        return float(np.dot(weights, loss)), float(np.dot(weights, p))

    def merge(self, other: BinarySums) -> None:
        """Add the sums of `other`, which stays as it is."""
        for name in self._SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.logits_seen = self.logits_seen or other.logits_seen

    def scale(self, factor: float) -> None:
        """Multiply every sum by `factor`."""
        for name in self._SUMS:
            setattr(self, name, getattr(self, name) * factor)

    @property
    def log_loss(self) -> float:
        """Mean negative log likelihood in nats; NaN without rows.

        Probabilities are clipped to [eps, 1 - eps], eps that of their dtype; logits need no clipping.
        """
        loss = self.loss_sigmoid if self.logits_seen else self.loss_identity
        return loss / self.weight if self.weight else float("nan")

    @property
    def calibration(self) -> float:
        """Sum of predicted probabilities over sum of labels; 1 is perfect, NaN without positives."""
        predicted = self.predicted_sigmoid if self.logits_seen else self.predicted_identity
        return predicted / self.positives if self.positives else float("nan")

    @property
    def normalized_entropy(self) -> float:
        """Log loss over the entropy of the observed base rate; below 1 beats predicting the base rate.

        NaN when all labels are the same, for then the entropy is 0.
        """
        rate = self.positives / self.weight if self.weight else 0.0
        if not 0.0 < rate < 1.0:
            return float("nan")
        return self.log_loss / -(rate * math.log(rate) + (1.0 - rate) * math.log1p(-rate))

    def state_dict(self) -> dict[str, Any]:
        """Return the sums as JSON-serialisable values."""
        return {**{name: getattr(self, name) for name in self._SUMS}, "logits_seen": self.logits_seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in self._SUMS:
            setattr(self, name, float(state[name]))
        self.logits_seen = bool(state["logits_seen"])


def add_binary(sums: BinarySums, predictions: Any, labels: Any, weights: Any, link: str, name: str) -> None:
    """Add rows to `sums`: predictions [B], [B, 1] or [B, 2], labels [B] or [B, 1] in [0, 1], weights [B] or None.

    Raises:
        DataError: shapes that do not fit, labels outside [0, 1], probabilities outside [0, 1] with "identity".
    """
    scores, labels, logits = binary_scores(predictions, labels, link)
    if not len(labels):
        return
    low, high = labels.min(), labels.max()
    if not (low >= 0 and high <= 1):
        raise DataError(f"{name} takes labels in [0, 1]; received values in [{low}, {high}]")
    sums.logits_seen = sums.logits_seen or logits
    sums.add(scores, labels, row_weights(weights, len(scores)))


class BinarySumMetric(RowMetric):
    """Base of the metrics that follow from `BinarySums`; arguments as of `trainer.metrics.LogLoss`."""

    def __init__(
        self, link: str = "auto", negative_sampling_rate: float | None = None, correct_probability: bool = True
    ) -> None:
        super().__init__()
        self._link = check_link(link)
        self._sums = BinarySums(link, negative_sampling_rate, correct_probability)

    def clear(self) -> None:
        """Forget everything."""
        self._sums.clear()

    def restart(self) -> None:
        """Forget all rows; that predictions are logits stays known."""
        self._sums.restart()

    def expect_logits(self) -> None:
        """See `RowMetric.expect_logits`."""
        self._sums.expect_logits()

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows: predictions [B], [B, 1] or [B, 2]; labels [B] or [B, 1] in [0, 1]; weights [B] or None."""
        add_binary(self._sums, predictions, labels, weights, self._link, type(self).__name__)

    def merge(self, other: BinarySumMetric) -> None:
        """Add the rows that `other` has seen."""
        self._sums.merge(other._sums)

    def decay(self, factor: float) -> None:
        """Multiply the weight of all rows."""
        self._sums.scale(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": {}}``."""
        return {"json": self._sums.state_dict(), "arrays": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._sums.load_state_dict(state["json"])
