"""How long the lists of a divided stream are over all processes, each of which reads lists of its own.

Lists that are equally long by chance come as an array, so one process's batches do not tell where there are lists.
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
from .sources import Item

_UNEVEN = -1


class AgreedLists:
    """What all processes know of the lists in a step.

    Args:
        group: the processes.

    Attributes:
        seen: what this process has seen of its rows' lengths, for the others; the same number everywhere, or 0 where
            there were no rows, as long as no rows of any two processes differ.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.seen = 0
        self._places: list[int] = []

    def note(self, columns: Columns) -> None:
        """Look at the rows of a batch."""
        if self.seen == _UNEVEN:
            return
        self._places = [place for place, column in enumerate(columns) if column.ndim > 1]
        lengths = [columns[place].shape[1] for place in self._places]
        found = zlib.crc32(repr(lengths).encode()) or 1
        self.seen = _UNEVEN if None in lengths or self.seen not in (0, found) else found

    def lengths(
        self, batches: Sequence[Item], most: int, seen: Sequence[int], names: Sequence[str]
    ) -> list[dict[str, ListLengths] | None]:
        """Return by column how long the lists are in the next `most` steps; None where rows are equally long.

        Args:
            batches: of this process for these steps; the steps that follow have none of its own.
            most: steps; the same on all processes.
            seen: what each process has seen.
            names: of the columns.
        """
        known = {*seen} - {0}
        if len(known) < 2 and _UNEVEN not in known:
            return [None] * most
        own = np.zeros((most, len(self._places), len(ListLengths._fields)), np.int64)
        for step, item in enumerate(batches):
            own[step] = [ListLengths.of(item.columns[place]) for place in self._places]
        found = []
        for step in self.group.gather(own).transpose(1, 2, 0, 3).tolist():
            with_rows = [[ListLengths(*one) for one in column if any(one)] for column in step]
            pairs = zip(self._places, with_rows, strict=True)
            found.append({names[place]: _joined(lengths) for place, lengths in pairs if lengths})
        return found


def _joined(lengths: list[ListLengths]) -> ListLengths:
    ragged = any(one.ragged or one.longest != lengths[0].longest for one in lengths)
    return functools.reduce(ListLengths.joined, lengths)._replace(ragged=ragged)


def made_up(columns: Columns, names: Sequence[str], lengths: Mapping[str, ListLengths] | None) -> Columns:
    """Return columns that look like `columns` and like the rows of other processes in a step with these `lengths`."""
    of_step = lengths or {}
    return tuple(
        [
            _made_up(column, of_step[name]) if name in of_step else column
            for name, column in zip(names, columns, strict=True)
        ]
    )


def _made_up(column: Any, of_step: ListLengths) -> Any:
    options = column.options if isinstance(column, Ragged) else {}
    values = column.values if isinstance(column, Ragged) else column.reshape(-1, *column.shape[2:])
    if of_step.ragged:
        return Ragged(values[:0], np.zeros(len(column) + 1, np.int64), **options)
    return np.resize(values, (len(column), of_step.longest, *values.shape[1:]))
