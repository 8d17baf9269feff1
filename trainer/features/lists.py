"""Lists of categories per row: pooled sets, sequences, weighted lists, words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import choice, nonempty_text, whole
from ..errors import ConfigurationError
from ..streams.formats.coercion import MISSING, MisfitError, as_integer, in_plain_notation, lower_truth
from ..streams.formats.column import Column
from ..streams.formats.csv_format import CsvFormat
from ..streams.formats.ragged_column import Ragged
from .categorical import IdFeature, missing_ids
from .feature import MIN_ID, NO_ID, PADDING, Feature, Kind, Output, RawColumns, list_column, text_column, to_float32

POOLINGS = ("mean", "sum", "sqrtn")


@dataclass(frozen=True)
class _ListBase(IdFeature):
    """Base of features with a list of ids per row."""

    max_length: int | None = None
    pooling: str | None = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        choice(f"{owner}(pooling=...)", self.pooling, POOLINGS, optional=True)
        whole(f"{owner}(max_length=...)", self.max_length, optional=True)

    def outputs(self) -> list[Output]:
        return [Output(self.name, Kind.LIST, table=self.id_table, pooling=self.pooling)]

    def values(self, raw: RawColumns) -> np.ndarray:
        return self.lists(raw).values

    def lists(self, raw: RawColumns) -> Ragged:
        raise NotImplementedError

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        lists = self.lists(raw)
        return [self._output(self.ids_of(lists.values, statistic), lists.offsets)]

    def _output(self, values: np.ndarray, offsets: np.ndarray, padding: Any = PADDING) -> Ragged:
        return Ragged(values, offsets, padding=padding, max_length=self.max_length).cut()


@dataclass(frozen=True)
class _AlignedList(_ListBase):
    """Base of list features that may be aligned with other lists of a sequence."""

    sequence: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        nonempty_text(f"{type(self).__name__}(sequence=...)", self.sequence, "the name of a sequence", optional=True)

    def aligned(self) -> dict[str, str | None]:
        """Return {raw column aligned with the sequence: its separator}."""
        raise NotImplementedError


@dataclass(frozen=True)
class ListFeature(_AlignedList):
    """A list of categories per row: a `Ragged` int64 column; a missing list is empty.

    Args:
        separator: separator of lists that are written as one text, such as "Action|Comedy".
        sequence: name of a sequence that several lists describe together. A row is set aside if its lists with the
            same `sequence` differ in length. Missing values in these lists keep their position.
        max_length: maximum length; longer lists lose their first values, the oldest ones of a history. All lists of a
            sequence must have the same `max_length`.
        pooling: how the vectors are pooled: "mean", "sum" or "sqrtn". None: the network gets the sequence of vectors
            and a mask.
        dtype, vocabulary, min_count, max_size, hash_buckets, dim, table, options: see
            `trainer.features.categorical.IdFeature`. With `table`, a history of items can share a table with the item.
    """

    separator: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        nonempty_text("ListFeature(separator=...)", self.separator, "a text", optional=True)

    def raw(self) -> dict[str, Column]:
        column = list_column(self.dtype, self.required) if self.separator is None else text_column(self.required)
        return {self.source: column}

    def lists(self, raw: RawColumns) -> Ragged:
        """Return lists of raw ids, without missing ids unless the lists are aligned."""
        column = raw[self.source]
        aligned = self.sequence is not None
        lists = (
            column[:]
            if isinstance(column, Ragged)
            else split(column, self.separator, self.dtype, self.csv_format, keep_empty=aligned)
        )
        return lists if aligned else drop_values(lists, missing_ids(lists.values))

    def aligned(self) -> dict[str, str | None]:
        return {self.source: self.separator}


@dataclass(frozen=True)
class WeightedList(_AlignedList):
    """A list of weighted categories; a missing list is empty, a missing weight is 1.

    Args:
        weights: name of the raw column with lists of weights. With `sequence`, a row is set aside if its numbers of
            weights and categories differ.
        sequence, max_length, pooling: see `ListFeature`.
        dtype, vocabulary, min_count, max_size, hash_buckets, dim, table, options: see
            `trainer.features.categorical.IdFeature`.
    """

    weights: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        nonempty_text("WeightedList(weights=...)", self.weights, "the name of a column")

    def raw(self) -> dict[str, Column]:
        return {self.source: list_column(self.dtype, self.required), self.weights: list_column("float64")}

    def outputs(self) -> list[Output]:
        name = f"{self.name}_weights"
        return [
            Output(self.name, Kind.LIST, table=self.id_table, pooling=self.pooling, weights=name),
            Output(name, Kind.WEIGHTS),
        ]

    def lists(self, raw: RawColumns) -> Ragged:
        return raw[self.source][:]

    def aligned(self) -> dict[str, str | None]:
        return {self.source: None, self.weights: None}

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        lists, weights = self.lists(raw), raw[self.weights][:]
        values = np.ones(len(lists.values), np.float32)
        row = np.repeat(np.arange(len(lists)), lists.lengths)
        index = np.arange(len(values)) - np.repeat(lists.offsets[:-1], lists.lengths)
        known = index < weights.lengths[row]
        raw_weights = to_float32(weights.values[(weights.offsets[:-1][row] + index)[known]])
        values[known] = np.where(np.isfinite(raw_weights), raw_weights, 1)
        return [
            self._output(self.ids_of(lists.values, statistic), lists.offsets),
            self._output(values, lists.offsets, 0.0),
        ]


@dataclass(frozen=True)
class Text(_ListBase):
    """The words and n-grams of a text as hashed ids; a missing text has none.

    Words are sequences of letters and digits, lowercased, also those of a vocabulary.

    Args:
        ngrams: maximum number of consecutive words that form an id; 1: only single words.
        hash_buckets: number of buckets; None: every word is its own id.
        max_length, pooling: see `ListFeature`.
        vocabulary, min_count, max_size, dim, table, options: see `trainer.features.categorical.IdFeature`.
    """

    ngrams: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("Text(ngrams=...)", self.ngrams, maximum=8)
        choice("Text(dtype=...)", self.dtype, ("str",))

    def _declared_values(self) -> list[Any]:
        """Return the vocabulary in lower case, as the words are."""
        return [value.lower() if isinstance(value, str) else value for value in super()._declared_values()]

    def raw(self) -> dict[str, Column]:
        return {self.source: text_column(self.required)}

    def lists(self, raw: RawColumns) -> Ragged:
        return split_distinct(raw[self.source], self._words)

    def _words(self, text: str) -> list[str]:
        words = _WORD.findall(text.lower())
        lengths = range(2, self.ngrams + 1)
        return words + [" ".join(words[i : i + n]) for n in lengths for i in range(len(words) - n + 1)]


_WORD = re.compile(r"\w+")


def split_distinct(texts: np.ndarray, split_text: Callable[[str], list[str]]) -> Ragged:
    """Split texts into lists; call `split_text` once per distinct text."""
    distinct, inverse = np.unique(texts, return_inverse=True)
    rows = [split_text(text) for text in distinct.tolist()]
    values = np.array([value for row in rows for value in row], dtype=np.str_)
    return Ragged(values, np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]))[inverse]


def split(
    texts: np.ndarray, separator: str | None, dtype: str, csv_format: CsvFormat, keep_empty: bool = False
) -> Ragged:
    """Split texts into lists of stripped parts; invalid numbers count as missing.

    Args:
        dtype: dtype of the parts, "str" or "int64".
        csv_format: how numbers and missing values are written.
        keep_empty: whether empty parts of a text that is not blank are kept, as missing values.
    """

    def parts(text: str) -> list[str]:
        stripped = ("" if part in csv_format.missing else part for part in map(str.strip, text.split(separator)))
        return [part for part in stripped if part or (keep_empty and text.strip())]

    lists = split_distinct(texts, parts)
    if dtype == "str":
        return Ragged(lower_truth(lists.values), lists.offsets)
    numbers = np.array([_parse_id(value, csv_format) for value in lists.values.tolist()], np.int64)
    return Ragged(numbers, lists.offsets)


def _parse_id(text: str, csv_format: CsvFormat) -> int:
    try:
        number = as_integer(in_plain_notation(text, csv_format.decimal, csv_format.thousands))
    except MisfitError:
        return NO_ID
    return number if number is not MISSING and MIN_ID <= number < 2**63 else NO_ID


def drop_values(lists: Ragged, mask: np.ndarray) -> Ragged:
    """Return the lists without the values where `mask` is True."""
    if not mask.any():
        return lists
    row = np.repeat(np.arange(len(lists)), lists.lengths)
    lengths = np.bincount(row[~mask], minlength=len(lists))
    return Ragged(lists.values[~mask], np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def aligned_columns(features: Sequence[Feature]) -> dict[str, dict[str, str | None]]:
    """Return {sequence: {aligned column: separator}}; see `Schema.aligned`."""
    sequences: dict[str, dict[str, str | None]] = {}
    first_of: dict[str, _AlignedList] = {}
    for feature in features:
        if not isinstance(feature, _AlignedList) or feature.sequence is None:
            continue
        first = first_of.setdefault(feature.sequence, feature)
        if first.max_length != feature.max_length:
            raise ConfigurationError(
                f"features {first.name!r} and {feature.name!r} are of the sequence {feature.sequence!r}, with "
                f"max_length={first.max_length} and {feature.max_length}; aligned lists are cut alike: give both the "
                "same"
            )
        sequences.setdefault(feature.sequence, {}).update(feature.aligned())
    return sequences
