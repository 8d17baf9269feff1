"""Accuracy and log loss, for classes and for one or several binary labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DataError
from .binary import BinarySumMetric
from .predictions import (
    binary_scores,
    check_link,
    hard_labels,
    joined_states,
    row_weights,
    split_states,
    to_numpy,
    weighted_sum,
)
from .window_metric import SumMetric


def are_classes(predictions: np.ndarray, labels: np.ndarray, target: str | None) -> bool:
    """Return whether axis 1 of predictions holds class scores.

    Otherwise predictions belong to one or several binary labels. `target` is what the loss predicts, or None if that is
    unknown. In that case, predictions of the labels' shape are taken as classes if every label row is one-hot.
    """
    if predictions.ndim < 2 or predictions.shape[1] < 2:
        return False
    if predictions.shape != labels.shape:
        return True
    return target == "classes" or (target is None and is_one_hot(labels))


def may_be_either(predictions: np.ndarray, labels: np.ndarray, target: str | None) -> bool:
    """Return whether only the labels can tell classes, one-hot, from several labels.

    One batch cannot: by chance, its rows may have one label each.
    """
    return target is None and predictions.ndim == 2 and predictions.shape[1] > 1 and predictions.shape == labels.shape


def is_one_hot(labels: np.ndarray) -> bool:
    """Return whether labels [B, C, ...] are one-hot on axis 1."""
    return bool(np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all())


def class_labels(predictions: np.ndarray, labels: np.ndarray, name: str) -> np.ndarray:
    """Return class indices, int64, with the shape of `predictions` without axis 1."""
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
    """Share of correctly predicted rows since `clear`; NaN without rows.

    With several binary labels, [B, K], a row is correct if all its labels are correct, as in scikit-learn's
    `accuracy_score`. Unlike MindSpore's metric of the same name, it also accepts one-column binary predictions and
    weights.

    Args:
        link: for binary labels, whether predictions are probabilities (positive above 0.5) or logits (positive above
            0); see `trainer.metrics.predictions.check_link`.

    Raises:
        ConfigurationError: unknown link.
    """

    name = "accuracy"
    higher_is_better = True
    takes_raw = True
    # "right_classes" reads rows that may be of either kind as classes; "not_one_hot" is above 0 if a batch cannot be
    sums = ("weight", "right_identity", "right_logits", "outside_unit", "right_classes", "not_one_hot")

    def __init__(self, link: str = "auto") -> None:
        self._link = check_link(link)
        super().__init__()

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows.

        Args:
            predictions: [B, C, ...] for classes; [B] or [B, 1] for a binary label, [B, K] for several.
            labels: class indices [B, ...] or one-hot [B, C, ...]; 0 or 1 for binary labels, [B], [B, 1] or [B, K].
            weights: shape [B] or None.
            groups: ignored.
        """
        predictions, labels = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
        either = may_be_either(predictions, labels, self.meaning.target)
        if are_classes(predictions, labels, self.meaning.target):
            correct = predictions.argmax(axis=1) == class_labels(predictions, labels, "Accuracy")
            classes = {"right_classes": correct}
            if not either:
                self._count(weights, right_identity=correct, right_logits=correct, **classes)
                return
        else:
            classes = {}
            self.total["not_one_hot"] += 1.0
        is_multi_label = labels.ndim == 2 and labels.shape[1] > 1 and labels.shape == predictions.shape
        shape = labels.shape if is_multi_label else (len(labels),)
        columns = (predictions.reshape(-1), labels.reshape(-1)) if is_multi_label else (predictions, labels)
        scores, flat, _ = binary_scores(*columns, "auto" if is_multi_label else self._link)
        positive = hard_labels(flat)
        correct = (((scores > bound) == positive).reshape(shape) for bound in (0.5, 0.0))
        identity, logits = (rows.all(axis=1) if is_multi_label else rows for rows in correct)
        self._count(weights, right_identity=identity, right_logits=logits, **classes)
        if len(scores) and (scores.min() < 0 or scores.max() > 1):
            self.total["outside_unit"] += 1.0

    def restart(self) -> None:
        kept = {name: self.total[name] for name in ("outside_unit", "not_one_hot")}
        self.clear()
        self.total |= kept

    def _count(self, weights: Any, **sums: np.ndarray) -> None:
        """Add what is correct, [B, ...] of one shape, to the sums of these names."""
        first = next(iter(sums.values()))
        rows = len(first)
        weights = row_weights(weights, rows)
        entries = first.size // rows if rows else 0
        for name, correct in sums.items():
            counts = correct.reshape(rows, entries).sum(axis=1) if rows else np.zeros(0)
            self.total[name] += float(counts.sum() if weights is None else weighted_sum(weights, counts))
        self.total["weight"] += float(entries * (rows if weights is None else weights.sum()))

    def load_state_dict(self, state: Any) -> None:
        numbers = dict(state["json"])
        if "right_classes" not in numbers:  # older snapshots count classes in the other two sums, which then agree
            numbers["right_classes"] = numbers["right_identity"]
            numbers["not_one_hot"] = float(numbers["right_identity"] != numbers["right_logits"])
        super().load_state_dict({**state, "json": numbers})

    def value(self) -> float:
        if self.total["right_classes"] and not self.total["not_one_hot"]:
            return self.mean("right_classes")
        link = self._link if self._link != "auto" else self.meaning.activation
        logits = link in ("sigmoid", "softmax") or (link != "identity" and self.total["outside_unit"] > 0)
        return self.mean("right_logits" if logits else "right_identity")


class LogLoss(BinarySumMetric):
    """Mean negative log likelihood in nats over all rows; NaN without rows.

    With several binary labels, [B, K], the value is the mean of the labels' log losses. With classes, [B, C], a row is
    read as logits if the loss applies a softmax. Otherwise it is read as probabilities if it sums to 1 without negative
    values, else as logits. Probabilities are clipped to [eps, 1 - eps] with the eps of their dtype.

    Args:
        link: how to interpret binary predictions (see `trainer.metrics.predictions.check_link`).
        negative_sampling_rate: share r of negatives that was kept, 0 < r <= 1; each negative counts 1 / r.
        correct_probability: with a sampling rate, assume that the model was trained on the sample and correct each
            probability p to p / (p + (1 - p) / r). Use False if training already weighted negatives by 1 / r.

    Raises:
        ConfigurationError: unknown link, or a rate outside (0, 1].
    """

    name = "log_loss"
    higher_is_better = False

    def read(self, counts: Any) -> float:
        return counts.log_loss

    def clear(self) -> None:
        super().clear()
        self._classes = _ClassLoss()
        self._not_one_hot = False  # whether a batch that may be of either kind was of several labels

    def restart(self) -> None:
        super().restart()
        self._classes.clear()

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add binary rows (see `BinaryMetric.add`) or classes.

        Classes are predictions [B, C] with class indices [B] or one-hot labels [B, C].
        """
        predictions, labels = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
        two_columns = predictions.shape[1:] == (2,) and predictions.shape != labels.shape
        either = may_be_either(predictions, labels, self.meaning.target)
        if are_classes(predictions, labels, self.meaning.target) and not two_columns:
            self._classes.meaning = self.meaning
            self._classes.add(predictions, labels, weights)
            if not either:
                return
        elif either:
            self._not_one_hot = True
        super().add(predictions, labels, weights)

    def value(self) -> float | dict[str, float]:
        are_classes = self._classes.total["weight"] and not self._not_one_hot
        return self._classes.value() if are_classes else super().value()

    def merge(self, other: LogLoss) -> None:
        super().merge(other)
        self._classes.merge(other._classes)
        self._not_one_hot |= other._not_one_hot

    def decay(self, factor: float) -> None:
        super().decay(factor)
        self._classes.decay(factor)

    def state_dict(self) -> dict[str, Any]:
        kind = {"json": self._not_one_hot, "arrays": {}}
        return joined_states({"labels": super().state_dict(), "classes": self._classes.state_dict(), "kind": kind})

    def load_state_dict(self, state: Any) -> None:
        states = split_states(state)
        super().load_state_dict(states["labels"])
        self._classes.load_state_dict(states["classes"])
        self._not_one_hot = "kind" in states and states["kind"]["json"] is True  # older snapshots lack it


class _ClassLoss(SumMetric):
    sums = ("weight", "loss")

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
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
        losses = top - chosen + np.log(np.exp(values - top[:, None]).sum(axis=1))
        if self.meaning.activation != "softmax":
            probabilities = (values >= 0).all(axis=1) & (np.abs(values.sum(axis=1) - 1) < 1e-5)
            losses = np.where(probabilities, -np.log(np.clip(chosen, eps, 1 - eps)), losses)
        weights = row_weights(weights, rows)
        self.total["weight"] += float(rows if weights is None else weights.sum())
        self.total["loss"] += float(losses.sum() if weights is None else weighted_sum(weights, losses))

    def value(self) -> float:
        return self.mean("loss")
