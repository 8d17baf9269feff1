"""Match the declared labels and weight with the arguments of the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import nn

from ..data.column_checks import arguments_of, label_columns
from ..errors import ConfigurationError, did_you_mean
from .denominators import COUNTED, name_of
from .multi_task import MultiTaskLoss
from .row_losses import RowLoss, weighable


@dataclass(frozen=True)
class LossColumns:
    """The columns that follow the network's inputs: labels, then an optional weight."""

    count: int  # number of these columns
    labels: tuple[str, ...] = ()  # names of the labels, if known
    weight: str | None = None  # name of the declared weight, or None
    applies_weight: bool = False  # whether the trainer applies the weight; if not, the loss takes it as an argument
    weighted_loss: RowLoss | None = None  # the loss with row weights; None for several tasks

    @property
    def kind(self) -> str:
        """Kind of the weighted loss's denominator."""
        return COUNTED if self.weighted_loss is None else self.weighted_loss.kind

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, if known."""
        return self.labels if self.weight is None else (*self.labels, self.weight)

    def describe(self, loss_fn: Any) -> str:
        """Return what each declared column is used for, as text."""
        name = name_of(loss_fn)
        labels = f"{', '.join(map(repr, self.labels)) or 'the last column'} to {name}"
        if self.weight is None:
            return labels
        if not self.applies_weight:
            return f"{labels}; {name} takes {self.weight!r}"
        return f"{labels}; {self.weight!r} weighs its rows, sum(w l) / sum(w)"


def loss_columns(network: nn.Cell | type[nn.Cell], loss_fn: Any, features: Any) -> LossColumns:
    """Return which columns go to the loss.

    Args:
        features: the declared columns (`trainer.features.Features`), or None.

    Raises:
        ConfigurationError: a declared label or weight would not be used, or the number of declared labels is not the
            number that the loss takes.
    """
    tasks = loss_fn if isinstance(loss_fn, MultiTaskLoss) else None
    takes = labels_of(loss_fn)
    if features is None or not (features.labels or features.weight):
        return LossColumns(takes, () if tasks is None else tasks.label_names)
    labels, weight = features.labels, features.weight
    if loss_fn is None:
        _check_arguments(network, (*labels, weight) if weight else ())
        return LossColumns(0)
    if weight and not labels:
        raise ConfigurationError(
            f"Features(weight={weight!r}): without a label there is no loss to weigh; add label=..."
        )
    if tasks is not None:
        return _task_columns(tasks, labels, weight)
    if takes == len(labels) + 1 and weight:
        return LossColumns(takes, labels, weight)
    if takes != len(labels):
        _refuse_number(loss_fn, labels, takes, weight)
    if weight is None:
        return LossColumns(takes, labels)
    return LossColumns(takes + 1, labels, weight, True, weighable(loss_fn, weight))


def labels_of(loss_fn: Any) -> int:
    """Return how many label columns a loss takes."""
    return len(loss_fn.tasks) if isinstance(loss_fn, MultiTaskLoss) else label_columns(loss_fn)


def _task_columns(tasks: MultiTaskLoss, labels: Sequence[str], weight: str | None) -> LossColumns:
    missing = [name for name in tasks.label_names if name not in labels]
    unused = [name for name in labels if name not in tasks.label_names]
    if missing or unused:
        named, where = (missing[0], labels) if missing else (unused[0], tasks.label_names)
        what = "is no declared label" if missing else "is the label of no task"
        raise ConfigurationError(
            f"MultiTaskLoss: {named!r} {what}{did_you_mean(named, where)}; Features(label=...) declares "
            f"{', '.join(map(repr, labels))}, and the tasks take {', '.join(map(repr, tasks.label_names))}; name them "
            "alike, or say which column is whose label by MultiTaskLoss(labels={task: column})"
        )
    if weight is None:
        return LossColumns(len(tasks.tasks), tasks.label_names)
    tasks.weigh_rows(weight)
    return LossColumns(len(tasks.tasks) + 1, tasks.label_names, weight, True)


def _check_arguments(network: nn.Cell | type[nn.Cell], names: Sequence[str]) -> None:
    """Refuse declared columns that are no arguments of a network without a loss_fn."""
    arguments = arguments_of(network)[2]
    kind = network.__name__ if isinstance(network, type) else type(network).__name__
    for name in names:
        if name not in arguments:
            raise ConfigurationError(
                f"Features: {kind} returns its loss, so its construct has to take {name!r} by that "
                f"name; it takes {', '.join(arguments)}; or give Trainer a loss_fn, whose rows it weighs"
            )


def _refuse_number(loss_fn: Any, labels: Sequence[str], takes: int, weight: str | None) -> None:
    name, declared = name_of(loss_fn), ", ".join(map(repr, labels))
    if takes == 0:
        remedy = "a loss of only the network's outputs uses none: leave label= and weight= out, or let it take them"
    elif takes < len(labels):
        tasks = ", ".join(f"{label!r}: {name}()" for label in labels)
        remedy = f"give one label, MultiTaskLoss({{{tasks}}}), or a loss of (prediction, {', '.join(labels)})"
    else:
        remedy = "declare as many, as Features(label=[...])" + (
            "" if weight else ", or the weight it takes last as weight="
        )
    raise ConfigurationError(
        f"Features(label=...) declares {len(labels)} ({declared}), but {name} takes {takes} after the "
        f"prediction; {remedy}"
    )
