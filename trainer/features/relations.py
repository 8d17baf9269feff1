"""Features of several columns: map lookups, text overlaps, custom functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from ..checks import choice, number, refuse, whole
from ..embedding.tables.hashing import to_ids
from ..errors import ConfigurationError, DataError
from ..streams.formats.column import Column
from .categorical import DTYPES
from .feature import Feature, Kind, Output, RawColumns, Table, id_column, number_column, text_column
from .lists import _WORD


@dataclass(frozen=True)
class Lookup(Feature):
    """The number in a map column under another column's key: float32 [N, 1].

    The map is text such as ``"sports:0.7|news:0.2"``.

    Args:
        column: name of the raw column with the map.
        key: name of the raw column with the key, text.
        separator: between entries.
        assign: between a key and its value.
        missing: what a key that is absent, or a value that is no number, gives.
    """

    key: str = ""
    separator: str = "|"
    assign: str = ":"
    missing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        number("Lookup(missing=...)", self.missing)
        for argument in ("key", "separator", "assign"):
            value = getattr(self, argument)
            if not (isinstance(value, str) and value):
                refuse(f"Lookup({argument}=...)", "a non-empty text", value)

    def raw(self) -> dict[str, Column]:
        """Return the raw columns that are read."""
        return {self.source: text_column(self.required), self.key: text_column(False)}

    def outputs(self) -> list[Output]:
        """Return the number."""
        return [Output(self.name, Kind.NUMBERS)]

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        """Return float32 [N, 1]."""
        pairs, inverse = np.unique(np.stack([raw[self.source], raw[self.key]], 1), axis=0, return_inverse=True)
        values = np.array([self._find(text, key) for text, key in pairs.tolist()], np.float32)
        return [values[inverse.reshape(-1)][:, None]]

    def _find(self, text: str, key: str) -> float:
        for entry in text.split(self.separator):
            name, assign, value = entry.partition(self.assign)
            if assign and name.strip() == key:
                try:
                    result = float(value)
                except ValueError:
                    return self.missing
                return result if np.isfinite(result) else self.missing
        return self.missing


@dataclass(frozen=True)
class Overlap(Feature):
    """The word overlap of two texts: float32 [N, 4].

    The share of the first text's words found in the second, the share of the second's found in the first, the share of
    all words found in both (P. Jaccard, 1912), and 1 if the second text contains the first word for word.

    Args:
        columns: names of the two raw columns, text.
    """

    columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.columns, str) or len(self.columns) != 2 or self.column is not None:
            refuse("Overlap(columns=...)", "two names of columns", self.columns)

    def raw(self) -> dict[str, Column]:
        """Return the raw columns that are read."""
        return {name: text_column(self.required) for name in self.columns}

    def outputs(self) -> list[Output]:
        """Return the four numbers."""
        return [Output(self.name, Kind.NUMBERS, 4)]

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        """Return float32 [N, 4]."""
        first, second = (raw[name].tolist() for name in self.columns)
        return [np.array([_overlap(a, b) for a, b in zip(first, second, strict=True)], np.float32).reshape(-1, 4)]


def _overlap(first: str, second: str) -> tuple[float, float, float, float]:
    words, others = _WORD.findall(first.lower()), _WORD.findall(second.lower())
    left, right = set(words), set(others)
    if not left or not right:
        return 0.0, 0.0, 0.0, 0.0
    common = len(left & right)
    inside = f" {' '.join(words)} " in f" {' '.join(others)} "
    return common / len(left), common / len(right), common / len(left | right), float(inside)


@dataclass(frozen=True)
class Custom(Feature):
    """Applies a user's function to raw columns.

    Args:
        function: a function of the arrays of `columns`, or its dotted name; called with whole batches, in training and
            in serving. It returns numbers [N] or [N, width], or ids [N].
        columns: names of the raw columns, in the order of the arguments.
        dtype: what they hold, "float64", "str" or "int64"; or one for each.
        output: "numbers" (missing ones become 0) or "ids".
        width: numbers per row.
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
        dtypes = [self.dtype] * len(self.columns) if isinstance(self.dtype, str) else list(self.dtype)
        if len(dtypes) != len(self.columns):
            refuse("Custom(dtype=...)", f"one dtype, or {len(self.columns)} of them", self.dtype)
        for dtype in dtypes:
            choice("Custom(dtype=...)", dtype, ("float64", *DTYPES))
        object.__setattr__(self, "dtype", tuple(dtypes))
        _ = self._call

    @cached_property
    def _call(self) -> Callable[..., Any]:
        """The function itself, imported by its name."""
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
                f"feature {self.name!r}: a server has to import its function; put {name} into a module of its own"
            )
        return {**super().declaration(), "function": name}

    def raw(self) -> dict[str, Column]:
        """Return the raw columns that are read."""
        return {
            name: number_column(self.required) if dtype == "float64" else id_column(dtype, self.required)
            for name, dtype in zip(self.columns, self.dtype, strict=True)
        }

    def outputs(self) -> list[Output]:
        """Return the numbers or the id."""
        if self.output == "ids":
            return [Output(self.name, Kind.IDS, table=Table(self.name, self.dim))]
        return [Output(self.name, Kind.NUMBERS, self.width)]

    def id_sources(self) -> dict[str, dict[str, Any]]:
        """Return the columns' dtypes; a function may move, so its name is left out."""
        return {self.name: {"kind": "custom", "dtype": list(self.dtype)}} if self.output == "ids" else {}

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        """Return float32 [N, width], or int64 [N]."""
        wanted: tuple[int, ...]
        arguments = [raw[name] for name in self.columns]
        rows, values = len(arguments[0]), np.asarray(self._call(*arguments))
        if self.output == "ids":
            values, wanted = to_ids(values), (rows,)
        else:
            wanted = (rows, self.width)
            values = np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
            values = values.reshape(wanted) if values.size == rows * self.width else values
        if values.shape != wanted:
            raise DataError(
                f"feature {self.name!r}: the function returned shape {list(values.shape)}; expected {list(wanted)}"
            )
        return [values]
