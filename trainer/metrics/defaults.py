"""Detect the kind of target from the loss and first rows; choose default metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from mindspore import nn

from .binary import BUCKETS, Auc, BinaryMetrics
from .classes import Accuracy, LogLoss, is_one_hot
from .predictions import Activation, Meaning, check_activation
from .regression import R2, Bias, Mae, PoissonDeviance, Rmse
from .window import Window
from .window_metric import RowMetric

BINARY, LABELS, REAL, COUNT, CLASSES = "binary", "labels", "real", "count", "classes"
_MEANINGS: dict[tuple[type[nn.Cell], ...], Meaning] = {
    (nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss): Meaning(BINARY, "sigmoid"),
    (nn.BCELoss,): Meaning(BINARY),
    (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.MAELoss, nn.RMSELoss): Meaning(REAL),
    (nn.CrossEntropyLoss, nn.SoftmaxCrossEntropyWithLogits, nn.NLLLoss): Meaning(CLASSES, "softmax"),
}


def meaning_of(loss_fn: Any, activation: Activation | None = None) -> Meaning:
    """Return how to interpret predictions: the user's `activation`, else the loss's.

    The loss's attribute ``prediction_activation``, if any, takes precedence over the default for its class.
    """
    meaning = next((meaning for kinds, meaning in _MEANINGS.items() if isinstance(loss_fn, kinds)), Meaning())
    if isinstance(loss_fn, nn.PoissonNLLLoss):
        meaning = Meaning(COUNT, "exp" if loss_fn.log_input else None)
    declared = check_activation(
        f"{type(loss_fn).__name__}.prediction_activation", getattr(loss_fn, "prediction_activation", None)
    )
    ignored = getattr(loss_fn, "ignore_index", None) if meaning.target == CLASSES else None
    return Meaning(meaning.target, activation or declared or meaning.activation, ignored)


def set_meanings(metrics: Mapping[str, Any], meaning: Meaning) -> None:
    """Set how every `RowMetric` interprets predictions."""
    for metric in metrics.values():
        if isinstance(metric, RowMetric):
            metric.set_meaning(meaning)


def default_metrics(target: str, window: Window) -> dict[str, Any]:
    """Return the default metrics for a kind of target; empty if it is unknown."""
    sampling = ("auto", window.negative_sampling_rate, window.correct_probability)
    if target == BINARY:
        return {"": BinaryMetrics(*sampling)}
    if target == LABELS:
        return {"auc": Auc(buckets=BUCKETS), "log_loss": LogLoss(*sampling)}
    if target in (REAL, COUNT):
        numbers = {"mae": Mae(), "rmse": Rmse(), "bias": Bias(), "r2": R2()}
        return {**numbers, "poisson_deviance": PoissonDeviance()} if target == COUNT else numbers
    return {"accuracy": Accuracy(), "log_loss": LogLoss()} if target == CLASSES else {}


def possible_targets(loss_fn: Any) -> tuple[str, ...]:
    """Return the kinds of target a loss function may have, before any rows are known."""
    target = meaning_of(loss_fn).target
    if target == CLASSES:
        return (CLASSES, BINARY)  # two classes may be a binary label
    if target is None:
        return (BINARY, LABELS, REAL, CLASSES)
    return (BINARY, LABELS) if target == BINARY else (target,)


def target_of(loss_fn: Any, predictions: np.ndarray, labels: np.ndarray) -> str:
    """Return the kind of target of the first rows, or an empty string if unknown.

    The loss's class may determine it; otherwise the values and shapes do. `predictions` and `labels` have shape
    [B, ...]. If the activation changes the shape of predictions, it must have been applied.
    """
    meaning = meaning_of(loss_fn)
    target = meaning.target
    scores, labels = (array.reshape(len(array), math.prod(array.shape[1:])) for array in (predictions, labels))
    columns = scores.shape[1]
    if target in (REAL, COUNT):
        return target if scores.size == labels.size else ""
    one_label = labels.shape[1] == 1
    known = labels[~np.isnan(labels)] if labels.dtype.kind == "f" else labels
    if meaning.ignored is not None and one_label:
        known = known[known != meaning.ignored]
    is_binary = bool(np.isin(known, (0, 1)).all())
    if columns <= 2 and one_label and is_binary and predictions.ndim <= 2:
        return BINARY
    same_shape = predictions.ndim == 2 and columns > 1 and labels.shape == scores.shape
    one_hot = same_shape and is_binary and is_one_hot(labels)
    if same_shape and is_binary and (target == BINARY or (target is None and not one_hot)):
        return LABELS
    if target == BINARY:
        return ""
    is_whole = known.dtype.kind in "biu" or (target == CLASSES and bool((known == np.floor(known)).all()))
    if columns > 1:
        are_indices = one_label and is_whole and (not known.size or 0 <= known.min() <= known.max() < columns)
        return CLASSES if predictions.ndim == 2 and (are_indices or one_hot) else ""
    return REAL if one_label and target is None else ""
