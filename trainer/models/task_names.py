"""The task names of a multi-task model."""

from __future__ import annotations

from collections.abc import Sequence

from ..checks import refuse
from ..features import Features


def tasks_of(
    features: Features, model: str, tasks: Sequence[str] | None, most: float = float("inf")
) -> tuple[str, ...]:
    """Return the names of a model's tasks: those given, or the labels of the features."""
    names = features.labels if tasks is None else tasks
    if isinstance(names, str) or not 2 <= len(names) <= most or len(set(names)) < len(names):
        count = "two" if most == 2 else "two or more"
        refuse(f"{model}(tasks=...)", f"{count} different names, or features with as many labels", names)
    return tuple(names)
