"""Metrics of several tasks: which task a metric belongs to is the first part of its name, as in ``click_auc``."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from .registry import Loss, get_metrics


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
    found: dict[str, Any] = {}
    if isinstance(metrics, Mapping):
        for key, value in metrics.items():
            if key in tasks:
                found |= {f"{key}_{name}": metric for name, metric in get_metrics(value).items()}
            else:
                _place(found, *split_task(key, tasks), get_metrics({key: value})[key], tasks)
        return found
    if isinstance(metrics, set | frozenset):
        metrics = sorted(metrics, key=str)
    for value in metrics if isinstance(metrics, list | tuple) else [] if metrics is None else [metrics]:
        task, rest = split_task(value, tasks) if isinstance(value, str) else ("", value)
        for name, metric in get_metrics([rest]).items():
            _place(found, task, name, metric, tasks)
    return found


def _place(found: dict[str, Any], task: str, name: str, metric: Any, tasks: Sequence[str]) -> None:
    if isinstance(metric, Loss):
        found[name] = metric
    elif task:
        found[f"{task}_{name}"] = metric
    else:
        found |= {f"{each}_{name}": copy.deepcopy(metric) for each in tasks}


def of_task(metrics: Mapping[str, Any], task: str, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the metrics of one task by their own names; all of them for the only task, the empty string."""
    split = {name: split_task(name, tasks) for name in metrics}
    return {split[name][1]: metric for name, metric in metrics.items() if split[name][0] == task}
