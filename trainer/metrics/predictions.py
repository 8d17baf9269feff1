"""Convert predictions, labels, weights and groups to arrays; handle metric states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..checks import choice, refuse
from ..errors import ConfigurationError, DataError, did_you_mean
from .calibration_map import sigmoid


def _host(value: Any) -> np.ndarray:
    return value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)


def to_numpy(value: Any, name: str = "array") -> np.ndarray:
    """Convert a Tensor, array or sequence to an array; half floats become float32."""
    array = _host(value)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} must hold numbers; received dtype {array.dtype}")
    return array.astype(np.float32) if array.dtype.kind == "f" and array.dtype.itemsize < 4 else array


def row_weights(weights: Any, rows: int) -> np.ndarray | None:
    """Check sample weights and return them as float64 [rows], or None."""
    if weights is None:
        return None
    array = to_numpy(weights, "sample weights")
    if array.size != rows or array.ndim > 2:
        raise DataError(f"sample weights take shape [{rows}] or [{rows}, 1]; received {array.shape}")
    array = array.reshape(-1).astype(np.float64)
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise DataError("sample weights must be finite and not negative")
    return array


def weighted_sum(weights: np.ndarray, values: np.ndarray) -> Any:
    """Return the weighted sum over the rows, without BLAS.

    Args:
        weights: shape [B].
        values: shape [B, ...]; the result has shape [...].
    """
    # OpenBLAS wakes its threads for more than 10,000 numbers. They then spin, which takes the cores from the graph, and
    # the result would depend on their number.
    return (weights * values).sum() if values.ndim == 1 else np.einsum("i,i...->...", weights, values)


def group_column(groups: Any, rows: int) -> np.ndarray:
    """Return groups as integers or text, shape [rows]."""
    column = _host(groups)
    if column.size != rows or column.ndim > 2:
        raise DataError(f"groups take shape [{rows}] or [{rows}, 1]; received {column.shape}")
    if column.dtype.kind == "O":
        column = column.astype(str)
    elif column.dtype.kind == "S":
        column = np.char.decode(column, "utf-8", "replace")
    if column.dtype.kind not in "biuU":
        raise DataError(f"groups are integers or strings; received dtype {column.dtype}")
    return column.reshape(-1)


def named_values(name: str, value: Any) -> dict[str, float]:
    """Convert a metric's result to floats by name.

    An entry of a dict is named ``<name>_<key>``, or ``<name>`` if its key is empty. A key that begins with "/" replaces
    the part of `name` from its slash on: "auc/site" and "/site=3" give "auc/site=3". A vector with one value per class,
    such as MindSpore's precision, is reported as its mean under `name` and as the values name_0, name_1, ...
    """
    if isinstance(value, Mapping):
        base = name.partition("/")[0]
        return {
            base + part if part.startswith("/") else "_".join(filter(None, (base, part))): float(item)
            for part, item in value.items()
        }
    try:
        array = np.asarray(_host(value), np.float64)
    except (TypeError, ValueError):
        array = None
    if array is None or array.ndim > 1 or not array.size:
        raise ConfigurationError(f"metric {name!r} must return a number or one number per class; it returned {value!r}")
    each = {f"{name}_{index}".lstrip("_"): float(item) for index, item in enumerate(array)} if array.ndim else {}
    return {name: float(array.mean()), **each}


def joined_states(states: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Combine states ``{"json": ..., "arrays": {name: array}}`` into one."""
    arrays = {f"{index}.{key}": a for index, state in enumerate(states.values()) for key, a in state["arrays"].items()}
    return {"json": [[name, state["json"]] for name, state in states.items()], "arrays": arrays}


def split_states(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Split a state created by `joined_states`."""
    return {
        name: {"json": json, "arrays": strip_prefix(f"{index}.", state["arrays"])}
        for index, (name, json) in enumerate(state["json"])
    }


def strip_prefix(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays whose names begin with `prefix`, with the prefix removed."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


class CountsByName(dict[str, Any]):
    """Counts or metrics by name; each method applies to all of them."""

    def restart(self) -> None:
        for counts in self.values():
            counts.restart()

    def merge(self, other: CountsByName) -> None:
        for mine, counts in zip(self.values(), other.values(), strict=True):
            mine.merge(counts)

    def decay(self, factor: float) -> None:
        for counts in self.values():
            counts.decay(factor)

    def state_dict(self) -> dict[str, Any]:
        return joined_states({name: counts.state_dict() for name, counts in self.items()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, saved in split_states(state).items():
            self[name].load_state_dict(saved)


Activation = str | Callable[[np.ndarray], np.ndarray]


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda predictions: predictions,
    "sigmoid": sigmoid,
    "softmax": _softmax,
    "exp": np.exp,
}


@dataclass(frozen=True)
class Meaning:
    """How to interpret predictions, as defined by the loss function or the user.

    A field is None if it is unknown.
    """

    target: str | None = None  # "binary" (several columns are independent labels), "classes", "real", "count"
    activation: Activation | None = None  # a key of `ACTIVATIONS`, or a function of a NumPy array [B, ...]
    ignored: int | None = None  # class number of the labels that do not count (`ignore_index` of the loss)


def without_ignored(ignored: int, predictions: Any, labels: Any, *columns: Any) -> tuple[Any, ...]:
    """Leave out the class numbers that a loss ignores, with their predictions.

    Args:
        ignored: the loss's `ignore_index`.
        predictions: [B] or [B, C, ...]; Tensor or array.
        labels: class numbers, [B], [B, 1] or [B, ...]; others, such as one-hot labels, are returned unchanged.
        columns: values of the rows, [B] or [B, 1], or None.

    Returns:
        Predictions, labels and columns of the labels that count. With several labels per row, each is a row of its own.
    """
    numbers = to_numpy(labels, "labels")
    counts = numbers != ignored
    if numbers.dtype.kind not in "iu" or counts.all():
        return predictions, labels, *columns
    scores, rows = to_numpy(predictions, "predictions"), len(numbers)
    if numbers.size != rows:
        if scores.shape[:1] + scores.shape[2:] != numbers.shape:
            return predictions, labels, *columns
        scores = np.moveaxis(scores, 1, -1).reshape(numbers.size, -1)
        columns = tuple([None if c is None else np.repeat(_host(c).reshape(-1), numbers.size // rows) for c in columns])
    counts = counts.reshape(-1)
    kept = [None if column is None else _host(column)[counts] for column in columns]
    return scores[counts], numbers.reshape(-1)[counts], *kept


def without_weightless(predictions: Any, labels: Any, weights: Any, groups: Any = None) -> tuple[Any, ...]:
    """Leave out the rows of weight 0, whose predictions and labels may be NaN."""
    checked = row_weights(weights, len(labels))
    if checked is None or checked.all():
        return predictions, labels, weights, groups
    columns = (predictions, labels, weights, groups)
    return tuple([None if column is None else _host(column)[checked > 0] for column in columns])


def check_activation(argument: str, activation: Any) -> Activation | None:
    """Return `activation` if it is None, a known name or a function."""
    if activation is None or callable(activation) or (isinstance(activation, str) and activation in ACTIVATIONS):
        return activation
    accepted = f"{', '.join(map(repr, ACTIVATIONS))}, a function of a NumPy array or None"
    refuse(argument, accepted, activation, did_you_mean(activation, ACTIVATIONS))


def activate(activation: Activation | None, predictions: np.ndarray) -> np.ndarray:
    """Apply the activation to predictions [B, ...]."""
    if activation in (None, "identity"):
        return predictions
    if callable(activation):
        return np.asarray(activation(predictions))
    if activation == "softmax" and (predictions.ndim < 2 or predictions.shape[1] < 2):
        return predictions
    with np.errstate(over="ignore"):
        return ACTIVATIONS[activation](predictions.astype(np.float64))


def activate_outputs(activations: Mapping[str, Activation | None], outputs: Any) -> Any:
    """Apply the activation of each task to its output.

    Further outputs stay as they are.

    Args:
        activations: task -> its activation; without tasks, "" -> that of the first output.
        outputs: arrays by name, a tuple of arrays in the order of the tasks, or one array, with a column for each task
            if there are several.
    """
    tasks = tuple(activations)
    if isinstance(outputs, dict):
        of_name = dict(zip(tuple(outputs)[:1] if tasks == ("",) else tasks, activations.values(), strict=True))
        return {name: activate(of_name.get(name), part) for name, part in outputs.items()}
    if isinstance(outputs, tuple):
        parts = zip(outputs, [*activations.values(), *[None] * len(outputs)], strict=False)
        return tuple(activate(activation, part) for part, activation in parts)
    if len(tasks) == 1:
        return activate(activations[tasks[0]], outputs)
    columns = [activate(activations[task], outputs[:, [index]]) for index, task in enumerate(tasks)]
    return np.concatenate(columns, axis=1)


def named_classes(probabilities: np.ndarray, classes: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return the most likely class of each row and the probability of each class.

    Args:
        probabilities: probability of the second of two classes, [B] or [B, 1], or of all classes, [B, classes].
        classes: names of the classes.

    Returns:
        "prediction", the name of the most likely class, [B], and ``probability_<name>`` for each class, [B].
    """
    if probabilities.ndim == 1 or probabilities.shape[1] == 1:
        probabilities = probabilities.reshape(-1)
        probabilities = np.stack([1 - probabilities, probabilities], 1)
    best = np.array(classes)[probabilities.argmax(1)]
    return {"prediction": best} | {f"probability_{name}": probabilities[:, n] for n, name in enumerate(classes)}


LINKS = ("auto", "sigmoid", "identity", "softmax")
_SHAPES = "predictions of shape [B], [B, 1] or [B, 2] and labels of shape [B] or [B, 1]"


def check_link(link: str) -> str:
    """Return `link` if it is valid.

    - "sigmoid": predictions are logits of the positive class, shape [B] or [B, 1].
    - "identity": predictions are probabilities of the positive class, [B] or [B, 1], or of both classes, [B, 2].
    - "softmax": predictions are logits of both classes, shape [B, 2].
    - "auto": two columns are read as probabilities if each row sums to 1, otherwise as logits. One column is read as
      logits in a Trainer with `nn.BCEWithLogitsLoss`. Otherwise it is read as probabilities while all predictions seen
      are in [0, 1], and as logits once a prediction is outside.
    """
    return choice("link", link, LINKS)


def binary_scores(predictions: Any, labels: Any, link: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return one score per row and its label.

    Args:
        predictions: shape [B], [B, 1] or [B, 2]; Tensor or array.
        labels: shape [B] or [B, 1]; Tensor or array of int, float or bool.
        link: see `check_link`. Two columns are reduced to one logit, or to one probability with "identity".

    Returns:
        Scores, shape [B], float32 (float64 for float64 predictions); labels, shape [B], any numeric dtype; and whether
        the scores are known to be logits. Both arrays may alias the inputs.

    Raises:
        DataError: the shapes do not match each other or the link, or a probability is outside [0, 1].
    """
    scores, labels = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
    shape = scores.shape
    columns, label_columns = (1 if a.ndim == 1 else a.shape[1] if a.ndim == 2 else 0 for a in (scores, labels))
    if columns not in (1, 2) or label_columns != 1 or shape[0] != labels.shape[0]:
        raise DataError(f"a binary metric takes {_SHAPES}; received predictions {shape} and labels {labels.shape}")
    if (link == "softmax" and columns == 1) or (link == "sigmoid" and columns == 2):
        wanted = "[B, 2]" if link == "softmax" else "[B] or [B, 1]"
        raise DataError(f"link={link!r} takes predictions of shape {wanted}; received predictions {shape}")
    if scores.dtype.kind != "f":
        scores = scores.astype(np.float32 if scores.dtype.itemsize < 4 else np.float64)
    scores = _one_column(scores, link) if columns == 2 else scores.reshape(-1)
    if link == "identity" and outside_unit(scores):
        span = f"[{np.nanmin(scores):.6g}, {np.nanmax(scores):.6g}]"
        raise DataError(
            f"link='identity' takes probabilities in [0, 1]; received values in {span}; for logits, give link='sigmoid'"
        )
    return scores, labels.reshape(-1), link in ("sigmoid", "softmax") or (link == "auto" and columns == 2)


def _one_column(scores: np.ndarray, link: str) -> np.ndarray:
    if link == "identity":
        return scores[:, 1]
    if link == "auto" and len(scores) and not outside_unit(scores) and np.abs(scores.sum(axis=1) - 1).max() < 1e-5:
        tiny = np.finfo(scores.dtype).tiny
        return np.log(np.maximum(scores[:, 1], tiny)) - np.log(np.maximum(scores[:, 0], tiny))
    return scores[:, 1] - scores[:, 0]


def outside_unit(scores: np.ndarray) -> bool:
    """Return whether a score is outside [0, 1]."""
    return len(scores) > 0 and bool(scores.min() < 0 or scores.max() > 1)


def hard_labels(labels: np.ndarray) -> np.ndarray:
    """Return whether each label is 1, shape [B], bool."""
    positive = labels == 1
    if np.count_nonzero(positive) + np.count_nonzero(labels == 0) != len(labels):
        row = int(np.flatnonzero(~(positive | (labels == 0)))[0])
        raise DataError(f"labels of a binary metric are 0 or 1; received {labels[row]!r} in row {row}")
    return positive


class Sums:
    """Sums over rows. Each is a number, or an array with one number per output."""

    sums: ClassVar[tuple[str, ...]] = ()
    total: dict[str, Any]

    def clear(self) -> None:
        self.total = dict.fromkeys(self.sums, 0.0)

    def merge(self, other: Any) -> None:
        self.total = {name: value + other.total[name] for name, value in self.total.items()}

    def decay(self, factor: float) -> None:
        self.total = {name: value * factor for name, value in self.total.items()}

    def mean(self, name: str, weight: str = "weight") -> Any:
        """Return one sum divided by another; NaN if the divisor is 0."""
        return self.total[name] / self.total[weight] if self.total[weight] else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": numbers, "arrays": arrays}`` with the sums by name."""
        arrays = {name: value for name, value in self.total.items() if isinstance(value, np.ndarray)}
        return {"json": {n: v for n, v in self.total.items() if n not in arrays}, "arrays": arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        numbers, arrays = state["json"], state["arrays"]
        self.total = {n: np.array(arrays[n]) if n in arrays else float(numbers[n]) for n in self.sums}
