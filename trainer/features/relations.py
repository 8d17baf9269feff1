"""Features of several columns: lookups, overlaps, crosses, custom functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from ..checks import choice, nonempty_text, number, refuse, whole
from ..embedding.tables.hashing import mix64, stable_seed, to_ids
from ..errors import ConfigurationError, DataError
from ..streams.formats.coercion import TRUTH_WORDS, MisfitError, in_plain_notation
from ..streams.formats.column import Column
from ..streams.formats.ragged_column import Ragged
from .categorical import DTYPES, missing_ids
from .feature import (
    MISSING_ROW,
    NO_ID,
    Feature,
    Kind,
    Output,
    RawColumns,
    Table,
    id_column,
    list_column,
    number_column,
    text_column,
    to_float32,
)
from .lists import _WORD, PADDING, POOLINGS, drop_values, split
from .statistics import MAX_FLOAT32


@dataclass(frozen=True)
class Lookup(Feature):
    """Looks up one column's key in another column's map: a number, float32 [N, 1].

    The map is text such as ``"sports:0.7|news:0.2"``.

    Args:
        column: name of the raw column with the map.
        key: name of the raw column with the key, text.
        separator: text between two entries.
        assign: text between a key and its value.
        missing: result for an absent key, or a value that is not a number.
    """

    key: str = ""
    separator: str = "|"
    assign: str = ":"
    missing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        number("Lookup(missing=...)", self.missing, minimum=-MAX_FLOAT32, maximum=MAX_FLOAT32)
        for argument in ("key", "separator", "assign"):
            nonempty_text(f"Lookup({argument}=...)", getattr(self, argument))

    def raw(self) -> dict[str, Column]:
        return {self.source: text_column(self.required), self.key: text_column(False)}

    def outputs(self) -> list[Output]:
        return [Output(self.name, Kind.NUMBERS)]

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        pairs, inverse = np.unique(np.stack([raw[self.source], raw[self.key]], 1), axis=0, return_inverse=True)
        numbers = to_float32(np.array([self._find(text, key) for text, key in pairs.tolist()]))
        values = np.where(np.isfinite(numbers), numbers, np.float32(self.missing))
        return [values[inverse.reshape(-1)][:, None]]

    def _find(self, text: str, key: str) -> float:
        for entry in text.split(self.separator):
            name, assign, value = entry.partition(self.assign)
            if assign and TRUTH_WORDS.get(name.strip(), name.strip()) == key:
                with contextlib.suppress(MisfitError):  # other signs than declared, as in "0.7"
                    value = in_plain_notation(value, self.csv_format.decimal, self.csv_format.thousands)
                try:
                    return float(value)
                except ValueError:
                    return self.missing
        return self.missing


@dataclass(frozen=True)
class Overlap(Feature):
    """The word overlap of two texts: float32 [N, 4].

    The four numbers are:
    - the share of the first text's words that occur in the second,
    - the share of the second text's words that occur in the first,
    - the Jaccard index: the share of all words that occur in both (P. Jaccard, 1912),
    - 1 if the second text contains the words of the first in the same sequence, else 0.

    Args:
        columns: names of the two raw columns, text.
    """

    columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.columns, str) or len(self.columns) != 2 or self.column is not None:
            refuse("Overlap(columns=...)", "two names of columns", self.columns)

    def raw(self) -> dict[str, Column]:
        return {name: text_column(self.required) for name in self.columns}

    def outputs(self) -> list[Output]:
        return [Output(self.name, Kind.NUMBERS, 4)]

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        first, second = (raw[name].tolist() for name in self.columns)
        return [np.array([_overlap(a, b) for a, b in zip(first, second, strict=True)], np.float32).reshape(-1, 4)]


def _overlap(first: str, second: str) -> tuple[float, float, float, float]:
    words, others = _WORD.findall(first.lower()), _WORD.findall(second.lower())
    left, right = set(words), set(others)
    if not left or not right:
        return 0.0, 0.0, 0.0, 0.0
    common = len(left & right)
    contained = f" {' '.join(words)} " in f" {' '.join(others)} "
    return common / len(left), common / len(right), common / len(left | right), float(contained)


def _dtypes(owner: str, columns: Sequence[str], dtype: str | Sequence[str], accepted: Sequence[str]) -> tuple[str, ...]:
    """Return the dtype of each column, given one dtype for all or one for each."""
    dtypes = (dtype,) * len(columns) if isinstance(dtype, str) else tuple(dtype)
    if len(dtypes) != len(columns):
        refuse(f"{owner}(dtype=...)", f"one dtype, or {len(columns)} of them", dtype)
    for each in dtypes:
        choice(f"{owner}(dtype=...)", each, accepted)
    return dtypes


@dataclass(frozen=True)
class Custom(Feature):
    """Applies a user's function to raw columns.

    Args:
        function: a function of the arrays of `columns`, or its dotted name; called with whole batches, in training and
            in serving. It returns numbers [N] or [N, width], or ids [N].
        columns: names of the raw columns, in the order of the arguments.
        dtype: dtype of the columns, "float64", "str" or "int64"; or one for each.
        output: "numbers" (missing numbers become 0) or "ids".
        width: number of values per row, for numbers.
        dim: length of an id's vector; None: that of the `FeatureEmbedding`.
    """

    function: Callable[..., Any] | str = ""
    columns: Sequence[str] = ()
    dtype: str | Sequence[str] = "float64"
    output: str = "numbers"
    width: int = 1
    dim: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("Custom(output=...)", self.output, ("numbers", "ids"))
        whole("Custom(width=...)", self.width)
        self._check_dim(self.dim)
        if isinstance(self.columns, str) or not self.columns or self.column is not None:
            refuse("Custom(columns=...)", "names of columns", self.columns)
        object.__setattr__(self, "dtype", _dtypes("Custom", self.columns, self.dtype, ("float64", *DTYPES)))
        _ = self._call

    @cached_property
    def _call(self) -> Callable[..., Any]:
        """The function, imported if the argument is its dotted name."""
        if callable(self.function):
            return self.function
        module, _, name = str(self.function).rpartition(".")
        try:
            function = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigurationError(f"Custom(function={self.function!r}): cannot be imported: {error}") from error
        if not callable(function):
            refuse("Custom(function=...)", "a function, or its dotted name", self.function)
        return function

    def declaration(self) -> dict[str, Any]:
        """Return `Feature.declaration` with the dotted name of the function.

        Raises:
            ConfigurationError: the function cannot be imported elsewhere, such as a lambda or a nested function.
        """
        function = self._call
        name = f"{function.__module__}.{getattr(function, '__qualname__', '')}"
        if isinstance(self.function, str):
            name = self.function
        elif "<" in name or function.__module__ == "__main__":
            raise ConfigurationError(
                f"feature {self.name!r}: a server has to import its function; put {name} into its own module"
            )
        return {**super().declaration(), "function": name}

    def raw(self) -> dict[str, Column]:
        return {
            name: number_column(self.required) if dtype == "float64" else id_column(dtype, self.required)
            for name, dtype in zip(self.columns, self.dtype, strict=True)
        }

    def outputs(self) -> list[Output]:
        if self.output == "ids":
            return [Output(self.name, Kind.IDS, table=Table(self.name, self.dim))]
        return [Output(self.name, Kind.NUMBERS, self.width)]

    def id_sources(self) -> dict[str, dict[str, Any]]:
        """Return the columns' dtypes, without the function's name, because it may change."""
        return {self.name: {"kind": "custom", "dtype": list(self.dtype)}} if self.output == "ids" else {}

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        shape: tuple[int, ...]
        # copies, because the function may change its arguments, which other features and the caller read
        arguments = [np.array(raw[name]) for name in self.columns]
        rows, values = len(arguments[0]), np.asarray(self._call(*arguments))
        if self.output == "ids":
            values, shape = to_ids(values), (rows,)
        else:
            shape = (rows, self.width)
            values = np.nan_to_num(to_float32(values), nan=0.0, posinf=0.0, neginf=0.0)
            has_rows_first = rows == 1 or values.shape[:1] == (rows,)  # one row may be [width], as from `np.squeeze`
            if has_rows_first and values.size == rows * self.width:
                values = values.reshape(shape)
        if values.shape != shape:
            raise DataError(
                f"feature {self.name!r}: the function returned shape {list(values.shape)}; expected {list(shape)}"
            )
        return [values]


@dataclass(frozen=True)
class Cross(Feature):
    """Several columns combined into one category: int64 [N]; missing if any is.

    One of the columns may hold lists. Each row then has one combination per value of its list. The result is a `Ragged`
    column of int64, pooled like a `ListFeature`; a row with another column missing gets an empty list.

    Args:
        columns: names of the raw columns.
        dtype: dtype of the columns, "str" or "int64"; or one for each.
        hash_buckets: number of buckets that combinations are hashed to; None: every combination is its own id.
        dim: length of a vector; None: that of the `FeatureEmbedding`.
        elements: name of the column that holds lists; None if there is none.
        separator: separator of lists that are written as one text, such as "Action|Comedy".
        max_length: maximum length of a list; longer lists lose their first values.
        pooling: how the vectors of a list's combinations are pooled: "sum", "mean" or "sqrtn".
        options: further arguments of `trainer.embedding.Embedding`; see `trainer.features.categorical.IdFeature`.
    """

    columns: Sequence[str] = ()
    dtype: str | Sequence[str] = "str"
    hash_buckets: int | None = None
    dim: int | None = None
    elements: str | None = None
    separator: str | None = None
    max_length: int | None = None
    pooling: str = "sum"
    options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_dim(self.dim)
        whole("Cross(hash_buckets=...)", self.hash_buckets, optional=True)
        if isinstance(self.columns, str) or len(self.columns) < 2 or self.column is not None:
            refuse("Cross(columns=...)", "two or more names of columns", self.columns)
        object.__setattr__(self, "dtype", _dtypes("Cross", self.columns, self.dtype, DTYPES))
        choice("Cross(pooling=...)", self.pooling, POOLINGS)
        whole("Cross(max_length=...)", self.max_length, optional=True)
        if self.elements is None and (self.separator is not None or self.max_length is not None):
            raise ConfigurationError("Cross: separator and max_length need elements=, the column of lists")
        choice("Cross(elements=...)", self.elements, self.columns, optional=True)
        nonempty_text("Cross(separator=...)", self.separator, "a text", optional=True)

    def raw(self) -> dict[str, Column]:
        return {name: self._column(name, dtype) for name, dtype in zip(self.columns, self.dtype, strict=True)}

    def _column(self, name: str, dtype: str) -> Column:
        if name != self.elements:
            return id_column(dtype, self.required)
        return list_column(dtype, self.required) if self.separator is None else text_column(self.required)

    def outputs(self) -> list[Output]:
        size = None if self.hash_buckets is None else self.hash_buckets + 1
        table = Table(self.name, self.dim, size, self.options)
        if self.elements is None:
            return [Output(self.name, Kind.IDS, table=table)]
        return [Output(self.name, Kind.LIST, table=table, pooling=self.pooling)]

    def id_sources(self) -> dict[str, dict[str, Any]]:
        arguments = {"columns": list(self.columns), "dtype": list(self.dtype), "hash_buckets": self.hash_buckets}
        return {self.name: {"kind": "cross", **arguments}}

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        if self.elements is None:
            ids, missing = self._combine(raw)
            return [np.where(missing, NO_ID if self.hash_buckets is None else MISSING_ROW, ids)]
        dtype = self.dtype[self.columns.index(self.elements)]
        column = raw[self.elements]
        lists = column[:] if isinstance(column, Ragged) else split(column, self.separator, dtype, self.csv_format)
        row = np.repeat(np.arange(len(lists)), lists.lengths)
        values = {name: lists.values if name == self.elements else raw[name][row] for name in self.columns}
        ids, missing = self._combine(values)
        combined = drop_values(Ragged(ids, lists.offsets), missing)
        return [Ragged(combined.values, combined.offsets, padding=PADDING, max_length=self.max_length).cut()]

    def _combine(self, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of the combinations, int64, and which of them are missing."""
        hashed: Any = np.uint64(stable_seed(*self.columns))
        missing: Any = False
        for name in self.columns:
            missing = missing | missing_ids(columns[name])
            hashed = mix64(to_ids(columns[name]).view(np.uint64) ^ hashed)
        if self.hash_buckets is None:
            return hashed.view(np.int64), missing
        return 1 + (hashed % np.uint64(self.hash_buckets)).astype(np.int64), missing
