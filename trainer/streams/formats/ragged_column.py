"""A column of variable-length rows as in Arrow: concatenated values and offsets."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import ConfigurationError, DataError

MAX_PER_OCTAVE = 16


class Ragged:
    """Rows of variable length.

    Args:
        values: concatenated values of all rows, shape [n, ...].
        offsets: int64 [rows + 1]; row i is ``values[offsets[i]:offsets[i + 1]]``.
        padding: value that fills rows up to the padded length. None uses 0, or an empty text for text values. Integers
            that are passed to the network with their offsets are then padded with -1, which `EmbeddingBag` ignores.
        max_length: longer rows lose their first values, which are the oldest of a history; None for no limit.
        per_octave: number of padded lengths per power of two: 1, 2, 4, 8 or 16. A larger number means less padding but
            more compilations.

    Raises:
        ConfigurationError: an argument is out of range, or the offsets do not match the values.
    """

    def __init__(
        self,
        values: Any,
        offsets: Any,
        *,
        padding: float | str | None = None,
        max_length: int | None = None,
        per_octave: int = 1,
    ) -> None:
        self.values = np.asarray(values)
        self.offsets = np.asarray(offsets, np.int64)
        if self.offsets.ndim != 1 or not len(self.offsets) or (np.diff(self.offsets) < 0).any():
            raise ConfigurationError(f"offsets: takes ascending numbers, one more than rows; received {offsets!r}")
        if self.offsets[0] < 0 or self.offsets[-1] > len(self.values):
            raise ConfigurationError(
                f"offsets: takes 0 to {len(self.values)}; received {self.offsets[0]} to {self.offsets[-1]}"
            )
        if max_length is not None and max_length < 1:
            raise ConfigurationError(f"max_length: takes a whole number >= 1, or None; received {max_length!r}")
        if per_octave not in (1, 2, 4, 8, MAX_PER_OCTAVE):
            raise ConfigurationError(f"per_octave: takes 1, 2, 4, 8 or 16; received {per_octave!r}")
        self.padding, self.max_length, self.per_octave = padding, max_length, per_octave

    @classmethod
    def of(cls, rows: Any, **options: Any) -> Ragged:
        """Create a column from sequences or an Arrow list array; None is an empty row."""
        if isinstance(rows, Ragged):
            return cls(rows.values, rows.offsets, **{**rows.options, **options})
        if hasattr(rows, "combine_chunks") or hasattr(rows, "value_lengths"):
            return cls(*_of_arrow(rows), **options)
        rows = [() if row is None else row for row in rows]
        if any(np.isscalar(row) for row in rows):
            raise DataError("a column mixes lists and single values")
        lengths = [len(row) for row in rows]
        parts = [_exact(row, np.asarray(row)) for row, length in zip(rows, lengths, strict=True) if length]
        if len({part.dtype.kind == "U" for part in parts}) > 1:  # NumPy would write the numbers as texts
            parts = [part.astype(object) for part in parts]
        try:
            values = _of_one_type(np.concatenate(parts)) if parts else _no_values(rows)
        except ValueError as error:
            raise DataError(f"lists of different depths in one column: {error}") from None
        return cls(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), **options)

    @classmethod
    def of_empty(cls, array: np.ndarray) -> Ragged:
        """Create a column of empty lists from an array of shape [rows, 0, ...]."""
        dtype = object if array.dtype == np.float64 else array.dtype  # float64 is NumPy's default for empty lists
        return cls(np.empty((0, *array.shape[2:]), dtype), np.zeros(len(array) + 1, np.int64))

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the constructor besides values and offsets."""
        return {"padding": self.padding, "max_length": self.max_length, "per_octave": self.per_octave}

    def _like(self, values: np.ndarray, offsets: np.ndarray) -> Ragged:
        return Ragged(values, offsets, **self.options)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the values."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """Number of axes of the padded array."""
        return self.values.ndim + 1

    @property
    def shape(self) -> tuple[Any, ...]:
        """Shape of the padded array, with None for the length."""
        return (len(self), None, *self.values.shape[1:])

    @property
    def nbytes(self) -> int:
        """Number of bytes of the values and offsets."""
        return self.values.nbytes + self.offsets.nbytes

    @property
    def lengths(self) -> np.ndarray:
        """Length of each row, int64 [rows]."""
        return np.diff(self.offsets)

    @property
    def cut_lengths(self) -> np.ndarray:
        """Length of each row with at most `max_length` values, int64 [rows]."""
        return self.lengths if self.max_length is None else np.minimum(self.lengths, self.max_length)

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
        return self._taken(self.offsets[rows], self.lengths[rows])

    def _taken(self, starts: np.ndarray, lengths: np.ndarray) -> Ragged:
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return self._like(self.values[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)], offsets)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is not np.concatenate or kwargs:
            return NotImplemented
        parts = [part if isinstance(part, Ragged) else Ragged.of(part) for part in args[0]]
        ends = np.cumsum([len(part.values) for part in parts])
        moved = [part.offsets[1:] + end - len(part.values) for part, end in zip(parts, ends, strict=True)]
        values = [part[:].values for part in parts]  # normalizes views whose offsets do not start at 0
        # Skip empty parts, which may have another dtype and shape than the rest.
        known = [part for part in values if len(part)] or [part for part in values if part.dtype != object]
        return self._like(np.concatenate(known or values), np.concatenate([[0], *moved]))

    def astype(self, dtype: Any) -> Ragged:
        """Return the column with its values converted to another dtype."""
        return self._like(self.values.astype(dtype), self.offsets)

    def copy(self) -> Ragged:
        """Return a copy of the column."""
        return self._like(self.values.copy(), self.offsets.copy())

    def cut(self) -> Ragged:
        """Return the rows cut to their last `max_length` values."""
        if self.max_length is None or not (self.lengths > self.max_length).any():
            return self
        return self._taken(self.offsets[1:] - self.cut_lengths, self.cut_lengths)

    def as_array(self) -> Any:
        """Return an array if all rows are equally long, else the column."""
        lengths = self.lengths
        if not len(self) or not lengths[0] or (lengths != lengths[0]).any():
            return self
        return self[:].values.reshape(len(self), int(lengths[0]), *self.values.shape[1:])

    def padded(self, length: int) -> np.ndarray:
        """Return an array [rows, length, ...] of the rows, padded at their end.

        No row may be longer than `length`.
        """
        padding = self.padding
        if padding is None:
            padding = "" if self.values.dtype.kind == "U" else 0
        if isinstance(padding, str) and self.values.dtype.kind in "biuf":
            raise DataError(f"lists of {self.values.dtype} cannot be padded with {padding!r}")
        out = np.full((len(self), length, *self.values.shape[1:]), padding, self.values.dtype)
        out[np.arange(length) < self.lengths[:, None]] = self.values[self.offsets[0] : self.offsets[-1]]
        return out


def _of_arrow(array: Any) -> tuple[np.ndarray, np.ndarray]:
    if hasattr(array, "combine_chunks"):
        array = array.combine_chunks()
        array = array.chunk(0) if hasattr(array, "chunk") else array
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    values = array.flatten().to_numpy(zero_copy_only=False)  # excludes values hidden under nulls
    return _of_one_type(values), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


_KINDS: dict[type, str] = {str: "U", np.str_: "U", bytes: "S", bool: "b", int: "iu", float: "f"}


def _of_one_type(values: np.ndarray) -> np.ndarray:
    """Return Python objects of one type in that type; other arrays unchanged."""
    types = set(map(type, values.ravel())) if values.dtype == object else set()
    if len(types) != 1:
        return values
    typed = np.asarray(values.tolist())
    return typed if typed.dtype.kind in _KINDS.get(types.pop(), "") else values


def _no_values(rows: Any) -> np.ndarray:
    """Return an empty array in the dtype of `rows`, or in dtype object if unknown."""
    dtypes = {row.dtype for row in rows if isinstance(row, np.ndarray)} - {np.dtype(np.float64)}
    return np.empty(0, dtypes.pop() if len(dtypes) == 1 else object)


def rows_of(value: Any) -> Any:
    """Convert a column to an array, or to `Ragged` if its lists differ in length."""
    if isinstance(value, Ragged):
        return value
    if hasattr(value, "asnumpy"):  # a MindSpore tensor, without importing MindSpore
        return value.asnumpy()
    try:
        array = np.asarray(value)
    except ValueError:
        return Ragged.of(value)
    array = _exact(value, array)
    nested = (
        array.dtype == object and array.ndim == 1 and len(array) and isinstance(array[0], list | tuple | np.ndarray)
    )
    if array.ndim > 1 and array.shape[1] == 0:
        return Ragged.of_empty(array)
    if "fixed_size_list" in str(getattr(value, "type", "")):
        return Ragged.of(value).as_array()
    return Ragged.of(array) if nested else array


def text_only(value: Any, array: np.ndarray) -> np.ndarray:
    """Return `array`, or objects if NumPy wrote other values of a list as text."""
    kind: Any = {"U": str, "S": bytes}.get(array.dtype.kind)
    if kind is None or not isinstance(value, list | tuple):
        return array
    objects = np.array(value, object)
    return array if all(isinstance(part, kind) for part in objects.ravel()) else objects


def _exact(value: Any, array: np.ndarray) -> np.ndarray:
    """Return `array`, or objects if NumPy has changed values in reading `value`.

    It writes numbers among texts as text, NaN too, and truth values beside NaN, or integers of Arrow of which some are
    missing, as floats.
    """
    if (texts := text_only(value, array)) is not array:
        return texts
    if array.dtype.kind == "f" and isinstance(value, list | tuple) and any(isinstance(part, bool) for part in value):
        return np.array(value, object)
    rounded = array.dtype.kind == "f" and "int" in str(getattr(value, "type", "")) and hasattr(value, "to_pylist")
    if rounded and (np.abs(array) >= 2**53).any():
        return np.array(value.to_pylist(), object)
    return array


def exactly_joinable(columns: list[Any]) -> list[Any]:
    """Convert columns of different number types to objects, so that joining is exact.

    Otherwise NumPy would round 2**60 + 1 when it is joined with 0.5, and turn True into 1 when it is joined with 2.
    """
    kinds = {column.dtype.kind for column in columns if isinstance(column, np.ndarray)}
    return [column.astype(object) for column in columns] if len(kinds) > 1 and kinds <= set("biuf") else columns
