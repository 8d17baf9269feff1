"""Columns in the order a program takes them: labels last, and what only metrics read aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .as_columns import Columns


class ColumnOrder:
    """Arranges the columns of a batch by their names.

    Args:
        takes: most columns that network and loss take, or None for any number.
        labels: names of the label columns of several tasks, in the order of the loss; where a batch has all of them,
            they are put last.
        aside: names of columns whose values metrics read as groups; where a batch has more columns than are taken,
            these stay on the host.
    """

    def __init__(self, takes: int | None, labels: Sequence[str] = (), aside: Sequence[str] = ()) -> None:
        self.takes = takes
        self.labels = tuple(labels)
        self.aside = tuple(aside)

    def __bool__(self) -> bool:
        return bool(self.labels or self.aside)

    def __call__(
        self, columns: Columns, names: tuple[str, ...]
    ) -> tuple[Columns, tuple[str, ...], Mapping[str, Any] | None]:
        """Return columns and names in order, and the columns kept aside, by name."""
        kept = list(range(len(names)))
        aside: dict[str, Any] = {}
        for name in self.aside:
            if self.takes is not None and len(kept) > self.takes and name in names:
                place = names.index(name)
                aside[name] = columns[place]
                kept.remove(place)
        if self.labels and set(self.labels) <= set(names):
            last = [names.index(name) for name in self.labels]
            kept = [place for place in kept if place not in last] + last
        return tuple(columns[place] for place in kept), tuple(names[place] for place in kept), aside or None
