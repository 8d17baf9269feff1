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
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ConfigurationError, DataError

logger = logging.getLogger(__name__)

MOST_PER_OCTAVE = 16
_SUFFIXES = ("_mask", "_lengths", "_offsets")


class Ragged:
    """Rows of different lengths.

    Args:
        values: all rows' values one after another, [n, ...].
        offsets: int64 [rows + 1]; row i is ``values[offsets[i]:offsets[i + 1]]``.
        padding: value that fills up rows.
        max_length: longer rows lose their first values, the oldest of a history; None keeps all.
        per_octave: padded lengths between a power of two and the next, 1 to 16: more pad less and compile more.

    Raises:
        ConfigurationError: an argument out of range, or offsets that do not fit the values.
    """

    def __init__(
        self,
        values: Any,
        offsets: Any,
        *,
        padding: float = 0,
        max_length: int | None = None,
        per_octave: int = 1,
    ) -> None:
        self.values = np.asarray(values)
        self.offsets = np.asarray(offsets, np.int64)
        if self.offsets.ndim != 1 or not len(self.offsets) or (np.diff(self.offsets) < 0).any():
            raise ConfigurationError(f"offsets: takes ascending numbers, one more than rows; received {offsets!r}")
        if self.offsets[0] < 0 or self.offsets[-1] > len(self.values):
            raise ConfigurationError(f"offsets: takes 0 to {len(self.values)}; received up to {self.offsets[-1]}")
        if max_length is not None and max_length < 1:
            raise ConfigurationError(f"max_length: takes a whole number >= 1, or None; received {max_length!r}")
        if per_octave not in (1, 2, 4, 8, MOST_PER_OCTAVE):
            raise ConfigurationError(f"per_octave: takes 1, 2, 4, 8 or 16; received {per_octave!r}")
        self.padding, self.max_length, self.per_octave = padding, max_length, per_octave

    @classmethod
    def of(cls, rows: Any, **options: Any) -> Ragged:
        """Return the column of a list, object array or series of lists, or of an Arrow list array.

        Args:
            rows: one sequence of values per row; None is an empty row.
            options: further arguments of `Ragged`.

        Raises:
            DataError: rows that are not lists of numbers or text.
        """
        if isinstance(rows, Ragged):
            return cls(rows.values, rows.offsets, **{**rows._options, **options})
        if hasattr(rows, "combine_chunks") or hasattr(rows, "value_lengths"):
            return cls(*_of_arrow(rows), **options)
        rows = [() if row is None else row for row in rows]
        if any(np.isscalar(row) for row in rows):
            raise DataError("a column mixes lists and single values")
        lengths = [len(row) for row in rows]
        parts = [np.asarray(row) for row, length in zip(rows, lengths, strict=True) if length]
        try:
            values = np.concatenate(parts) if parts else np.empty(0, np.float32)
        except ValueError as error:
            raise DataError(f"lists of different depths in one column: {error}") from None
        return cls(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), **options)

    @property
    def _options(self) -> dict[str, Any]:
        return {"padding": self.padding, "max_length": self.max_length, "per_octave": self.per_octave}

    def _like(self, values: np.ndarray, offsets: np.ndarray) -> Ragged:
        return Ragged(values, offsets, **self._options)

    @property
    def dtype(self) -> np.dtype:
        """Of the values."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """Number of axes once padded."""
        return self.values.ndim + 1

    @property
    def shape(self) -> tuple[Any, ...]:
        """As once padded, with None for the length."""
        return (len(self), None, *self.values.shape[1:])

    @property
    def nbytes(self) -> int:
        """Of values and offsets."""
        return self.values.nbytes + self.offsets.nbytes

    @property
    def lengths(self) -> np.ndarray:
        """Length of each row, int64 [rows]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice) and rows.step in (None, 1):
            first, last, _ = rows.indices(len(self))
            offsets = self.offsets[first : max(first, last) + 1]
            return self._like(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        rows = np.arange(len(self))[rows]
        if rows.ndim == 0:
            return self.values[self.offsets[rows] : self.offsets[rows + 1]]
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return self._like(self.values[places], offsets)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is not np.concatenate or kwargs:
            return NotImplemented
        parts = [part if isinstance(part, Ragged) else Ragged.of(part) for part in args[0]]
        ends = np.cumsum([len(part.values) for part in parts])
        moved = [part.offsets[1:] + end - len(part.values) for part, end in zip(parts, ends, strict=True)]
        compact = [part[:] for part in parts]  # a view may start in the middle of its values
        return self._like(np.concatenate([part.values for part in compact]), np.concatenate([[0], *moved]))

    def astype(self, dtype: Any) -> Ragged:
        """Return the column with values of another dtype."""
        return self._like(self.values.astype(dtype), self.offsets)

    def cut(self) -> Ragged:
        """Return the rows with at most the last `max_length` values."""
        if self.max_length is None or not (self.lengths > self.max_length).any():
            return self
        lengths = np.minimum(self.lengths, self.max_length)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[1:] - offsets[1:], lengths)
        return self._like(self.values[places], offsets)

    def padded(self, length: int) -> np.ndarray:
        """Return the rows filled up to `length` at their ends, [rows, length, ...]; none may be longer."""
        out = np.full((len(self), length, *self.values.shape[1:]), self.padding, self.values.dtype)
        out[np.arange(length) < self.lengths[:, None]] = self.values[self.offsets[0] : self.offsets[-1]]
        return out


def _of_arrow(array: Any) -> tuple[np.ndarray, np.ndarray]:
    if hasattr(array, "combine_chunks"):
        array = array.combine_chunks()
        array = array.chunk(0) if hasattr(array, "chunk") else array
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    values = array.flatten().to_numpy(zero_copy_only=False)  # without the values under nulls
    return values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def round_up(length: int, per_octave: int = 1) -> int:
    """Return the least length >= `length` (and >= 1) of those that programs are compiled for.

    These are the powers of two, and with `per_octave` n the n - 1 multiples of 1/n of each between it and the next.
    """
    length = max(1, int(length))
    step = max(1, (1 << (length - 1).bit_length() - 1) // per_octave if length > 1 else 1)
    return -(-length // step) * step


class RaggedColumns:
    """Makes equal shapes of the ragged columns of one feed's batches.

    Args:
        arguments: names of what the network's `construct` takes, in order.

    Attributes:
        cells: values that programs were given, padding included.
        values: of these, values of the data.
        lengths: lengths padded to so far.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = tuple(arguments)
        # columns of whose rows the network wants to know the lengths
        self._asked = {name.removesuffix(s) for name in self.arguments for s in _SUFFIXES if name.endswith(s)}
        self.cells = self.values = 0
        self.lengths: set[int] = set()

    def __call__(
        self, columns: Sequence[Any], names: tuple[str, ...]
    ) -> tuple[tuple[np.ndarray, ...], tuple[str, ...]]:
        """Return a batch's columns and names, the ragged ones padded and what else the network takes of them added."""
        ragged = {}
        for name, column in zip(names, columns, strict=True):
            if isinstance(column, Ragged) or name in self._asked:
                column = self._as_ragged(name, column, names)
                if column is not None:
                    ragged[name] = column
        if not ragged:
            return tuple(columns), names
        made: dict[str, np.ndarray] = {}
        for name, column in zip(names, columns, strict=True):
            if name in ragged:
                self._pad(name, ragged[name].cut(), made)
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

    def _pad(self, name: str, column: Ragged, made: dict[str, np.ndarray]) -> None:
        wanted = [suffix for suffix in _SUFFIXES if name + suffix in self.arguments]
        lengths = column.lengths
        if "_offsets" in wanted:
            if len(wanted) > 1:
                raise ConfigurationError(
                    f"column {name!r}: the network takes {name}_offsets and {name}{wanted[0]}; the values come either "
                    "one after another, with offsets, or in padded rows, with mask and lengths"
                )
            length = round_up(len(column.values), column.per_octave)
            whole = Ragged(column.values, [0, len(column.values)], padding=column.padding)
            made[name] = whole.padded(length)[0]
            made[name + "_offsets"] = column.offsets[:-1].astype(np.int32)
            self._count(length, length, len(column.values))
            return
        length = round_up(lengths.max(initial=1), column.per_octave)
        made[name] = column.padded(length)
        if "_mask" in wanted:
            made[name + "_mask"] = np.arange(length) < lengths[:, None]
        if "_lengths" in wanted:
            made[name + "_lengths"] = lengths.astype(np.int32)
        self._count(length, length * len(column), int(lengths.sum()))

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
