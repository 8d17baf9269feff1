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
from .adapters import BySlice
from .binary_metrics import Auc, BinaryMetrics, Calibration, NormalizedEntropy
from .classes import Accuracy, LogLoss
from .ranking import Gauc, HitRateAtK, Ndcg, RecallAtK
from .regression import R2, Bias, Mae, Rmse
from .rows import named_values, to_numpy
from .window_metric import RowMetric, WindowMetric


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
        if isinstance(value, float) and isinstance(samples, int):
            self.total, self.samples = self.total + value * samples, self.samples + samples
            return
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
            inputs: the loss, a scalar (a batch mean) or one value per row; and the number of rows it is the mean of,
                1 unless given.
        """
        loss = to_numpy(inputs[0], "loss")
        self.add(loss, int(inputs[1]) if len(inputs) > 1 else max(loss.size, 1))

    def add(self, loss: Any, samples: int) -> None:
        """Add a batch of `samples` rows; `loss` is its mean, or has one value per row."""
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
    "mae": Mae,
    "rmse": Rmse,
    "bias": Bias,
    "r2": R2,
    "binary": BinaryMetrics,
}
_BY_GROUP: dict[str, Callable[..., Any]] = {"gauc": Gauc}
_FIRST_K: dict[str, Callable[..., Any]] = {"recall": RecallAtK, "ndcg": Ndcg, "hit_rate": HitRateAtK}
_KNOWN_CLASSES = {"Top1CategoricalAccuracy": "top_1_accuracy", "Top5CategoricalAccuracy": "top_5_accuracy"}
_REFUSED = {
    "roc": "keeps only the last batch and returns curves; 'auc' gives the area under the ROC curve over all rows",
}


def metric_names() -> list[str]:
    """Return every name `get_metrics` takes, sorted."""
    theirs = {_canonical(name) for name in ms_train.names()}
    by_group = {f"{name}/<column>" for name in _BY_GROUP} | {f"{name}@<k>/<column>" for name in _FIRST_K}
    return sorted((theirs | set(_OURS) | by_group) - set(_REFUSED))


def get_metrics(metrics: Any) -> dict[str, Any]:
    """Return the metrics asked for, by name, ready to be updated.

    Args:
        metrics: None; a name (see `metric_names`; case does not matter), a metric or a metric class; a set, list or
            tuple of these; or a dict from the name to report to one of these. Names are reported as given. "gauc/user",
            "recall@10/user", "ndcg@10/user" and "hit_rate@10/user" read the column after the slash, and
            "auc/country" is the metric "auc" for the rows of each value of a column (`BySlice`). A metric is a
            `mindspore.train.Metric`, anything with `clear`, `update` and `eval`, or a `WindowMetric`. MindSpore's
            `Loss`, which weights every batch alike, is replaced by `Loss`, which weights by samples.

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
    metrics: Mapping[str, Any],
    outputs: Sequence[Any],
    eval_indexes: Sequence[int] | None,
    num_samples: int,
    columns: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Give each metric what it reads of the outputs of an evaluation network, as `mindspore.Model` does.

    Args:
        metrics: as `get_metrics` returned them.
        outputs: outputs of the evaluation network; Tensors or arrays.
        eval_indexes: positions of loss, prediction and label in `outputs`; `Loss` gets the loss, every other metric
            prediction and label. None gives `Loss` the first output and every other metric all of them, from which
            its own indexes (`Metric.set_indexes`) choose.
        num_samples: rows in the batch, by which the loss is weighted.
        columns: host columns of the batch by name, for metrics that read the group of each row.

    Raises:
        DataError: a column that a metric reads is not among them.
    """
    for metric in metrics.values():
        if isinstance(metric, Loss):
            place = eval_indexes[0] if eval_indexes is not None else metric.indexes[0] if metric.indexes else 0
            metric.add(outputs[place], num_samples)
            continue
        read = outputs if eval_indexes is None else (outputs[eval_indexes[1]], outputs[eval_indexes[2]])
        column = group_of(metric)
        if column is None:
            metric.update(*read)
        else:
            metric.update(*read, groups=_column(column, columns or {}))


def clear_metrics(metrics: Mapping[str, Any]) -> None:
    """Let every metric forget its rows."""
    for metric in metrics.values():
        metric.clear() if hasattr(metric, "clear") else metric.restart()


def group_of(metric: Any) -> str | None:
    """Return the name of the column whose values the metric reads as groups, or None."""
    # ours first: whether a class has all that a protocol asks for takes 20 us to find out
    return metric.group if isinstance(metric, RowMetric | WindowMetric) else None


def _column(name: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    if name not in columns:
        raise DataError(
            f"a metric reads the column {name!r}, which the dataset does not have; it has "
            f"{', '.join(columns)}{did_you_mean(name, columns)}"
        )
    return columns[name]


def read_metric(metric: Any) -> Any:
    """Return what a metric of ours or of MindSpore's kind gives."""
    return metric.eval() if hasattr(metric, "eval") else metric.value()


def read_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every metric as a float.

    A metric of one value a class, such as MindSpore's precision, gives its mean under its name and the values under
    name_0, name_1, ... What is neither a number nor a vector of numbers (a confusion matrix) stays as it is.
    """
    values: dict[str, Any] = {}
    for name, metric in metrics.items():
        value = read_metric(metric)
        try:
            values |= named_values(name, value)
        except (TypeError, ValueError):
            values[name] = value
    return values


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return those of `values` that are numbers: what callbacks monitor and log."""
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


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
    named = value.name if isinstance(value, RowMetric) else None
    return named or _name_of(type(value)), value


def _by_name(name: str) -> tuple[str, Any]:
    asked = _canonical(name)
    base, slash, column = name.strip().partition("/")
    if slash or "@" in name:
        return _with_column(name, _canonical(base), column)
    if asked in _BY_GROUP or asked in _FIRST_K:
        form = f"{asked}/user" if asked in _BY_GROUP else f"{asked}@10/user"
        if asked != "recall":  # MindSpore has a recall too, of classes
            raise ConfigurationError(f"metric {name!r} reads a column of groups: name it, as in {form!r}")
    if asked in _REFUSED:
        raise ConfigurationError(f"metric {name!r} {_REFUSED[asked]}")
    if asked in _OURS:
        return name, _OURS[asked]()
    theirs = {_canonical(known): known for known in ms_train.names()}
    if asked in theirs:
        return name, _construct(name, functools.partial(ms_train.get_metric_fn, theirs[asked]))
    known = metric_names()
    raise ConfigurationError(f"unknown metric {name!r}{did_you_mean(asked, known)}; known: {', '.join(known)}")


def _with_column(name: str, base: str, column: str) -> tuple[str, Any]:
    measure, at, k = base.partition("@")
    if at and measure in _FIRST_K and k.isdigit() and column:
        return base, _FIRST_K[measure](int(k), column)
    if at:
        known = ", ".join(f"{known}@10/user" for known in _FIRST_K)
        raise ConfigurationError(f"unknown metric {name!r}; metrics of the first k rows of a group look like {known}")
    if base in _BY_GROUP:
        return base, _BY_GROUP[base](column)
    sliced = BySlice(base, column)
    return sliced.name, sliced


def _construct(name: str, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except TypeError as error:
        raise ConfigurationError(f"metric {name!r} needs arguments, so give an instance: {error}") from error


def _is_metric(value: Any) -> bool:
    return isinstance(value, WindowMetric) or all(
        callable(getattr(value, method, None)) for method in ("clear", "update", "eval")
    )


def _canonical(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def _name_of(kind: type) -> str:
    """Return "top_1_accuracy" for a class MindSpore knows by that name, else the class name in snake case."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind.__name__).lower()
    return _KNOWN_CLASSES.get(kind.__name__, snake)
