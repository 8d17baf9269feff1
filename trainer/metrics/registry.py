"""Look up metrics by name, in this folder and in MindSpore, and update them.

A metric class of this folder is available under its attribute ``name``. All metrics follow the protocol of
`mindspore.train.Metric`: ``clear()``, ``update(*inputs)``, ``eval()``. Every MindSpore metric works by name or as an
instance, and the metrics here also work in `mindspore.Model`.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore.train as ms_train
import numpy as np

from ..checks import refuse
from ..errors import ConfigurationError, DataError, did_you_mean
from .adapters import BySlice, directions_of, is_of_mindspore
from .loss import Loss
from .predictions import Activation, check_activation, named_values, without_ignored
from .ranking import GroupMetric, TopKMetric
from .window_metric import Direction, RowMetric, WindowMetric

_KNOWN_CLASSES = {"Top1CategoricalAccuracy": "top_1_accuracy", "Top5CategoricalAccuracy": "top_5_accuracy"}
_UNSUPPORTED = {
    "roc": "keeps only the last batch and returns curves; 'auc' gives the area under the ROC curve over all rows"
}


@functools.cache
def named_metrics() -> dict[str, type[Any]]:
    """Return the metrics of this folder by name."""
    modules = [f"{__package__}.{module.name}" for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    kinds = [kind for module in modules for kind in vars(importlib.import_module(module)).values()]
    kinds = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, RowMetric)]
    named = {kind.name: kind for kind in kinds if isinstance(vars(kind).get("name"), str)}
    return {**named, "acc": named["accuracy"], "loss": Loss}


def metric_names() -> list[str]:
    """Return all names that `get_metrics` accepts, sorted."""
    names = {_canonical(name) for name in ms_train.names()}
    names |= {display_name(name, kind) for name, kind in named_metrics().items()}
    return sorted(names - set(_UNSUPPORTED))


def display_name(name: str, kind: type[Any]) -> str:
    """Return a metric's name with placeholders for its arguments."""
    k = "@<k>" if issubclass(kind, TopKMetric) else ""
    return f"{name}{k}/<column>" if issubclass(kind, GroupMetric) else name


def get_metrics(metrics: Any) -> dict[str, Any]:
    """Return the requested metrics by name, ready for updates.

    Args:
        metrics: None; a name (see `metric_names`; case does not matter), a metric or a metric class; a set, list or
            tuple of these; or a dict from a reported name to one of these. Names are reported as given. "gauc/user",
            "recall@10/user", "ndcg@10/user" and "hit_rate@10/user" group rows by the column after the slash.
            "auc/country" is the AUC for each value of a column (`BySlice`). A metric is a `mindspore.train.Metric`, any
            object with `clear`, `update` and `eval`, or a `WindowMetric`. MindSpore's `Loss`, which weights all batches
            equally, is replaced by this package's `Loss`, which weights batches by samples. If this package and
            MindSpore define the same name, such as "mae", this package's metric is used; MindSpore instances are used
            as they are.

    Raises:
        ConfigurationError: an unknown name (the message suggests the closest one), a name of a metric that needs
            arguments, a value that is not a metric, or a duplicate name.
    """
    if isinstance(metrics, Mapping):
        wrong = [key for key in metrics if not isinstance(key, str)]
        if wrong:
            raise ConfigurationError(f"a dict of metrics takes names as keys; received {wrong[0]!r}")
        return {key: _metric(value)[1] for key, value in metrics.items()}
    by_name: dict[str, Any] = {}
    for name, metric in map(_metric, _as_list(metrics)):
        if name in by_name:
            raise ConfigurationError(f"metric {name!r} is given twice; a dict of metrics gives each its own name")
        by_name[name] = metric
    return by_name


def _as_list(metrics: Any) -> Sequence[Any]:
    if isinstance(metrics, set | frozenset):
        return sorted(metrics, key=str)  # the iteration order of a set of strings differs between processes
    return metrics if isinstance(metrics, list | tuple) else [] if metrics is None else [metrics]


def update_metrics(
    metrics: Mapping[str, Any],
    outputs: Sequence[Any],
    eval_indexes: Sequence[int] | None,
    num_samples: float,
    columns: Mapping[str, np.ndarray] | None = None,
    weights: np.ndarray | None = None,
    ignored: int | None = None,
) -> None:
    """Update each metric with a batch of an evaluation network's outputs.

    Args:
        metrics: metrics from `get_metrics`.
        outputs: Tensors or arrays.
        eval_indexes: positions of loss, prediction and label in `outputs`, as in `mindspore.Model`. None: `Loss` gets
            the first output; every other metric gets all outputs and selects from them (`Metric.set_indexes`).
        num_samples: weight of the batch in the mean loss: its number of rows, or the sum of the row weights.
        columns: host columns of the batch by name, for metrics that group rows.
        weights: weight of each row, [rows]; all metrics must accept weights (`check_weighted`). None: no weights.
        ignored: class number of labels that MindSpore's metrics do not receive, or None; see `Meaning.ignored`.

    Raises:
        DataError: the group column of a metric is missing.
    """
    for metric in metrics.values():
        if isinstance(metric, Loss):
            index = eval_indexes[0] if eval_indexes is not None else metric.indexes[0] if metric.indexes else 0
            metric.add(outputs[index], num_samples)
            continue
        inputs = outputs if eval_indexes is None else (outputs[eval_indexes[1]], outputs[eval_indexes[2]])
        if ignored is not None and eval_indexes is not None and is_of_mindspore(metric):
            inputs = without_ignored(ignored, *inputs)
            if not len(inputs[1]):
                continue
        column, columns = group_of(metric), columns or {}
        options = {} if weights is None else {"weights": weights}
        if column is None:
            metric.update(*inputs, **options)
        elif column in columns:
            metric.update(*inputs, groups=columns[column], **options)
        else:
            raise DataError(
                f"a metric reads the column {column!r}, which the dataset does not have; it has "
                f"{', '.join(columns)}{did_you_mean(column, columns)}"
            )


def check_weighted(metrics: Mapping[str, Any], weight: str) -> None:
    """Check that every metric accepts row weights.

    Raises:
        ConfigurationError: the `update` of a metric has no argument `weights`.
    """
    for name, metric in metrics.items():
        if isinstance(metric, Loss | RowMetric) or "weights" in inspect.signature(metric.update).parameters:
            continue
        raise ConfigurationError(
            f"Features(weight={weight!r}): metric {name!r} ({type(metric).__name__}) counts every row alike: its "
            f"update takes no weights. Take one of trainer.metrics ({', '.join(sorted(named_metrics()))}), let it "
            "accept weights as update(predictions, labels, weights=None), or use Trainer(weighted_metrics=False)"
        )


def clear_metrics(metrics: Mapping[str, Any]) -> None:
    """Clear every metric."""
    for metric in metrics.values():
        metric.clear() if hasattr(metric, "clear") else metric.restart()


def group_of(metric: Any) -> str | None:
    """Return the name of the metric's group column, or None."""
    # RowMetric comes first, because an isinstance check of the protocol takes 20 us.
    return metric.group if isinstance(metric, RowMetric | WindowMetric) else None


def read_metric(metric: Any) -> Any:
    """Return the value of a metric of this package or of MindSpore."""
    return metric.eval() if hasattr(metric, "eval") else metric.value()


def read_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every metric as a float.

    A metric with one value per class, such as MindSpore's precision, is reported as its mean under the metric's name
    and the values as name_0, name_1, ... Other values, such as a confusion matrix, are returned unchanged.
    """
    return as_numbers({name: read_metric(metric) for name, metric in metrics.items()})


def as_numbers(results: Mapping[str, Any]) -> dict[str, Any]:
    """Convert results of metrics to floats, as in `read_metrics`."""
    values: dict[str, Any] = {}
    for name, value in results.items():
        try:
            values |= named_values(name, value)
        except (TypeError, ValueError):
            values[name] = value
    return values


def directions(metrics: Mapping[str, Any]) -> dict[str, Direction]:
    """Return whether higher is better, by name of each value; None if unknown.

    Values of single classes, labels and slices are omitted; they share the metric's direction.
    """
    return {
        "_".join(filter(None, (name, part))): higher
        for name, metric in metrics.items()
        for part, higher in directions_of(metric).items()
    }


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return only the numeric values, which callbacks can monitor and log."""
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
    kind = type(value).__name__
    snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind).lower()
    name = value.name if isinstance(value, RowMetric) else None
    return name or _KNOWN_CLASSES.get(kind, snake_case), value


def _by_name(name: str) -> tuple[str, Any]:
    canonical = _canonical(name)
    base, slash, column = name.strip().partition("/")
    if slash or "@" in name:
        return _with_column(name, _canonical(base), column)
    if canonical in _UNSUPPORTED:
        raise ConfigurationError(f"metric {name!r} {_UNSUPPORTED[canonical]}")
    theirs = {_canonical(known): known for known in ms_train.names()}
    kind = named_metrics().get(canonical)
    if kind is not None and not issubclass(kind, GroupMetric):
        return name, kind()
    if canonical in theirs:  # for example "recall": without a column it means MindSpore's recall per class
        return name, _construct(name, functools.partial(ms_train.get_metric_fn, theirs[canonical]))
    if kind is not None:
        form = f"{canonical}@10/user" if issubclass(kind, TopKMetric) else f"{canonical}/user"
        raise ConfigurationError(f"metric {name!r} needs the name of a group column, as in {form!r}")
    known = metric_names()
    raise ConfigurationError(f"unknown metric {name!r}{did_you_mean(canonical, known)}; known: {', '.join(known)}")


def _with_column(name: str, base: str, column: str) -> tuple[str, Any]:
    measure, at, k = base.partition("@")
    kind = named_metrics().get(measure)
    if at:
        if kind is not None and issubclass(kind, TopKMetric) and k.isdigit() and column:
            return base, kind(int(k), column)
        known = ", ".join(f"{known}@10/user" for known, kind in named_metrics().items() if issubclass(kind, TopKMetric))
        raise ConfigurationError(f"unknown metric {name!r}; metrics of the first k rows of a group look like {known}")
    if kind is not None and issubclass(kind, GroupMetric) and not issubclass(kind, TopKMetric):
        return base, kind(column)
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


def split_task(name: str, tasks: Sequence[str]) -> tuple[str, str]:
    """Split `name` into a task and the rest; the task is "" if none matches.

    If several tasks match, the longest is used.
    """
    matching = [task for task in tasks if task and name.startswith(f"{task}_") and len(name) > len(task) + 1]
    task = max(matching, key=len, default="")
    return task, name[len(task) + 1 :] if task else name


def task_metrics(metrics: Any, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the requested metrics, named by task and metric: ``click_auc``.

    Args:
        metrics: as in `trainer.metrics.get_metrics`. A name that begins with a task ("click_auc") applies to that task;
            any other name ("auc") applies to every task. A dict may list several metrics for a task: {"click":
            ["auc"]}.
        tasks: names of the tasks. If empty, the network has a single task and the names stay unchanged.
    """
    if not tasks:
        return get_metrics(metrics)
    by_name: dict[str, Any] = {}
    if isinstance(metrics, Mapping):
        for key, value in metrics.items():
            if key in tasks:
                by_name |= {f"{key}_{name}": metric for name, metric in get_metrics(value).items()}
            else:
                _add_metric(by_name, *split_task(key, tasks), get_metrics({key: value})[key], tasks)
        return by_name
    for value in _as_list(metrics):
        task, rest = split_task(value, tasks) if isinstance(value, str) else ("", value)
        for name, metric in get_metrics([rest]).items():
            _add_metric(by_name, task, name, metric, tasks)
    return by_name


def _add_metric(by_name: dict[str, Any], task: str, name: str, metric: Any, tasks: Sequence[str]) -> None:
    if isinstance(metric, Loss):
        by_name[name] = metric
    elif task:
        by_name[f"{task}_{name}"] = metric
    else:
        by_name |= {f"{each}_{name}": copy.deepcopy(metric) for each in tasks}


def task_activations(activation: Any, tasks: Sequence[str]) -> dict[str, Activation]:
    """Return the declared activations by task; a single task has the name ""."""
    argument = "Trainer(prediction_activation=...)"
    by_task = activation if isinstance(activation, Mapping) else dict.fromkeys(tasks or ("",), activation)
    for task in by_task:
        if task not in (tasks or ("",)):
            names = f"a dict with the tasks {', '.join(tasks)}" if tasks else "a name or a function for the only task"
            refuse(argument, names, task, did_you_mean(task, tasks))
    checked = {task: check_activation(argument, value) for task, value in by_task.items()}
    return {task: value for task, value in checked.items() if value is not None}


def metrics_of_task(metrics: Mapping[str, Any], task: str, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the metrics of one task, without the task's prefix in their names.

    The only task of a single-task network is "".
    """
    split = {name: split_task(name, tasks) for name in metrics}
    return {split[name][1]: metric for name, metric in metrics.items() if split[name][0] == task}


def copies_of(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of metrics.

    A metric that cannot be copied, such as one that holds a file, is returned itself.
    """
    copies, memo = dict[str, Any](), dict[int, Any]()
    for name, metric in metrics.items():
        try:
            copies[name] = copy.deepcopy(metric, memo)
        except Exception:  # whatever a user's metric raises
            copies[name] = metric
            memo.clear()  # it may hold parts of the failed copy
    return copies
