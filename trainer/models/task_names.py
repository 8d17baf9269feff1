"""The task names of a multi-task model."""

from __future__ import annotations

from collections.abc import Sequence

from ..checks import refuse
from ..features import Features


def tasks_of(features: Features, model: str, tasks: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of a model's tasks: those given, or the labels of the features."""
    names = features.labels if tasks is None else tasks
    if isinstance(names, str) or len(names) < 2 or len(set(names)) < len(names):
        refuse(f"{model}(tasks=...)", "two or more different names, or features with as many labels", names)
    return tuple(names)
