"""Crosses: combinations of several columns as categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import choice, refuse, whole
from ..embedding.tables.hashing import mix64, stable_seed, to_ids
from ..errors import ConfigurationError, did_you_mean
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
    text_column,
)
from .lists import PADDING, POOLINGS, split, without


@dataclass(frozen=True)
class Cross(Feature):
    """Several columns combined to one category: int64 [N]; missing if any of them is.

    One of the columns may hold lists: the row then has a combination for each value of the list, a `Ragged` column of
    int64 that is pooled like a `ListFeature`; its list is empty where another column is missing.

    Args:
        columns: names of the raw columns.
        dtype: what they hold, "str" or "int64"; or one for each.
        hash_buckets: number of buckets that combinations are hashed to; None: every combination is an id of its own.
        dim: length of a vector; None: that of the `FeatureEmbedding`.
        elements: name of the one of `columns` that holds lists; None: none of them does.
        separator: for lists that are written as one text, as "Action|Comedy".
        max_length: longer lists lose their first values.
        pooling: "sum", "mean" or "sqrtn" of the vectors of a list's combinations.
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
        dtypes = [self.dtype] * len(self.columns) if isinstance(self.dtype, str) else list(self.dtype)
        if len(dtypes) != len(self.columns):
            refuse("Cross(dtype=...)", f"one dtype, or {len(self.columns)} of them", self.dtype)
        for dtype in dtypes:
            choice("Cross(dtype=...)", dtype, DTYPES)
        object.__setattr__(self, "dtype", tuple(dtypes))
        choice("Cross(pooling=...)", self.pooling, POOLINGS)
        whole("Cross(max_length=...)", self.max_length, optional=True)
        if self.elements is None:
            if self.separator is not None or self.max_length is not None:
                raise ConfigurationError("Cross: separator and max_length go with elements, the column of lists")
        elif self.elements not in self.columns:
            hint = did_you_mean(self.elements, self.columns)
            accepted = f"one of the columns, {', '.join(self.columns)}, or None"
            raise ConfigurationError(f"Cross(elements=...) takes {accepted}; received {self.elements!r}{hint}")
        if self.separator is not None and not (isinstance(self.separator, str) and self.separator):
            refuse("Cross(separator=...)", "a text, or None", self.separator)

    def raw(self) -> dict[str, Column]:
        """Return the raw columns that are read."""
        return {name: self._column(name, dtype) for name, dtype in zip(self.columns, self.dtype, strict=True)}

    def _column(self, name: str, dtype: str) -> Column:
        if name != self.elements:
            return id_column(dtype, self.required)
        return list_column(dtype, self.required) if self.separator is None else text_column(self.required)

    def outputs(self) -> list[Output]:
        """Return the id of the combination, or the list of ids."""
        size = None if self.hash_buckets is None else self.hash_buckets + 1
        table = Table(self.name, self.dim, size, self.options)
        if self.elements is None:
            return [Output(self.name, Kind.IDS, table=table)]
        return [Output(self.name, Kind.LIST, table=table, pooling=self.pooling)]

    def id_sources(self) -> dict[str, dict[str, Any]]:
        """Return names of columns, of which the ids are a hash, their dtypes, and buckets."""
        arguments = {"columns": list(self.columns), "dtype": list(self.dtype), "hash_buckets": self.hash_buckets}
        return {self.name: {"kind": "cross", **arguments}}

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        """Return int64 [N], or a `Ragged` column of int64."""
        if self.elements is None:
            ids, missing = self._mixed(raw)
            return [np.where(missing, NO_ID if self.hash_buckets is None else MISSING_ROW, ids)]
        dtype = self.dtype[self.columns.index(self.elements)]
        column = raw[self.elements]
        lists = column[:] if isinstance(column, Ragged) else split(column, self.separator, dtype)
        row = np.repeat(np.arange(len(lists)), lists.lengths)
        values = {name: lists.values if name == self.elements else raw[name][row] for name in self.columns}
        ids, missing = self._mixed(values)
        combined = without(Ragged(ids, lists.offsets), missing)
        return [Ragged(combined.values, combined.offsets, padding=PADDING, max_length=self.max_length).cut()]

    def _mixed(self, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of combinations, int64, and which of them are missing."""
        mixed: Any = np.uint64(stable_seed(*self.columns))
        missing: Any = False
        for name in self.columns:
            missing = missing | missing_ids(columns[name])
            mixed = mix64(to_ids(columns[name]).view(np.uint64) ^ mixed)
        if self.hash_buckets is None:
            return mixed.view(np.int64), missing
        return 1 + (mixed % np.uint64(self.hash_buckets)).astype(np.int64), missing
