"""Agrees on list lengths in data of which each process reads a part.

Lists that are equally long by chance come as an array, so the batches of one process do not show where lists are.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..distributed.group import Group
from .as_columns import Columns
from .ragged import ListLengths, Ragged
from .source import Item

_UNEVEN = -1


class AgreedLists:
    """Knowledge of the lists in a step that all processes share.

    Attributes:
        seen: checksum of the lengths of this process's rows, for the others; 0 before the first row, -1 once lengths
            differ. As long as all rows are equally long, all processes with rows have the same number.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.seen = 0
        self._indexes: list[int] = []

    def note(self, columns: Columns) -> None:
        """Note the lengths in a batch."""
        if self.seen == _UNEVEN:
            return
        self._indexes = [index for index, column in enumerate(columns) if column.ndim > 1]
        lengths = [columns[index].shape[1] for index in self._indexes]
        checksum = zlib.crc32(repr(lengths).encode()) or 1
        self.seen = _UNEVEN if None in lengths or self.seen not in (0, checksum) else checksum

    def lengths(
        self, batches: Sequence[Item], most: int, seen: Sequence[int], names: Sequence[str]
    ) -> list[dict[str, ListLengths] | None]:
        """Return by column the list lengths of the next `most` steps; None if all equal."""
        known = {*seen} - {0}
        if len(known) < 2 and _UNEVEN not in known:
            return [None] * most
        own = np.zeros((most, len(self._indexes), len(ListLengths._fields)), np.int64)
        for step, item in enumerate(batches):
            own[step] = [ListLengths.of(item.columns[index]) for index in self._indexes]
        of_steps: list[dict[str, ListLengths] | None] = []
        for step in self.group.gather(own).transpose(1, 2, 0, 3).tolist():
            with_rows = [[ListLengths(*numbers) for numbers in column if any(numbers)] for column in step]
            pairs = zip(self._indexes, with_rows, strict=True)
            of_steps.append({names[index]: _joined(lengths) for index, lengths in pairs if lengths})
        return of_steps


def _joined(lengths: list[ListLengths]) -> ListLengths:
    ragged = any(own.ragged or own.longest != lengths[0].longest for own in lengths)
    return functools.reduce(ListLengths.joined, lengths)._replace(ragged=ragged)


def placeholder_columns(columns: Columns, names: Sequence[str], lengths: Mapping[str, ListLengths] | None) -> Columns:
    """Return placeholder columns like `columns`, with the `lengths` of the step."""
    of_step = lengths or {}
    return tuple([_placeholder(column, of_step.get(name)) for name, column in zip(names, columns, strict=True)])


def _placeholder(column: Any, of_step: ListLengths | None) -> Any:
    if of_step is None:
        return column
    options = column.options if isinstance(column, Ragged) else {}
    values = column.values if isinstance(column, Ragged) else column.reshape(-1, *column.shape[2:])
    if of_step.ragged:
        return Ragged(values[:0], np.zeros(len(column) + 1, np.int64), **options)
    return np.resize(values, (len(column), of_step.longest, *values.shape[1:]))
