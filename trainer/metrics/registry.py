"""Metrics of an evaluation, weighted by samples, and the registry that finds them by name.

The protocol is that of `mindspore.train.Metric`: ``clear()``, ``update(*inputs)``, ``eval()``. Every metric MindSpore
knows works by name or as an instance, and the metrics here work in `mindspore.Model`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore.train as ms_train
import numpy as np
from mindspore.train import Metric, rearrange_inputs

from ..errors import ConfigurationError, DataError, did_you_mean
from .binary import binary_scores, check_link, hard_labels, to_numpy
from .binary_metrics import Auc, Calibration, LogLoss, NormalizedEntropy, unpack


class Accuracy(Metric):
    """Share of rows whose class is predicted right, over all rows since `clear`; NaN without rows.

    Unlike MindSpore's metric of that name it also takes binary predictions of one column.

    Args:
        link: for one column, whether predictions are probabilities (right above 0.5) or logits (right above 0); see
            `trainer.metrics.binary.check_link`.

    Raises:
        ConfigurationError: unknown link.
    """

    def __init__(self, link: str = "auto") -> None:
        super().__init__()
        self._link = check_link(link)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._rows = self._right_identity = self._right_logits = 0
        self._logits_seen = self._link in ("sigmoid", "softmax")

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        """Add rows.

        Args:
            inputs: predictions of shape [B, C, ...] with labels of shape [B, ...] (class numbers) or [B, C] (one-hot);
                or binary predictions of shape [B] or [B, 1] with labels of shape [B] or [B, 1].

        Raises:
            DataError: shapes that do not fit.
        """
        predictions, labels, _ = unpack(inputs, "Accuracy")
        predictions, labels = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
        if predictions.ndim >= 2 and predictions.shape[1] > 1:
            self._add_classes(predictions, labels)
            return
        scores, labels, _ = binary_scores(predictions, labels, self._link)
        positive = hard_labels(labels)
        self._rows += len(scores)
        self._right_identity += int(np.count_nonzero((scores > 0.5) == positive))
        self._right_logits += int(np.count_nonzero((scores > 0) == positive))
        if self._link == "auto" and len(scores):
            self._logits_seen = self._logits_seen or bool(scores.min() < 0 or scores.max() > 1)

    def _add_classes(self, predictions: np.ndarray, labels: np.ndarray) -> None:
        classes = predictions.argmax(axis=1)
        if labels.shape == predictions.shape:
            labels = labels.argmax(axis=1)
        if labels.size != classes.size or labels.shape[:1] != classes.shape[:1]:
            raise DataError(
                "Accuracy takes predictions of shape [B, C, ...] and labels of shape [B, ...] or one-hot of the same "
                f"shape; received predictions {predictions.shape} and labels {labels.shape}"
            )
        right = int(np.count_nonzero(classes == labels.reshape(classes.shape)))
        self._rows += classes.size
        self._right_identity += right
        self._right_logits += right

    def eval(self) -> float:
        """Return the accuracy."""
        right = self._right_logits if self._logits_seen else self._right_identity
        return right / self._rows if self._rows else float("nan")


class WeightedMean:
    """Mean of batch values, each weighted by its number of samples, summed in float64."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.total, self.samples = 0.0, 0

    def update(self, value: Any, samples: Any = 1) -> None:
        """Add values.

        Args:
            value: mean of a batch, or one mean a batch, shape [K].
            samples: rows in the batch, or in each batch, shape [] or [K].
        """
        values = np.asarray(to_numpy(value), np.float64).reshape(-1)
        counts = np.broadcast_to(np.asarray(samples, np.int64).reshape(-1), values.shape)
        self.total += float(np.dot(values, counts))
        self.samples += int(counts.sum())

    def eval(self) -> float:
        """Return the mean; NaN without samples."""
        return self.total / self.samples if self.samples else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": {}}``."""
        return {"json": {"total": self.total, "samples": self.samples}, "arrays": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.total, self.samples = float(state["json"]["total"]), int(state["json"]["samples"])


class Loss(Metric):
    """Mean loss over samples: a short last batch counts as what it is. NaN without samples."""

    def __init__(self) -> None:
        super().__init__()
        self._mean = WeightedMean()

    def clear(self) -> None:
        """Forget everything."""
        self._mean.clear()

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        """Add a batch.

        Args:
            inputs: the loss, a scalar (a batch mean) or one value a row; and the number of rows it is the mean of,
                1 unless given.
        """
        loss = to_numpy(inputs[0], "loss")
        self.add(loss, int(inputs[1]) if len(inputs) > 1 else max(loss.size, 1))

    def add(self, loss: Any, samples: int) -> None:
        """Add a batch of `samples` rows; `loss` is its mean, or has one value a row."""
        self._mean.update(to_numpy(loss, "loss").mean(dtype=np.float64), samples)

    def eval(self) -> float:
        """Return the mean loss."""
        return self._mean.eval()

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": {}}``."""
        return self._mean.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._mean.load_state_dict(state)


_OURS: dict[str, Callable[[], Any]] = {
    "auc": Auc,
    "log_loss": LogLoss,
    "normalized_entropy": NormalizedEntropy,
    "calibration": Calibration,
    "accuracy": Accuracy,
    "acc": Accuracy,
    "loss": Loss,
}
_KNOWN_CLASSES = {"Top1CategoricalAccuracy": "top_1_accuracy", "Top5CategoricalAccuracy": "top_5_accuracy"}
_REFUSED = {
    "roc": "keeps only the last batch and returns curves; 'auc' gives the area under the ROC curve over all rows",
}


def metric_names() -> list[str]:
    """Return every name `get_metrics` takes, sorted."""
    theirs = {_canonical(name) for name in ms_train.names()}
    return sorted((theirs | set(_OURS)) - set(_REFUSED))


def get_metrics(metrics: Any) -> dict[str, Any]:
    """Return the metrics asked for, by name, ready to be updated.

    Args:
        metrics: None; a name (see `metric_names`; case does not matter), a metric or a metric class; a set, list or
            tuple of these; or a dict from the name to report to one of these. Names are reported as given. A metric is
            a `mindspore.train.Metric` or anything with `clear`, `update` and `eval`. MindSpore's `Loss`, which weights
            every batch alike, is replaced by `Loss`, which weights by samples.

    Raises:
        ConfigurationError: a name that is not known (the nearest one is given) or needs arguments, a value that is no
            metric, or one name twice.
    """
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        wrong = [key for key in metrics if not isinstance(key, str)]
        if wrong:
            raise ConfigurationError(f"a dict of metrics takes names as keys; received {wrong[0]!r}")
        return {key: _metric(value)[1] for key, value in metrics.items()}
    if isinstance(metrics, set | frozenset):
        metrics = sorted(metrics, key=str)  # sets of names have another order in every process
    elif not isinstance(metrics, list | tuple):
        metrics = [metrics]
    found: dict[str, Any] = {}
    for name, metric in map(_metric, metrics):
        if name in found:
            raise ConfigurationError(f"metric {name!r} is given twice; a dict of metrics gives each a name of its own")
        found[name] = metric
    return found


def update_metrics(
    metrics: Mapping[str, Any], outputs: Sequence[Any], eval_indexes: Sequence[int] | None, num_samples: int
) -> None:
    """Give each metric what it reads of the outputs of an evaluation network, as `mindspore.Model` does.

    Args:
        metrics: as `get_metrics` returned them.
        outputs: outputs of the evaluation network; Tensors or arrays.
        eval_indexes: positions of loss, prediction and label in `outputs`; `Loss` gets the loss, every other metric
            prediction and label. None gives `Loss` the first output and every other metric all of them, from which
            its own indexes (`Metric.set_indexes`) choose.
        num_samples: rows in the batch, by which the loss is weighted.
    """
    for metric in metrics.values():
        if isinstance(metric, Loss):
            place = eval_indexes[0] if eval_indexes is not None else metric.indexes[0] if metric.indexes else 0
            metric.add(outputs[place], num_samples)
        elif eval_indexes is None:
            metric.update(*outputs)
        else:
            metric.update(outputs[eval_indexes[1]], outputs[eval_indexes[2]])


def read_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the value of every metric as a float.

    A metric of one value a class, such as MindSpore's precision, gives its mean under its name and the values under
    name_0, name_1, ...

    Raises:
        ConfigurationError: the metric's `eval` returned something that is neither a number nor a vector of numbers.
    """
    values: dict[str, float] = {}
    for name, metric in metrics.items():
        value = metric.eval()
        try:
            array = np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value, np.float64)
        except (TypeError, ValueError):
            array = None
        if array is None or array.ndim > 1 or not array.size:
            raise ConfigurationError(f"metric {name!r} must give a number or one number a class; it gave {value!r}")
        values[name] = float(array.mean())
        if array.ndim:
            values.update({f"{name}_{place}": float(item) for place, item in enumerate(array)})
    return values


def _metric(value: Any) -> tuple[str, Any]:
    if isinstance(value, str):
        return _by_name(value)
    if inspect.isclass(value) and _is_metric(value):
        value = _construct(value.__name__, value)
    if inspect.isclass(value) or not _is_metric(value):
        raise ConfigurationError(
            f"a metric is a name, a mindspore.train.Metric or an object with clear, update and eval; received {value!r}"
        )
    if type(value) is ms_train.Loss:
        indexes = value.indexes
        value = Loss()
        if indexes:
            value.set_indexes(indexes)
    return _name_of(type(value)), value


def _by_name(name: str) -> tuple[str, Any]:
    asked = _canonical(name)
    if asked in _REFUSED:
        raise ConfigurationError(f"metric {name!r} {_REFUSED[asked]}")
    if asked in _OURS:
        return name, _OURS[asked]()
    theirs = {_canonical(known): known for known in ms_train.names()}
    if asked in theirs:
        return name, _construct(name, functools.partial(ms_train.get_metric_fn, theirs[asked]))
    known = metric_names()
    raise ConfigurationError(f"unknown metric {name!r}{did_you_mean(asked, known)}; known: {', '.join(known)}")


def _construct(name: str, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except TypeError as error:
        raise ConfigurationError(f"metric {name!r} needs arguments, so give an instance: {error}") from error


def _is_metric(value: Any) -> bool:
    return all(callable(getattr(value, method, None)) for method in ("clear", "update", "eval"))


def _canonical(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def _name_of(kind: type) -> str:
    """Return "top_1_accuracy" for a class MindSpore knows by that name, else the class name in snake case."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind.__name__).lower()
    return _KNOWN_CLASSES.get(kind.__name__, snake)
