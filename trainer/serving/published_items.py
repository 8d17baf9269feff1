"""Publishes the items of a two-tower model; recommends items of a version."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mindspore import nn

from ..checks import choice, refuse, require, whole
from ..errors import ConfigurationError, DataError, did_you_mean
from ..features.feature import NO_ID, text_column
from ..features.feature_data import is_raw, raw_data
from ..features.features import Features
from ..features.lists import ListFeature
from ..features.raw_rows import RawTable
from ..models.bpr import BPR
from ..models.item_index import ItemIndex
from ..models.next_item import NextItem
from ..models.retrieval import Predicts, item_vectors
from ..storage.cached_segments import local_files
from ..streams.formats.coercion import as_text, plain
from ..streams.formats.ragged_column import Ragged
from ..streams.formats.schema import Schema
from ..streams.sources.whole_table import read_table

logger = logging.getLogger(__name__)

_QUERIES = 256  # number of items used to measure an index's recall


class Recommended(NamedTuple):
    """Recommended items: one array per user, best item first.

    An array is shorter than `k` if fewer items pass the filters.
    """

    version: int  # version of the published model
    ids: list[np.ndarray]
    scores: list[np.ndarray]  # float32


class ItemTable:
    """The table of items to publish with each version.

    Args:
        source: raw rows of the items, or the path of a CSV, TSV, JSON-lines or Parquet file or folder, which is read
            again for every version.
        id_column: column with the ids to recommend; ids must be unique.
        filters: columns that a request may filter by. Columns that no feature reads are text.
        index_above: number of items above which a version gets an approximate index ("hnsw" of `ItemIndex`). None
            always compares all items.

    Raises:
        ConfigurationError: an argument is invalid, or Faiss is missing.
    """

    def __init__(
        self, source: Any, id_column: str | None, filters: Sequence[str] = (), index_above: int | None = None
    ) -> None:
        if not is_raw(source):
            raise ConfigurationError(f"items takes raw rows or the path of a table; received {type(source).__name__}")
        if not isinstance(id_column, str):
            raise ConfigurationError(f"item_id takes the name of the column with the items' ids; got {id_column!r}")
        self.source, self.id_column = source, id_column
        self.filters = (filters,) if isinstance(filters, str) else tuple(filters)
        self.index_above = whole("Publish(index_above=...)", index_above, 0, optional=True)
        if index_above is not None:
            require("faiss", "Publish(index_above=...) needs Faiss", "retrieval")

    def read(self, features: Features) -> dict[str, Any]:
        """Return the raw columns of all items.

        Raises:
            ConfigurationError: the table lacks a column.
            DataError: the table cannot be read, has no rows, or has a row that violates the features' declaration; an
                id is missing or occurs twice.
        """
        for name, column in features.columns.items():
            if column.default is None:
                raise ConfigurationError(
                    f"column {name!r} is required, but rows of items lack the columns of users, and rows of users "
                    "those of items; leave required=True out for models that recommend"
                )
        source = local_files(self.source) if isinstance(self.source, str | Path) else self.source
        names = raw_data(source).names(features.csv)
        for name in (self.id_column, *self.filters) if names else ():
            if name not in names:
                existing = f"it has {', '.join(names)}{did_you_mean(name, names)}"
                raise ConfigurationError(f"the table of items has no column {name!r}; {existing}")
        texts = {name: text_column(required=False) for name in (self.id_column, *self.filters)}
        schema = Schema({**texts, **features.columns}, aligned=features.schema.aligned, csv=features.csv)
        columns = (
            read_table(source, schema, "the table of items") if isinstance(source, Path) else _read_rows(source, schema)
        )
        ids = columns[self.id_column]
        if isinstance(ids, Ragged) or ids.dtype.kind not in "iU":
            raise ConfigurationError(f"item_id={self.id_column!r}: ids of items are integers or text")
        missing = np.flatnonzero(ids == ("" if ids.dtype.kind == "U" else NO_ID))
        if len(missing):
            raise DataError(f"row {missing[0]} of the table of items has no {self.id_column!r}")
        distinct, counts = np.unique(ids, return_counts=True)
        if len(distinct) < len(ids):
            duplicate = distinct[counts > 1][0].item()
            raise DataError(f"the table of items has {self.id_column}={duplicate!r} more than once")
        return columns

    def state(self, model: Predicts, features: Features, network: nn.Cell) -> dict[str, Any]:
        """Return the items with their vectors, as a version stores them.

        Args:
            model: computes the vectors, such as a Trainer.
            features: features of the model.
            network: network of the model.

        Raises the errors of `item_vectors` and `read`. A ConfigurationError of `read` becomes a DataError, because the
        table may change during training.
        """
        try:
            columns = self.read(features)
        except ConfigurationError as error:
            raise DataError(str(error)) from error
        vectors = item_vectors(model, features.apply(columns))
        non_user_columns = set(raw_data(self.source).names(features.csv))
        training_columns = network.training_columns if isinstance(network, BPR) else ()
        non_user_columns |= set(training_columns)
        history, item = (isinstance(network, NextItem) and network.raw_columns) or (None, None)
        arrays, recall = {"vectors": vectors}, None
        if self.index_above is not None and len(vectors) > self.index_above:
            index = ItemIndex(columns[self.id_column], vectors, "hnsw")
            queries = np.random.default_rng(0).permutation(len(vectors))[:_QUERIES]
            arrays["graph"], recall = index.graph(), index.recall(vectors[queries])
            logger.info(
                "the index of %s items finds %.1f %% of an item's ten nearest", f"{len(vectors):,}", 100 * recall
            )
        return {
            "json": {
                "ids": columns[self.id_column].tolist(),
                "filters": {name: _json_values(_as_lists(features, name, columns)) for name in self.filters},
                "user_columns": [name for name in features.columns if name not in non_user_columns],
                "training_columns": list(training_columns),
                "history": history if item == self.id_column else None,
                "recall": recall,
            },
            "arrays": arrays,
        }


def _read_rows(data: Any, schema: Schema) -> dict[str, Any]:
    decoded = schema.convert(*RawTable(data).values(schema))
    for row, reason in decoded.reasons.items():
        raise DataError(f"row {row} of the table of items: {reason}")
    return dict(decoded.columns)


def _as_lists(features: Features, name: str, columns: Mapping[str, Any]) -> Any:
    """Return a column; texts that features split become lists."""
    readers = [f for f in features.features if isinstance(f, ListFeature) and f.source == name and f.separator]
    return readers[0].lists(columns) if readers else columns[name]


def _json_values(column: Any) -> list[Any]:
    if isinstance(column, Ragged):
        return [column[row].tolist() for row in range(len(column))]
    return [None if value != value or value == NO_ID else value for value in column.tolist()]


class PublishedItems:
    """The items of one version.

    Args:
        state: a saved `ItemTable.state`.

    Attributes:
        user_columns: raw columns of users: those that the table of items lacks, except for `training_columns`.
        training_columns: raw columns that only the loss reads; requests do not need them.
        history: raw column of the user that lists ids of items, or None.
        recall: share of the exact ten nearest items that the version's index finds, measured at publication. None if
            the version has no index.

    Raises:
        ValueError, TypeError, KeyError, TrainerError: `state` is invalid.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        body = state["json"]
        vectors, graph = state["arrays"]["vectors"], state["arrays"].get("graph")
        has_graph = graph is not None
        self.index = ItemIndex.of_graph(body["ids"], vectors, graph) if has_graph else ItemIndex(body["ids"], vectors)
        self.recall: float | None = body.get("recall")
        self.user_columns: tuple[str, ...] = tuple(body["user_columns"])
        self.training_columns: tuple[str, ...] = tuple(body.get("training_columns", ()))  # absent in older versions
        self.history: str | None = body.get("history")
        self._filters = {name: _Filter(name, values) for name, values in body["filters"].items()}

    def __len__(self) -> int:
        return len(self.index)

    def check_user(self, names: Sequence[str]) -> None:
        """Raise DataError if `names` contains none of the users' columns."""
        if not set(names) & set(self.user_columns):
            near = next((hint for name in names if (hint := did_you_mean(name, self.user_columns))), "")
            raise DataError(
                f"a user has the columns {', '.join(self.user_columns)}; received {', '.join(names) or 'none'}{near}"
            )

    def users_of_histories(
        self, history: Sequence[Sequence[Any]], without: Sequence[Sequence[Any]] | None
    ) -> tuple[dict[str, Any], list[list[Any]]]:
        """Return raw rows of users with these histories, and each user's excluded ids.

        The excluded ids are those of the history and of `without`.

        Raises:
            ConfigurationError: the version's model reads no history, or `without` has another length than `history`.
            DataError: a history is not a list of ids.
        """
        if self.history is None:
            raise ConfigurationError(
                "recommend(history=...) needs a version of sasrec or hstu with one history, whose item_id is the "
                f"column of its items; this version takes users with {', '.join(self.user_columns)}"
            )
        if without is not None and len(without) != len(history):
            raise ConfigurationError(f"recommend: {len(without)} lists in without=, but {len(history)} histories")
        excluded = [
            [*self._id_array(hidden), *self._id_array(history_ids)]
            for hidden, history_ids in zip(without or [[]] * len(history), history, strict=True)
        ]
        return {self.history: [list(history_ids) for history_ids in history]}, excluded

    def parse_filters(self, texts: Sequence[str]) -> dict[str, list[Any]]:
        """Parse filters such as ``genre=comedy``; numeric columns take numbers.

        Raises:
            ConfigurationError: a filter has no "=", names an unknown column, or has text for a numeric column.
        """
        filters: dict[str, list[Any]] = {}
        for text in texts:
            name, separator, value = text.partition("=")
            if not separator:
                refuse("--filter", "COLUMN=VALUE", text)
            choice("--filter: a column to filter by", name, self._filters)
            try:
                filters.setdefault(name, []).append(self._filters[name].value_of(value))
            except ValueError:
                refuse(f"--filter {name}=...", "a number", value)
        return filters

    def nearest(
        self, users: np.ndarray, k: int, without: Sequence[Sequence[Any]] | None, filters: Mapping[str, Any] | None
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return ids and scores of up to `k` items for each user, best first.

        The arguments are those of `ServedModel.recommend`, except that `users` are vectors, float32 [U, width].
        """
        k, passing = whole("recommend(k=...)", k), self._passing_items(filters)
        excluded: Any = None if without is None else [self._id_array(ids) for ids in without]
        ids, scores = self.index.search(users, k, excluded, among=passing)
        counts = (scores > -np.inf).sum(axis=1)
        results = [[row[:n] for row, n in zip(rows, counts, strict=True)] for rows in (ids, scores)]
        return results[0], results[1]

    def _id_array(self, ids: Any) -> np.ndarray:
        listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
        kind: type = str if self.index.ids.dtype.kind == "U" else int
        if isinstance(listed, str) or not isinstance(listed, Sequence):
            raise DataError(
                f"recommend(without=..., history=...) takes a list of ids for each user; received {listed!r}"
            )
        listed = [plain(value) for value in listed]
        for value in listed:
            if not isinstance(value, kind) or isinstance(value, bool):
                shown = "text" if kind is str else "integers"
                raise DataError(
                    f"recommend(without=..., history=...): the ids of the items are {shown}; received {value!r}"
                )
        # ids are int64, so a larger integer cannot be the id of an item
        dtype = np.str_ if kind is str else np.int64
        return np.array([value for value in listed if kind is str or abs(value) < 1 << 63], dtype)

    def _passing_items(self, filters: Mapping[str, Any] | None) -> np.ndarray | None:
        """Return the indices of the items that pass all filters; None without filters."""
        if not filters:
            return None
        passes = np.ones(len(self.index), np.bool_)
        for name, accepted in filters.items():
            if name not in self._filters:
                known = ", ".join(self._filters) or "none; Publish(item_filters=...) names them"
                raise DataError(
                    f"recommend(filter=...): there is no column {name!r}; columns to filter by are {known}"
                    f"{did_you_mean(name, self._filters)}"
                )
            passes &= self._filters[name](accepted)
        return np.flatnonzero(passes)


class _Filter:
    """Maps the distinct values of an item column to the items that have them."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self.name, self.count = name, len(values)
        self._items: dict[Any, list[int]] = {}
        for item, value in enumerate(values):
            for part in value if isinstance(value, list) else [value]:
                if part not in (None, ""):
                    self._items.setdefault(part, []).append(item)
        self._is_text = any(isinstance(value, str) for value in self._items)

    def value_of(self, text: str) -> Any:
        """Parse a value of the column; raise ValueError if it should be a number."""
        if self._is_text:
            return text
        try:
            return int(text)  # exact beyond 2**53
        except ValueError:
            return float(text)

    def __call__(self, accepted: Any) -> np.ndarray:
        """Return a mask of the items that have the value, or any of several values."""
        passes = np.zeros(self.count, np.bool_)
        for value in accepted if isinstance(accepted, list | tuple) else [accepted]:
            if self._is_text and isinstance(value, str | bool):
                value = as_text(value)  # "true" and "false" in every spelling
            is_valid = isinstance(value, str) if self._is_text else isinstance(value, int | float)
            if not is_valid or isinstance(value, bool):
                kind = "text" if self._is_text else "numbers"
                raise DataError(f"recommend(filter=...): column {self.name!r} holds {kind}; received {value!r}")
            passes[self._items.get(value, [])] = True
        return passes
