"""Rank over all items instead of a sample: hit@k, recall@k, ndcg@k and mrr@k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import refuse, whole
from ..errors import ConfigurationError, DataError, did_you_mean
from .retrieval import Predicts, checked_vectors, item_vectors, user_vectors

_SCORES_AT_ONCE = 1 << 24  # 64 MB


class AllItems:
    """Ranks each row's item among all items that its user has not seen.

    A user's target items are the items of all of the user's rows. Each is ranked among the items not seen, including
    the user's other target items. Let n be the number of a user's target items, h the number of those in the top k, and
    r their ranks, counted from 1. The metrics of a user, which are averaged over users, are

        hit@k = 1 if h > 0, else 0
        recall@k = h / n
        ndcg@k = sum of 1 / log2(r + 1) over the h items, divided by the sum of 1 / log2(r + 1) over r = 1 .. min(n, k)
        mrr@k = 1 / r for the best of the h items, 0 if h = 0

    as in RecBole's evaluator in mode "full". Items with the same score rank before the row's item, so a model that
    gives all items the same score gets no credit. A row's item is ranked even if the user has seen it.

    Args:
        rows: the rows to rank, as a dict of columns (lists or arrays): the features of users, `item`, and `user`.
        items: all items, as a dict of columns. If several rows have the same `item`, the first is used.
        item: name of the column with the item's id in `rows`, `items` and `seen`.
        user: name of the column with the user's id in `rows` and `seen`. None: every row is a separate user.
        seen: items that each user has seen, which are excluded from the user's ranking; usually the training rows. A
            dict with the columns `user` and `item`, or a list of such dicts. None: no items are excluded.
        k: length of the list of top items.

    Raises:
        ConfigurationError: `rows`, `items` or `seen` are not dicts of columns, `seen` without `user`, or k below 1.
        DataError: a column is missing, or an item of `rows` is not in `items`.
    """

    def __init__(
        self, rows: Any, items: Any, item: str = "item", user: str | None = None, seen: Any = None, k: int = 10
    ) -> None:
        self.k, self.item, self.user = whole("AllItems(k=...)", k), item, user
        if seen is not None and user is None:
            raise ConfigurationError("AllItems(seen=...) needs user=..., the column that names the user")
        self.rows = _checked("rows", rows, [item] + ([user] if user else []))
        item_columns = _checked("items", items, [item])
        self.ids, first = np.unique(np.asarray(item_columns[item]), return_index=True)
        self.items = {name: [column[at] for at in first] for name, column in item_columns.items()}
        self.own = self._indices(self.rows[item])
        if (unknown := np.flatnonzero(self.own < 0)).size:
            raise DataError(
                f"AllItems: row {unknown[0]} has {item}={self.rows[item][unknown[0]]!r}, which is not in items"
            )
        names = np.asarray(self.rows[user]) if user else np.arange(len(self.own))
        self.users, self.of_user = np.unique(names, return_inverse=True)
        self._seen = self._group_seen([] if seen is None else [seen] if isinstance(seen, Mapping) else list(seen))

    def _indices(self, names: Any) -> np.ndarray:
        """Return the index of each item; -1 for unknown items."""
        names = np.asarray(names)
        at = np.minimum(np.searchsorted(self.ids, names), len(self.ids) - 1)
        return np.where(self.ids[at] == names, at, -1)

    def _group_seen(self, tables: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return the seen items sorted by user, and the offset of each user's items."""
        users, items = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for table in tables:
            assert self.user is not None
            table = _checked("seen", table, [self.item, self.user])
            names = np.asarray(table[self.user])
            at = np.minimum(np.searchsorted(self.users, names), len(self.users) - 1)
            numbers = self._indices(table[self.item])
            known = (self.users[at] == names) & (numbers >= 0)
            users.append(at[known])
            items.append(numbers[known])
        order = np.argsort(np.concatenate(users), kind="stable")
        starts = np.searchsorted(np.concatenate(users)[order], np.arange(len(self.users) + 1))
        return np.concatenate(items)[order], starts

    def ranks(self, model: Predicts) -> np.ndarray:
        """Return the rank of each row's item, counted from 1, int64 [rows].

        Rows are processed in blocks to limit memory.

        Args:
            model: a `Trainer` or `ServedModel` whose output is the vectors of user and item; see `user_vectors`.
        """
        vectors = checked_vectors("items", item_vectors(model, self.items))
        inputs = {name: column for name, column in self.rows.items() if name != self.item}
        step = max(1, _SCORES_AT_ONCE // len(self.ids))
        ranks = np.empty(len(self.own), np.int64)
        seen, starts = self._seen
        for first in range(0, len(self.own), step):
            part = slice(first, first + step)
            users = user_vectors(model, {name: column[part] for name, column in inputs.items()})
            scores = checked_vectors("users", users) @ vectors.T
            rows, own = np.arange(len(scores)), self.own[part]
            own_scores = scores[rows, own].copy()
            for row, of_user in enumerate(self.of_user[part]):
                scores[row, seen[starts[of_user] : starts[of_user + 1]]] = -np.inf
            scores[rows, own] = own_scores
            ranks[part] = (scores >= own_scores[:, None]).sum(axis=1)
        return ranks

    def __call__(self, model: Predicts, run_dir: Any = None) -> dict[str, float]:
        """Return the metrics by name, such as ``hit@10``.

        An experiment can use this object as its `report`.
        """
        ranks = self.ranks(model)
        found = ranks <= self.k
        hits = np.bincount(self.of_user, found)
        count = np.bincount(self.of_user)
        gains = np.bincount(self.of_user, found / np.log2(ranks + 1))
        ideal = np.cumsum(1 / np.log2(np.arange(2, self.k + 2)))[np.minimum(count, self.k) - 1]
        first = np.zeros(len(count))
        np.maximum.at(first, self.of_user, found / ranks)
        values = {"hit": hits > 0, "recall": hits / count, "ndcg": gains / ideal, "mrr": first}
        return {f"{name}@{self.k}": float(np.mean(value)) for name, value in values.items()}


def _checked(argument: str, rows: Any, names: Sequence[Any]) -> Mapping[str, Any]:
    if not isinstance(rows, Mapping):
        refuse(f"AllItems({argument}=...)", "columns by name", rows)
    for name in names:
        if name not in rows:
            raise DataError(
                f"AllItems({argument}=...): no column {name!r}; there are {', '.join(rows)}{did_you_mean(name, rows)}"
            )
    # a Series is indexed by its labels, not by the number of the row
    return {name: column.to_numpy() if hasattr(column, "iloc") else column for name, column in rows.items()}
