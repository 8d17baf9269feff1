"""Columns whose rows have different lengths, and how they become the equal shapes that programs take.

A ragged column is (values, offsets), as the lists of Arrow are. The network's own arguments say what it wants of one
called "history":

- ``history``: padded rows, [batch, length]; also ``history_mask`` (bool, [batch, length]) and ``history_lengths``
  (int32, [batch]) where it takes them;
- ``history_offsets`` (int32, [batch]) beside ``history``: all values one after another, [n], for `EmbeddingBag`.

Lengths are rounded up to a few, so that few programs are compiled.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigurationError
from ..streams.ragged_column import Ragged

logger = logging.getLogger(__name__)

_SUFFIXES = ("_mask", "_lengths", "_offsets")


def round_up(length: int, per_octave: int = 1) -> int:
    """Return the least length >= `length` (and >= 1) of those that programs are compiled for.

    These are the powers of two, and with `per_octave` n the n - 1 multiples of 1/n of each between it and the next.
    """
    length = max(1, int(length))
    step = max(1, (1 << (length - 1).bit_length() - 1) // per_octave if length > 1 else 1)
    return -(-length // step) * step


def given_names(arguments: Sequence[str], columns: Collection[str]) -> tuple[str, ...]:
    """Return which of a network's arguments data with these columns have to give: masks and the like are made here."""
    return tuple(name for name in arguments if name in columns or base_of(name) not in columns)


def base_of(name: str) -> str:
    """Return the ragged column that an argument of this name is made from, as far as the name tells."""
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)


class ListLengths(NamedTuple):
    """How long the lists of a column are in a step of several processes, all of which pad to the same length.

    Attributes:
        longest: values of the longest row.
        most: values of all rows of the process that has most.
        per_octave: see `Ragged`.
        ragged: whether they differ, or may: the column is a `Ragged` one for some process.
    """

    longest: int
    most: int
    per_octave: int = 1
    ragged: bool = True

    @classmethod
    def of(cls, column: Any) -> ListLengths | None:
        """Return those of a batch's column; None where its rows are single values."""
        if isinstance(column, Ragged):
            lengths = column.cut_lengths
            return cls(int(lengths.max(initial=0)), int(lengths.sum()), column.per_octave)
        return cls(column.shape[1], column.shape[0] * column.shape[1], ragged=False) if column.ndim > 1 else None

    def joined(self, other: ListLengths | None) -> ListLengths:
        """Return those of both."""
        return self if other is None else ListLengths(*map(max, self, other))


class RaggedInput(NamedTuple):
    """What the network takes of a ragged column.

    Attributes:
        made: endings of the arguments made from it: "_mask", "_lengths" or "_offsets".
        padding: value that fills up rows, or follows them.
        length: the padded length of the longest rows there can be; None where any may come.
    """

    made: tuple[str, ...]
    padding: float | str
    length: int | None

    def capacity(self, rows: int) -> int:
        """Return the length of `arrays` in a program for batches of so many rows; `length` is known."""
        return self.length * rows if "_offsets" in self.made else self.length

    def arrays(self, name: str, column: Ragged, length: int) -> dict[str, np.ndarray]:
        """Return the arguments by name: rows padded to `length`, or all values followed by padding up to `length`."""
        lengths = column.lengths
        if "_offsets" in self.made:
            whole = Ragged(column[:].values, [0, lengths.sum()], padding=self.padding)
            return {name: whole.padded(length)[0], name + "_offsets": (np.cumsum(lengths) - lengths).astype(np.int32)}
        found = {name: Ragged(column.values, column.offsets, padding=self.padding).padded(length)}
        if "_mask" in self.made:
            found[name + "_mask"] = np.arange(length) < lengths[:, None]
        if "_lengths" in self.made:
            found[name + "_lengths"] = lengths.astype(np.int32)
        return found


class RaggedColumns:
    """Makes equal shapes of the ragged columns of one feed's batches.

    Args:
        arguments: names of what the network's `construct` takes, in order.

    Attributes:
        cells: values that programs were given, padding included.
        values: of these, values of the data.
        lengths: lengths padded to so far.
        inputs: what the network takes of each ragged column there has been.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = tuple(arguments)
        # columns of whose rows the network wants to know the lengths
        self._asked = {base_of(name) for name in self.arguments if base_of(name) != name}
        self.cells = self.values = 0
        self.lengths: set[int] = set()
        self.inputs: dict[str, RaggedInput] = {}

    def __call__(
        self, columns: Sequence[Any], names: tuple[str, ...], of_step: Mapping[str, ListLengths] | None = None
    ) -> tuple[tuple[np.ndarray, ...], tuple[str, ...]]:
        """Return a batch's columns and names, the ragged ones padded and what else the network takes of them added.

        Args:
            columns: of a batch.
            names: theirs.
            of_step: by name, how long the lists of all processes are in the batch's step; None with one process.
        """
        if of_step is None and not self._asked and Ragged not in [type(column) for column in columns]:
            return tuple(columns), names
        ragged, of_step = {}, of_step or {}
        for name, column in zip(names, columns, strict=True):
            listed = name in of_step and of_step[name].ragged
            if isinstance(column, Ragged) or name in self._asked or listed:
                column = self._as_ragged(name, column, names)
                if column is not None:
                    ragged[name] = column
        if not ragged:
            return tuple(columns), names
        made: dict[str, np.ndarray] = {}
        for name, column in zip(names, columns, strict=True):
            if name in ragged:
                self._pad(name, ragged[name].cut(), made, of_step.get(name))
            else:
                made[name] = column
        added = [name for name in made if name not in names]
        order = list(names)
        for name in sorted(added, key=self.arguments.index):
            order.insert(self.arguments.index(name), name)
        return tuple(made[name] for name in order), tuple(order)

    def _as_ragged(self, name: str, column: Any, names: tuple[str, ...]) -> Ragged | None:
        if isinstance(column, Ragged):
            return column
        # lists that happen to be equally long in this batch come as an array
        if column.ndim < 2 or any(name + suffix in names for suffix in _SUFFIXES):
            return None
        rows, length = column.shape[:2]
        return Ragged(column.reshape(rows * length, *column.shape[2:]), np.arange(rows + 1) * length)

    def _pad(self, name: str, column: Ragged, made: dict[str, np.ndarray], of_step: ListLengths | None) -> None:
        wanted = self.inputs.get(name)
        if wanted is None:
            wanted = self.inputs[name] = self._wanted(name, column)
        flat = "_offsets" in wanted.made
        lengths = of_step or ListLengths.of(column)
        length = round_up(lengths.most if flat else lengths.longest, lengths.per_octave)
        made.update(wanted.arrays(name, column, length))
        self._count(length, length if flat else length * len(column), int(column.lengths.sum()))

    def _wanted(self, name: str, column: Ragged) -> RaggedInput:
        wanted = tuple(suffix for suffix in _SUFFIXES if name + suffix in self.arguments)
        if "_offsets" in wanted and len(wanted) > 1:
            raise ConfigurationError(
                f"column {name!r}: the network takes {name}_offsets and {name}{wanted[0]}; the values come either "
                "one after another, with offsets, or in padded rows, with mask and lengths"
            )
        padding = column.padding
        if padding is None:
            number = -1 if "_offsets" in wanted and column.dtype.kind == "i" else 0
            padding = "" if column.dtype.kind == "U" else number
        most = None if column.max_length is None else round_up(column.max_length, column.per_octave)
        return RaggedInput(wanted, padding, most)

    def _count(self, length: int, cells: int, values: int) -> None:
        self.lengths.add(length)
        self.cells += cells
        self.values += values

    def describe(self) -> str | None:
        """Return what padding there was, in words; None without ragged columns."""
        if not self.cells:
            return None
        share = 1 - self.values / self.cells
        return f"ragged columns: padded to {len(self.lengths)} lengths ({_listed(self.lengths)}), {share:.0%} padding"


def _listed(lengths: set[int]) -> str:
    found = sorted(lengths)
    return ", ".join(map(str, found if len(found) <= 8 else [*found[:4], "...", *found[-2:]]))
