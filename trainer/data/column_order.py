"""Columns in the order a program takes them: labels last, and columns that only metrics read aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import DataError, did_you_mean
from .as_columns import Columns, are_unnamed
from .ragged import given_names


class ColumnOrder:
    """Arranges the columns of a batch by their names.

    Args:
        takes: most columns that network and loss take, or None for any number.
        labels: names of the label columns of several tasks, in the order of the loss; they are put last. Columns
            without names are taken by position.
        aside: names of columns whose values metrics read as groups; where a batch has more columns than are taken,
            these stay on the host.
        inputs: names of the network's required arguments; where named columns include all of them, they are put first.
        labels_needed: whether a batch with names has to have all the labels.
    """

    def __init__(
        self,
        takes: int | None,
        labels: Sequence[str] = (),
        aside: Sequence[str] = (),
        inputs: Sequence[str] = (),
        *,
        labels_needed: bool = True,
    ) -> None:
        self.takes = takes
        self.labels = tuple(labels)
        self.aside = tuple(aside)
        self.inputs = tuple(inputs)
        self.labels_needed = labels_needed

    def __bool__(self) -> bool:
        return bool(self.labels or self.aside or self.inputs)

    def __call__(
        self, columns: Columns, names: tuple[str, ...]
    ) -> tuple[Columns, tuple[str, ...], Mapping[str, Any] | None]:
        """Return columns and names in order, and the columns kept aside, by name.

        Raises:
            DataError: a named batch lacks a label column of one of several tasks.
        """
        kept = list(range(len(names)))
        aside: dict[str, Any] = {}
        for name in self.aside:
            if self.takes is not None and len(kept) > self.takes and name in names:
                index = names.index(name)
                aside[name] = columns[index]
                kept.remove(index)
        if self.labels_needed:
            check_task_labels(self.labels, names)
        if self.labels and set(self.labels) <= set(names):
            last = [names.index(name) for name in self.labels]
            kept = [index for index in kept if index not in last] + last
        inputs = [names.index(name) for name in given_names(self.inputs, names) if name in names]
        if len(inputs) == len(given_names(self.inputs, names)):
            kept = inputs + [index for index in kept if index not in inputs]
        if kept == list(range(len(names))):
            return columns, names, None
        return tuple(columns[index] for index in kept), tuple(names[index] for index in kept), aside or None


def check_task_labels(labels: Sequence[str], names: Sequence[str]) -> None:
    """Check that all label columns of several tasks are there by name, or that no column has a name.

    Raises:
        DataError: a label column is missing; taken by position, the tasks could be swapped.
    """
    missing = [label for label in labels if label not in names]
    if not missing or are_unnamed(names):
        return
    hints = "".join(did_you_mean(label, names) for label in missing)
    raise DataError(
        f"the label columns of several tasks are chosen by name: no column {', '.join(map(repr, missing))} among "
        f"{', '.join(names)}{hints}; rename the columns, or say which column "
        "is whose label by MultiTaskLoss(labels={task: column})"
    )
