"""Metrics of predictions of one of several classes: accuracy and log loss, for binary predictions too."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DataError
from .binary import BinarySumMetric, binary_scores, check_link, hard_labels
from .rows import row_weights, to_numpy
from .window_metric import SumMetric


def is_classes(predictions: Any) -> bool:
    """Return whether predictions have a score for each of more than two classes, on axis 1."""
    return len(predictions.shape) >= 2 and predictions.shape[1] > 2


def class_labels(predictions: np.ndarray, labels: np.ndarray, name: str) -> np.ndarray:
    """Return class numbers, int64, shape of the predictions without axis 1.

    Raises:
        DataError: labels that are neither class numbers nor one-hot, or whose shape does not fit.
    """
    shape = predictions.shape[:1] + predictions.shape[2:]
    if labels.shape == predictions.shape:
        return labels.argmax(axis=1)
    if labels.size != np.prod(shape, dtype=np.int64) or labels.shape[:1] != shape[:1]:
        raise DataError(
            f"{name} takes predictions of shape [B, C, ...] and labels of shape [B, ...] or one-hot of the same "
            f"shape; received predictions {predictions.shape} and labels {labels.shape}"
        )
    numbers = labels.reshape(shape).astype(np.int64)
    if labels.dtype.kind == "f" and not (numbers == labels.reshape(shape)).all():
        raise DataError(
            f"{name} takes whole class numbers; received {labels[numbers.reshape(labels.shape) != labels][0]!r}"
        )
    return numbers


class Accuracy(SumMetric):
    """Share of rows whose class is predicted right, over all rows since `clear`; NaN without rows.

    Unlike MindSpore's metric of that name it also takes binary predictions of one column, and weights.

    Args:
        link: for one column, whether predictions are probabilities (right above 0.5) or logits (right above 0); see
            `trainer.metrics.binary.check_link`.

    Raises:
        ConfigurationError: unknown link.
    """

    sums = ("weight", "right_identity", "right_logits", "outside_unit")

    def __init__(self, link: str = "auto") -> None:
        self._link = check_link(link)
        super().__init__()

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows.

        Args:
            predictions: [B, C, ...], or binary predictions of shape [B] or [B, 1].
            labels: class numbers [B, ...] or one-hot [B, C, ...]; for binary predictions 0 or 1, [B] or [B, 1].
            weights: shape [B] or None.
            groups: not read.
        """
        predictions, labels = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
        if predictions.ndim >= 2 and predictions.shape[1] > 1:
            right = predictions.argmax(axis=1) == class_labels(predictions, labels, "Accuracy")
            self._count(right, right, weights)
            return
        scores, labels, _ = binary_scores(predictions, labels, self._link)
        positive = hard_labels(labels)
        self._count((scores > 0.5) == positive, (scores > 0) == positive, weights)
        if len(scores) and (scores.min() < 0 or scores.max() > 1):
            self.total["outside_unit"] += 1.0

    def restart(self) -> None:
        """Forget all rows; that predictions are logits stays known."""
        outside = self.total["outside_unit"]
        self.clear()
        self.total["outside_unit"] = outside

    def expect_logits(self) -> None:
        """See `RowMetric.expect_logits`."""
        self.total["outside_unit"] += 1.0

    def _count(self, identity: np.ndarray, logits: np.ndarray, weights: Any) -> None:
        rows = len(identity)
        weights = row_weights(weights, rows)
        entries = identity.size // rows if rows else 0
        for name, right in (("right_identity", identity), ("right_logits", logits)):
            counts = right.reshape(rows, entries).sum(axis=1) if rows else np.zeros(0)
            self.total[name] += float(counts.sum() if weights is None else np.dot(weights, counts))
        self.total["weight"] += float(entries * (rows if weights is None else weights.sum()))

    def value(self) -> float:
        """Return the accuracy."""
        logits = self._link in ("sigmoid", "softmax") or (self._link == "auto" and self.total["outside_unit"] > 0)
        return self.mean("right_logits" if logits else "right_identity")


class LogLoss(BinarySumMetric):
    """Mean negative log likelihood in nats, over all rows since `clear`; NaN without rows.

    Binary predictions go by `link`. Of [B, C] predictions for C > 2 classes each row is taken for probabilities where
    it sums to 1 with nothing negative, else for logits; probabilities are clipped to the eps of their dtype.

    Args:
        link: how binary predictions become probabilities (see `trainer.metrics.binary.check_link`).
        negative_sampling_rate: share of negatives that was kept; each then counts 1 / rate.
        correct_probability: with a sampling rate, also correct predictions for it (see
            `trainer.metrics.binary.BinarySums`).

    Raises:
        ConfigurationError: unknown link, or a rate outside (0, 1].
    """

    def __init__(
        self, link: str = "auto", negative_sampling_rate: float | None = None, correct_probability: bool = True
    ) -> None:
        super().__init__(link, negative_sampling_rate, correct_probability)
        self._classes = _ClassLoss()

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._classes.clear()

    def restart(self) -> None:
        """Forget all rows; that predictions are logits stays known."""
        super().restart()
        self._classes.clear()

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows: binary as `Calibration` takes them, or [B, C] with class numbers [B] or one-hot labels [B, C]."""
        if is_classes(predictions):
            self._classes.add(predictions, labels, weights)
        else:
            super().add(predictions, labels, weights)

    def value(self) -> float:
        """Return the log loss."""
        return self._classes.value() if self._classes.total["weight"] else self._sums.log_loss

    def merge(self, other: LogLoss) -> None:
        """Add the rows that `other` has seen."""
        super().merge(other)
        self._classes.merge(other._classes)

    def decay(self, factor: float) -> None:
        """Multiply the weight of everything seen by `factor`."""
        super().decay(factor)
        self._classes.decay(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": {}}``."""
        return {"json": {**self._sums.state_dict(), "classes": dict(self._classes.total)}, "arrays": {}}

    def load_state_dict(self, state: Any) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self._classes.clear()
        if "classes" in state["json"]:  # snapshots before 0.2 know binary predictions alone
            self._classes.load_state_dict({"json": state["json"]["classes"]})


class _ClassLoss(SumMetric):
    sums = ("weight", "loss")

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        predictions, labels = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
        if predictions.ndim != 2:
            raise DataError(f"LogLoss takes predictions of shape [B], [B, 1] or [B, C]; received {predictions.shape}")
        numbers, rows = class_labels(predictions, labels, "LogLoss"), len(predictions)
        if rows and not (numbers.min() >= 0 and numbers.max() < predictions.shape[1]):
            span = f"{numbers.min()} to {numbers.max()}"
            raise DataError(f"LogLoss takes class numbers 0 to {predictions.shape[1] - 1}; received {span}")
        eps = np.finfo(predictions.dtype).eps if predictions.dtype.kind == "f" else np.finfo(np.float64).eps
        values = predictions.astype(np.float64)
        chosen = values[np.arange(rows), numbers]
        top = values.max(axis=1) if rows else np.zeros(0)
        logits_loss = top - chosen + np.log(np.exp(values - top[:, None]).sum(axis=1))
        probabilities = (values >= 0).all(axis=1) & (np.abs(values.sum(axis=1) - 1) < 1e-5)
        losses = np.where(probabilities, -np.log(np.clip(chosen, eps, 1 - eps)), logits_loss)
        weights = row_weights(weights, rows)
        self.total["weight"] += float(rows if weights is None else weights.sum())
        self.total["loss"] += float(losses.sum() if weights is None else np.dot(weights, losses))

    def value(self) -> float:
        return self.mean("loss")
