"""Pads columns of lists of different lengths to the shapes that programs take.

A ragged column is stored as (values, offsets), like a list array in Arrow. The names of the network's arguments decide
how a column such as "history" is passed:

- ``history``: padded rows, [batch, length]. ``history_mask`` (bool, [batch, length]) and ``history_lengths`` (int32,
  [batch]) are passed too if the network takes them.
- ``history`` with ``history_offsets`` (int32, [batch]): all values concatenated, [n], for `EmbeddingBag`.

Lengths are rounded up to buckets, so that few programs are compiled. Columns of short lists are always padded to their
maximum length: with several list columns, every combination of lengths needs a program, and compiling one costs more
than shorter padding would save.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigurationError, DataError
from ..native.memory import bucket
from ..streams.formats.ragged_column import Ragged

logger = logging.getLogger(__name__)

MAX_SHORT = 32  # lists with a `max_length` up to this are padded to it
_SUFFIXES = ("_mask", "_lengths", "_offsets")


def data_arguments(arguments: Sequence[str], columns: Collection[str]) -> tuple[str, ...]:
    """Return the arguments that name data columns, not masks, lengths or offsets."""
    return tuple(name for name in arguments if name in columns or column_of(name) not in columns)


def column_of(name: str) -> str:
    """Return the name of the column that an argument is derived from."""
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)


class ListLengths(NamedTuple):
    """Lengths of a column's lists in a step; all processes pad to the same length."""

    longest: int  # length of the longest list
    total: int  # number of values in the batch; the maximum over the processes
    per_octave: int = 1  # see `Ragged`
    ragged: bool = True  # whether the lengths may differ, between rows or processes

    @classmethod
    def of(cls, column: Any) -> ListLengths | None:
        """Return the list lengths of a column, or None if its rows are single values."""
        if isinstance(column, Ragged):
            lengths = column.cut_lengths
            return cls(int(lengths.max(initial=0)), int(lengths.sum()), column.per_octave)
        return cls(column.shape[1], column.shape[0] * column.shape[1], ragged=False) if column.ndim > 1 else None

    def joined(self, other: ListLengths | None) -> ListLengths:
        """Return the elementwise maximum of both."""
        if other is None:
            return self
        longest, total = max(self.longest, other.longest), max(self.total, other.total)
        return ListLengths(longest, total, max(self.per_octave, other.per_octave), self.ragged or other.ragged)


class ListTypes:
    """Remembers the dtype and shape of list values, for batches of only empty lists.

    A column is identified by its index among the network's columns, which is the same in `fit`, `evaluate` and
    `predict`. Until a column has had values, it gets the dtype that `default` returns.
    """

    def __init__(self, default: Callable[[], Any]) -> None:
        self._default = default
        self._known: dict[int, np.ndarray] = {}
        self.assumed: set[str] = set()  # names of the columns that still have the default dtype

    def __call__(self, columns: tuple[Any, ...], names: Sequence[str]) -> tuple[Any, ...]:
        """Return the columns with a dtype for each."""
        typed = columns
        for index, (name, column) in enumerate(zip(names, columns, strict=True)):
            if column.ndim < 2:
                continue
            if not isinstance(column, Ragged):
                self._note(index, name, column.shape[2:], column.dtype)
            elif column.dtype != object:  # else all lists are empty Python lists
                self._note(index, name, column.values.shape[1:], column.dtype)
            else:
                if column.lengths.any():
                    raise DataError(f"column {name!r}: its lists hold values of several types, or missing ones")
                if index not in self._known:
                    self.assumed.add(name)
                values = self._known.get(index, np.empty(0, self._default()))
                empty = Ragged(values[:0], np.zeros_like(column.offsets), **column.options)
                typed = (*typed[:index], empty, *typed[index + 1 :])
        return typed

    def _note(self, index: int, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._known[index] = np.empty((0, *shape), dtype)
        self.assumed.discard(name)


class RaggedInput(NamedTuple):
    """How a ragged column is passed to the network."""

    suffixes: tuple[str, ...]  # endings of the arguments derived from it: "_mask", "_lengths" or "_offsets"
    padding: float | str  # value that pads each row, or the concatenated values
    length: int | None  # padded length of the longest possible row; None if there is no maximum
    longest: int | None = None  # number of values of the longest possible row, `max_length`

    def capacity(self, rows: int) -> int:
        """Return the length of `arrays` in a program for `rows` rows; requires `length`."""
        if self.length is None:
            raise ValueError("only a column with a maximum has a capacity")
        return self.length * rows if "_offsets" in self.suffixes else self.length

    def arrays(self, name: str, column: Ragged, length: int) -> dict[str, np.ndarray]:
        """Return the arguments by name, with rows or concatenated values padded."""
        lengths = column.lengths
        if "_offsets" in self.suffixes:
            flat = Ragged(column[:].values, [0, lengths.sum()], padding=self.padding)
            return {name: flat.padded(length)[0], name + "_offsets": (np.cumsum(lengths) - lengths).astype(np.int32)}
        arrays = {name: Ragged(column.values, column.offsets, padding=self.padding).padded(length)}
        if "_mask" in self.suffixes:
            arrays[name + "_mask"] = np.arange(length) < lengths[:, None]
        if "_lengths" in self.suffixes:
            arrays[name + "_lengths"] = lengths.astype(np.int32)
        return arrays


class RaggedColumns:
    """Pads the ragged columns of one feed's batches to equal shapes."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = tuple(arguments)
        # Names of the columns whose mask, lengths or offsets the network takes.
        self._derived = {column_of(name) for name in self.arguments if column_of(name) != name}
        self.inputs: dict[str, RaggedInput] = {}
        self._dtype_kinds: dict[str, str] = {}

    @property
    def flat(self) -> list[str]:
        """Names of columns passed as concatenated values, whose axis 0 is not rows."""
        return [name for name, ragged_input in self.inputs.items() if "_offsets" in ragged_input.suffixes]

    def __call__(
        self, columns: Sequence[Any], names: tuple[str, ...], step_lengths: Mapping[str, ListLengths] | None = None
    ) -> tuple[tuple[np.ndarray, ...], tuple[str, ...]]:
        """Return a batch's columns and names, with lists padded.

        Masks, lengths and offsets are added if the network has arguments for them. With several processes,
        `step_lengths` gives the list lengths of the whole step by column name.
        """
        if step_lengths is None and not self._derived and Ragged not in [type(column) for column in columns]:
            return tuple(columns), names
        ragged, step_lengths = {}, step_lengths or {}
        for name, column in zip(names, columns, strict=True):
            is_ragged_elsewhere = name in step_lengths and step_lengths[name].ragged
            if isinstance(column, Ragged) or name in self._derived or is_ragged_elsewhere:
                column = self._as_ragged(name, column, names)
                if column is not None:
                    ragged[name] = column
        if not ragged:
            return tuple(columns), names
        arrays: dict[str, np.ndarray] = {}
        for name, column in zip(names, columns, strict=True):
            if name in ragged:
                arrays |= self._pad(name, ragged[name].cut(), names, step_lengths.get(name))
            else:
                arrays[name] = column
        added = [name for name in arrays if name not in names]
        order = list(names)
        for name in sorted(added, key=self.arguments.index):
            order.insert(self.arguments.index(name), name)
        return tuple(arrays[name] for name in order), tuple(order)

    def _as_ragged(self, name: str, column: Any, names: tuple[str, ...]) -> Ragged | None:
        if isinstance(column, Ragged):
            return column
        # Lists that happen to be equally long in this batch come as an array.
        if column.ndim < 2 or any(name + suffix in names for suffix in _SUFFIXES):
            return None
        rows, length = column.shape[:2]
        return Ragged(column.reshape(rows * length, *column.shape[2:]), np.arange(rows + 1) * length)

    def _pad(
        self, name: str, column: Ragged, names: Sequence[str], step_lengths: ListLengths | None
    ) -> dict[str, np.ndarray]:
        ragged_input = self.inputs.get(name)
        if ragged_input is None or self._dtype_kinds[name] != column.dtype.kind:
            ragged_input = self.inputs[name] = self._input_of(name, column, names)
            self._dtype_kinds[name] = column.dtype.kind
        flat = "_offsets" in ragged_input.suffixes
        lengths = step_lengths or ListLengths.of(column)
        assert lengths is not None  # `column` holds lists
        length = bucket(lengths.total if flat else lengths.longest, lengths.per_octave)
        if not flat and ragged_input.length is not None and lengths.longest <= ragged_input.length <= MAX_SHORT:
            length = ragged_input.length
        return ragged_input.arrays(name, column, length)

    def _input_of(self, name: str, column: Ragged, names: Sequence[str]) -> RaggedInput:
        # a column of the data with such a name is that argument itself
        arguments = set(self.arguments).difference(names)
        suffixes = tuple(suffix for suffix in _SUFFIXES if name + suffix in arguments)
        if "_offsets" in suffixes and len(suffixes) > 1:
            raise ConfigurationError(
                f"column {name!r}: the network takes {name}_offsets and {name}{suffixes[0]}; the values come either "
                "one after another, with offsets, or in padded rows, with mask and lengths"
            )
        padding = column.padding
        if padding is None:
            number = -1 if "_offsets" in suffixes and column.dtype.kind == "i" else 0
            padding = "" if column.dtype.kind == "U" else number
        length = column.max_length
        if length is not None and length > MAX_SHORT:
            length = bucket(length, column.per_octave)
        return RaggedInput(suffixes, padding, length, column.max_length)
