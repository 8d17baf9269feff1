"""How metrics read predictions: the activation that gives them the label's unit, and scores of binary labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import choice, refuse
from ..errors import DataError, did_you_mean
from .rows import to_numpy

Activation = str | Callable[[np.ndarray], np.ndarray]


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda predictions: predictions,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
    "exp": np.exp,
}


@dataclass(frozen=True)
class Meaning:
    """What the loss function, or the user, says about predictions.

    Attributes:
        target: "binary" (several columns are independent labels), "classes", "real", "count"; None: not known.
        activation: a key of `ACTIVATIONS`, or a function of the predictions, a NumPy array [B, ...]; None: not known.
    """

    target: str | None = None
    activation: Activation | None = None


def check_activation(argument: str, activation: Any) -> Activation | None:
    """Return `activation` if it is None, a known name or a function.

    Raises:
        ConfigurationError: it is not; the nearest name is given.
    """
    if activation is None or callable(activation) or (isinstance(activation, str) and activation in ACTIVATIONS):
        return activation
    accepted = f"{', '.join(map(repr, ACTIVATIONS))}, a function of a NumPy array or None"
    refuse(argument, accepted, activation, did_you_mean(activation, ACTIVATIONS))


def activate(activation: Activation | None, predictions: np.ndarray) -> np.ndarray:
    """Return predictions in the unit of their labels: [B, ...], float64 unless nothing is done to them."""
    if activation in (None, "identity"):
        return predictions
    if callable(activation):
        return np.asarray(activation(predictions))
    if activation == "softmax" and (predictions.ndim < 2 or predictions.shape[1] < 2):
        return predictions
    with np.errstate(over="ignore"):
        return ACTIVATIONS[activation](predictions.astype(np.float64))


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
    if link == "identity" and outside_unit(scores):
        span = f"[{np.nanmin(scores):.6g}, {np.nanmax(scores):.6g}]"
        raise DataError(f"link='identity' takes probabilities in [0, 1]; received values in {span}; for logits, give "
                        "link='sigmoid'")  # fmt: skip
    known_logits = link in ("sigmoid", "softmax") or (link == "auto" and columns == 2)
    return scores, labels.reshape(-1), known_logits


def _one_column(scores: np.ndarray, link: str) -> np.ndarray:
    if link == "identity":
        return scores[:, 1]
    if link == "auto" and len(scores) and not outside_unit(scores) and np.abs(scores.sum(axis=1) - 1).max() < 1e-5:
        tiny = np.finfo(scores.dtype).tiny
        return np.log(np.maximum(scores[:, 1], tiny)) - np.log(np.maximum(scores[:, 0], tiny))
    return scores[:, 1] - scores[:, 0]


def outside_unit(scores: np.ndarray) -> bool:
    """Return whether a score lies outside [0, 1]."""
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
