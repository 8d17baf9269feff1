"""Categories: raw ids, hash buckets, vocabularies, and parts of a time."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import choice, number, refuse, whole
from ..embedding.tables.hashing import mix64, to_ids
from ..errors import ConfigurationError
from ..streams.formats.coercion import plain
from ..streams.formats.column import Column
from ..streams.formats.times import TIME_UNITS
from .feature import FIRST_ROW, MISSING_ROW, NO_ID, Feature, Kind, Output, RawColumns, Table, id_column, time_column
from .statistics import KnownIds, ValueCounts

DTYPES = ("str", "int64")


def missing_ids(values: np.ndarray) -> np.ndarray:
    """Return which raw ids are missing, bool of the same shape."""
    return values == "" if values.dtype.kind == "U" else values == NO_ID


@dataclass(frozen=True)
class IdFeature(Feature):
    """Base of features that turn values into ids of a table.

    Args:
        dtype: type of the values in the raw column, "str" or "int64".
        vocabulary: the values that get their own table row: None for all values (a sparse table accepts any), "learn"
            for values that occur at least `min_count` times in the data, a list of values, or a file with one value per
            line. All other values share a row.
        min_count: minimum count of a value in a learned vocabulary.
        max_size: maximum size of a learned vocabulary, which keeps the most frequent values; None: unlimited.
        hash_buckets: number of buckets that values are hashed to, instead of a vocabulary.
        dim: length of a vector; None: that of the `FeatureEmbedding`.
        table: name of the table; features that name the same one share it.
        options: further arguments of `trainer.embedding.Embedding`, such as capacity, admission and eviction. With
            `mode="dense"` the table is an ordinary parameter, which the optimizer updates as a whole, weight decay
            included; its number of rows follows from a declared vocabulary, `max_size` or `hash_buckets`.
    """

    dtype: str = "str"
    vocabulary: str | Sequence[Any] | None = None
    min_count: int = 1
    max_size: int | None = None
    hash_buckets: int | None = None
    dim: int | None = None
    table: str | None = None
    options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        choice(f"{owner}(dtype=...)", self.dtype, DTYPES)
        whole(f"{owner}(min_count=...)", self.min_count)
        whole(f"{owner}(max_size=...)", self.max_size, optional=True)
        whole(f"{owner}(hash_buckets=...)", self.hash_buckets, optional=True)
        self._check_dim(self.dim)
        if self.vocabulary is not None and self.hash_buckets is not None:
            raise ConfigurationError(f"{owner} takes vocabulary or hash_buckets, not both")
        if isinstance(self.vocabulary, str) and not self.learns and not Path(self.vocabulary).is_file():
            refuse(
                f"{owner}(vocabulary=...)", '"learn", a list of values, or a file with one per line', self.vocabulary
            )
        if not self.learns and (self.min_count > 1 or self.max_size is not None):
            raise ConfigurationError(f'{owner}: min_count and max_size need vocabulary="learn"')

    @property
    def learns(self) -> bool:  # type: ignore[override]
        return isinstance(self.vocabulary, str) and self.vocabulary == "learn"

    @cached_property
    def declared_ids(self) -> KnownIds | None:
        """The ids of a declared vocabulary; None if there is none."""
        if self.vocabulary is None or self.learns:
            return None
        ids, problems = id_column(self.dtype, required=True).convert(self._declared_values())
        if problems:
            raise ConfigurationError(f"{type(self).__name__}(vocabulary=...): a value {next(iter(problems.values()))}")
        return KnownIds(np.unique(to_ids(ids)))

    def id_sources(self) -> dict[str, dict[str, Any]]:
        """Return dtype, vocabulary and buckets, in the same form for single ids and lists.

        A declared vocabulary is described by its size and digest. The name of the raw column is left out.
        """
        vocabulary: Any = self.vocabulary
        if self.declared_ids is not None:
            vocabulary = f"{self.declared_ids.count} values, SHA-256 {self._declared_digest[:16]}"
        source = {"kind": "values", "dtype": self.dtype, "vocabulary": vocabulary, "hash_buckets": self.hash_buckets}
        return {self.id_table.name: source}

    @cached_property
    def _declared_digest(self) -> str:
        values = np.asarray(self._declared_values()).astype(np.str_ if self.dtype == "str" else np.int64)
        ids = np.unique(to_ids(values))
        return hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()

    def declaration(self) -> dict[str, Any]:
        """Return `Feature.declaration`, with the contents of a vocabulary file."""
        values = super().declaration()
        if self.declared_ids is not None:
            values["vocabulary"] = self._declared_values()
        return values

    def _declared_values(self) -> list[Any]:
        if isinstance(self.vocabulary, str):
            return Path(self.vocabulary).read_text(encoding="utf-8-sig").splitlines()
        return [plain(value) for value in (() if self.vocabulary is None else self.vocabulary)]

    @property
    def id_table(self) -> Table:
        """The table in which the ids are looked up."""
        size = None
        if self.hash_buckets is not None:
            size = self.hash_buckets + 1
        elif self.declared_ids is not None:
            size = FIRST_ROW + self.declared_ids.count
        elif self.max_size is not None:
            size = FIRST_ROW + self.max_size
        return Table(self.table or self.name, self.dim, size, self.options)

    def statistic(self) -> ValueCounts:
        return ValueCounts(self.min_count, self.max_size)

    def observed(self, raw: RawColumns) -> np.ndarray:
        values = self.values(raw)
        return to_ids(values[~missing_ids(values)])

    def values(self, raw: RawColumns) -> np.ndarray:
        """Return the raw ids as a flat array."""
        raise NotImplementedError

    def ids_of(self, values: np.ndarray, counts: ValueCounts | None) -> np.ndarray:
        """Map raw ids to table ids, int64 [n]; missing ids to `MISSING_ROW` or `NO_ID`."""
        missing = missing_ids(values)
        ids = to_ids(values)
        if self.hash_buckets is not None:
            return np.where(missing, MISSING_ROW, 1 + (mix64(ids) % np.uint64(self.hash_buckets)).astype(np.int64))
        known = self.declared_ids if counts is None else counts.vocabulary
        if known is None:
            return np.where(missing, NO_ID, ids)
        return np.where(missing, MISSING_ROW, known.rows_of(ids))


@dataclass(frozen=True)
class Categorical(IdFeature):
    """A category as the id of a table row: int64 [N]; arguments as in `IdFeature`."""

    def raw(self) -> dict[str, Column]:
        return {self.source: id_column(self.dtype, self.required)}

    def outputs(self) -> list[Output]:
        return [Output(self.name, Kind.IDS, table=self.id_table)]

    def values(self, raw: RawColumns) -> np.ndarray:
        return raw[self.source]

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        return [self.ids_of(raw[self.source], statistic)]


_DAY = 86_400
_PARTS = {  # name -> (number of values, function of whole seconds since the epoch, UTC)
    "hour": (24, lambda seconds: seconds % _DAY // 3600),
    "weekday": (7, lambda seconds: (seconds // _DAY + 3) % 7),  # 1970-01-01 was a Thursday; Monday is 0
    "hour_of_week": (168, lambda seconds: (seconds // 3600 + 72) % 168),
    "day": (31, lambda seconds: _date(seconds, "D") - _date(seconds, "M", "D")),
    "month": (12, lambda seconds: _date(seconds, "M") % 12),
}


def _date(seconds: np.ndarray, unit: str, then: str | None = None) -> np.ndarray:
    dates = seconds.astype("datetime64[s]").astype(f"datetime64[{unit}]")
    return (dates if then is None else dates.astype(f"datetime64[{then}]")).astype(np.int64)


@dataclass(frozen=True)
class Time(Feature):
    """Parts of a time as categories, and the age relative to another time as a number.

    The raw column holds numbers, timestamps of a data frame or an Arrow table, or text such as "2024-05-01 09:30" or
    "20240501" (UTC if it names no zone; `trainer.streams.formats.times.seconds_of` lists the forms). Parts are in UTC
    plus `offset`.

    Args:
        parts: any of "hour", "weekday" (Monday is 0), "hour_of_week", "day" (of the month) and "month"; each is an
            int64 [N] named "<name>_<part>", 0 where the time is missing.
        since: name of another time column. The age is log(1 + hours since that time), float32 [N, 1], named
            "<name>_age"; 0 where a time is missing or the difference is negative.
        offset: hours to add to UTC.
        unit: unit of numbers: "s", "ms", "us" or "ns" since the epoch, or "yyyymmdd". None: seconds, or the unit that
            the number of digits shows; a row with an ambiguous number is set aside.
        day_first: whether "03/02/2024" is the third of February; None: a row with such a date is set aside.
        dim: length of a part's vector; None: that of the `FeatureEmbedding`.
        options: further arguments of `trainer.embedding.Embedding`; see `IdFeature`.
    """

    parts: Sequence[str] = ("hour", "weekday")
    since: str | None = None
    offset: float = 0.0
    unit: str | None = None
    day_first: bool | None = None
    dim: int | None = None
    options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_dim(self.dim)
        parts = (self.parts,) if isinstance(self.parts, str) else tuple(self.parts)
        for part in parts:
            choice("Time(parts=...)", part, _PARTS)
        choice("Time(unit=...)", self.unit, TIME_UNITS, optional=True)
        number("Time(offset=...)", self.offset, above=-math.inf, below=math.inf, what="a number of hours")
        if not parts and self.since is None:
            refuse("Time(parts=...)", f"some of {', '.join(_PARTS)}, or since=", self.parts)
        object.__setattr__(self, "parts", parts)

    def raw(self) -> dict[str, Column]:
        names = [self.source, *([] if self.since is None else [self.since])]
        return {name: time_column(self.required and name == self.source, self.unit, self.day_first) for name in names}

    def outputs(self) -> list[Output]:
        parts = [
            Output(name, Kind.IDS, table=Table(name, self.dim, 1 + _PARTS[part][0], self.options))
            for part, name in ((part, f"{self.name}_{part}") for part in self.parts)
        ]
        return parts + ([] if self.since is None else [Output(f"{self.name}_age", Kind.NUMBERS)])

    def id_sources(self) -> dict[str, dict[str, Any]]:
        return {
            f"{self.name}_{part}": {"kind": "time", "part": part, "offset": float(self.offset)} for part in self.parts
        }

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        seconds = np.asarray(raw[self.source], np.float64)
        missing = ~np.isfinite(seconds)
        whole_seconds = np.floor(np.where(missing, 0, seconds) + 3600 * self.offset).astype(np.int64)
        arrays = [np.where(missing, MISSING_ROW, 1 + _PARTS[part][1](whole_seconds)) for part in self.parts]
        if self.since is not None:
            age = np.nan_to_num(
                (seconds - np.asarray(raw[self.since], np.float64)) / 3600, nan=0.0, posinf=0.0, neginf=0.0
            )
            arrays.append(np.log1p(np.maximum(age, 0)).astype(np.float32)[:, None])
        return arrays
