"""Which metrics a stream's windows count when none were chosen: the loss function and the first rows decide."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from mindspore import nn

from .binary_metrics import BinaryMetrics
from .classes import Accuracy, LogLoss
from .regression import R2, Bias, Mae, Rmse
from .window import Window
from .window_metric import RowMetric

BINARY, REAL, CLASSES = "binary", "real", "classes"
_OF_LOSS = {
    BINARY: (nn.BCEWithLogitsLoss, nn.BCELoss),
    REAL: (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.MAELoss, nn.RMSELoss),
    CLASSES: (nn.CrossEntropyLoss, nn.SoftmaxCrossEntropyWithLogits, nn.NLLLoss),
}


def metrics_of(target: str, window: Window) -> dict[str, Any]:
    """Return the metrics of a kind of target, by name: "binary", "real" or "classes"; of any other kind none."""
    if target == BINARY:
        return {"": BinaryMetrics(window.link, window.negative_sampling_rate, window.correct_probability)}
    if target == REAL:
        return {"mae": Mae(), "rmse": Rmse(), "bias": Bias(), "r2": R2()}
    return {"accuracy": Accuracy(), "log_loss": LogLoss()} if target == CLASSES else {}


def expect_logits(loss_fn: Any, metrics: Mapping[str, Any]) -> None:
    """Tell metrics that binary predictions are logits, if the loss function takes logits.

    Else those of a network that begins with zeros would pass for the probability 0.
    """
    if isinstance(loss_fn, nn.BCEWithLogitsLoss):
        for metric in metrics.values():
            if isinstance(metric, RowMetric):
                metric.expect_logits()


def possible_targets(loss_fn: Any) -> tuple[str, ...]:
    """Return the kinds of target a loss function may have, for what is asked before the first rows are there."""
    told = _told_by(loss_fn)
    if told == CLASSES:
        return (CLASSES, BINARY)  # predictions of two columns
    return (told,) if told else (BINARY, REAL, CLASSES)


def target_of(loss_fn: Any, predictions: np.ndarray, labels: np.ndarray) -> str:
    """Return the kind of target of the first rows, or an empty string when it is none of the three.

    Args:
        loss_fn: the loss function, whose class may say.
        predictions: shape [B, ...].
        labels: shape [B, ...].
    """
    told = _told_by(loss_fn)
    scores, labels = (array.reshape(len(array), math.prod(array.shape[1:])) for array in (predictions, labels))
    columns = scores.shape[1]
    if told == REAL:
        return REAL if scores.size == labels.size else ""
    one_label = labels.shape[1] == 1
    known = labels[~np.isnan(labels)] if labels.dtype.kind == "f" else labels
    hard = bool(np.isin(known, (0, 1)).all())
    if columns <= 2 and one_label and hard and predictions.ndim <= 2:
        return BINARY
    if told == BINARY:
        return ""
    whole = known.dtype.kind in "biu" or (told == CLASSES and bool((known == np.floor(known)).all()))
    if columns > 1:
        one_hot = labels.shape == scores.shape and hard and bool((labels.sum(axis=1) == 1).all())
        numbered = one_label and whole and (not known.size or 0 <= known.min() <= known.max() < columns)
        return CLASSES if predictions.ndim == 2 and (numbered or one_hot) else ""
    return REAL if one_label and told is None else ""


def _told_by(loss_fn: Any) -> str | None:
    return next((target for target, kinds in _OF_LOSS.items() if isinstance(loss_fn, kinds)), None)
