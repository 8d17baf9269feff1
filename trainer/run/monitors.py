"""The metrics that a run produces, for callbacks that monitor them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from callbacks import Callback

from ..checks import nonempty_text
from ..errors import ConfigurationError, did_you_mean
from ..graph.multi_task import MultiTaskLoss
from ..metrics.registry import directions
from ..metrics.window_metric import Direction

if TYPE_CHECKING:
    from .online import OnlineMetrics


def produced_metrics(
    metrics: Mapping[str, Any], tasks: MultiTaskLoss | None, valid_sets: Sequence[str], online: OnlineMetrics | None
) -> dict[str, Direction]:
    """Return name -> whether higher is better (or None) for the metrics of a run."""
    losses = {} if tasks is None else dict.fromkeys((f"{task}_loss" for task in tasks.tasks), False)
    evaluated = {"loss": False, **losses, **directions(metrics)}
    # The losses are means of epochs, which a stream does not have.
    produced: dict[str, Direction] = {"loss": False, **losses} if online is None else {}
    for part in valid_sets:
        prefix = f"val_{part}_" if part else "val_"
        produced |= {prefix + name: higher for name, higher in evaluated.items()}
    return {**produced, **({} if online is None else online.directions())}


def check_monitors(
    callbacks: Iterable[Callback], produced: Mapping[str, Direction], validated: Container[str] = ()
) -> None:
    """Check that monitored metrics are produced; tell callbacks their direction.

    `validated` are the metrics that a validation set would add.
    """
    for callback in callbacks:
        owner = type(callback).__name__
        monitor = nonempty_text(f"{owner}.monitor", callback.monitor, "the name of a metric", optional=True)
        if monitor is None:
            continue
        if hasattr(callback, "use_directions"):
            raise ConfigurationError(
                f"{owner}.use_directions(directions) was replaced by use_direction(higher_is_better)"
            )
        base = re.sub(r"_\d+$", "", monitor)  # name of the metric, if `monitor` is its value for one label or class
        if monitor not in produced and base not in produced:
            missing = "; it comes from validation, and no valid_dataset was given"
            hint = missing if monitor in validated and monitor.startswith("val_") else did_you_mean(monitor, produced)
            raise ConfigurationError(
                f"{owner}(monitor={monitor!r}): no metric of that name is produced; "
                f"available are {', '.join(produced)}{hint}"
            )
        callback.use_direction(produced.get(monitor, produced.get(base)))
