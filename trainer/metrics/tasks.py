"""Metrics of several tasks: a metric's name begins with its task, as in ``click_auc``."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ..checks import refuse
from ..errors import did_you_mean
from .loss import Loss
from .predictions import Activation, check_activation
from .registry import get_metrics


def split_task(name: str, tasks: Sequence[str]) -> tuple[str, str]:
    """Return the task that `name` begins with and the rest; the longest that fits, or an empty string and `name`."""
    fitting = [task for task in tasks if task and name.startswith(f"{task}_") and len(name) > len(task) + 1]
    task = max(fitting, key=len, default="")
    return task, name[len(task) + 1 :] if task else name


def task_metrics(metrics: Any, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the metrics asked for, by the name of their task and their own: ``click_auc``.

    Args:
        metrics: as `trainer.metrics.get_metrics` takes them. A name that begins with a task is of that task
            ("click_auc"); any other is of each ("auc"). In a dict a task may be given several: {"click": ["auc"]}.
        tasks: the tasks; empty for a network of one, whose metrics are returned as they are.

    Raises:
        ConfigurationError: as `get_metrics` does.
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
    if isinstance(metrics, set | frozenset):
        metrics = sorted(metrics, key=str)
    for value in metrics if isinstance(metrics, list | tuple) else [] if metrics is None else [metrics]:
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
        by_name |= {f"{of_task}_{name}": copy.deepcopy(metric) for of_task in tasks}


def task_activations(activation: Any, tasks: Sequence[str]) -> dict[str, Activation]:
    """Return what was declared by task; of a network of one task under an empty name.

    Raises:
        ConfigurationError: neither an activation nor a dict of them by task.
    """
    argument = "Trainer(prediction_activation=...)"
    given = activation if isinstance(activation, Mapping) else dict.fromkeys(tasks or ("",), activation)
    for task in given:
        if task not in (tasks or ("",)):
            accepted = (
                f"a dict with the tasks {', '.join(tasks)}" if tasks else "a name or a function for the only task"
            )
            refuse(argument, accepted, task, did_you_mean(task, tasks))
    checked = {task: check_activation(argument, value) for task, value in given.items()}
    return {task: value for task, value in checked.items() if value is not None}


def of_task(metrics: Mapping[str, Any], task: str, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the metrics of one task by their own names; all of them for the only task, the empty string."""
    split = {name: split_task(name, tasks) for name in metrics}
    return {split[name][1]: metric for name, metric in metrics.items() if split[name][0] == task}
