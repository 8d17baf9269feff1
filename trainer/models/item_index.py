"""Find the nearest items of users, exactly or approximately."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..checks import choice, require, whole
from ..errors import ConfigurationError
from .retrieval import Predicts, checked_ids, checked_vectors, item_vectors, read_vectors, top_items

_ROUNDING = 1e-5  # relative rounding error of float32 sums computed in another order


class ItemIndex:
    """Finds the items with the largest inner product with a user's vector.

    Args:
        ids: ids of the items, integers or strings, [I]; searches return them.
        vectors: float [I, width].
        method: "exact" compares every item with NumPy; recommended up to about 100,000 items. "hnsw" searches a graph
            of neighbours (Y. Malkov, D. Yashunin, IEEE TPAMI 2020) with Faiss (extra [retrieval]) and may miss items.
        m: number of neighbours of each item in the graph, for "hnsw". A higher number gives better results and a
            larger graph.
        ef_search: number of items examined per query, for "hnsw". A higher number gives better results and slower
            queries.

    Raises:
        ConfigurationError: invalid arguments, a duplicate id, or Faiss is missing.
    """

    def __init__(self, ids: Any, vectors: Any, method: str = "exact", *, m: int = 32, ef_search: int = 128) -> None:
        self.ids, self.vectors = checked_ids(ids), checked_vectors("vectors", vectors)
        if len(self.ids) != len(self.vectors) or not len(self.ids):
            raise ConfigurationError(
                f"ItemIndex: needs at least one vector and one id per vector; received {len(self.ids)} ids "
                f"and {len(self.vectors)} vectors"
            )
        self.method = choice("ItemIndex(method=...)", method, ("exact", "hnsw"))
        whole("ItemIndex(m=...)", m, 2)
        self.ef_search = whole("ItemIndex(ef_search=...)", ef_search)
        self._graph = None if method == "exact" else _neighbour_graph(self.vectors, m, ef_search)
        self._order = np.argsort(self.ids, kind="stable")

    @classmethod
    def of_model(cls, model: Predicts, rows: Any, ids: Any, method: str = "exact", **options: Any) -> ItemIndex:
        """Build the index from raw rows of items, whose vectors `model` computes.

        Args:
            model: see `item_vectors`.
            rows: raw rows of the items.
            ids: ids of the items.
            method, options: as in `ItemIndex`.
        """
        return cls(ids, item_vectors(model, rows), method, **options)

    @classmethod
    def read(cls, path: str | os.PathLike[str], method: str = "exact", **options: Any) -> ItemIndex:
        """Build the index from a file of `write_vectors`."""
        return cls(*read_vectors(path), method, **options)

    @classmethod
    def of_graph(cls, ids: Any, vectors: Any, graph: Any) -> ItemIndex:
        """Rebuild an "hnsw" index from its stored `graph`.

        Raises:
            ValueError: the shape of `vectors` is not that of the vectors in the graph.
        """
        index = cls(ids, vectors)
        index.method, index._graph = "hnsw", _faiss().deserialize_index(np.array(graph, np.uint8))
        if (index._graph.ntotal, index._graph.d) != index.vectors.shape:
            raise ValueError(
                f"the graph has vectors of shape ({index._graph.ntotal}, {index._graph.d}); received {vectors.shape}"
            )
        return index

    def graph(self) -> np.ndarray:
        """Return the "hnsw" graph in Faiss's format, uint8 [bytes]."""
        if self._graph is None:
            raise ConfigurationError("ItemIndex.graph: an index with method='exact' has no graph")
        return _faiss().serialize_index(self._graph)

    def recall(self, users: Any, count: int = 10) -> float:
        """Return the mean share of the `count` nearest items that `search` finds.

        An item that is not among the nearest ones, but has the same score as the last of them, counts as found.

        Args:
            users: float [U, width].
            count: number of nearest items.
        """
        users, count = checked_vectors("users", users), min(count, len(self))
        threshold, found = top_items(users, self.vectors, count)[1][:, -1:], self._nearest(users, count, None)[1]
        return float(np.mean(found >= threshold - _ROUNDING * np.abs(threshold)))

    def __len__(self) -> int:
        return len(self.ids)

    def search(
        self,
        users: Any,
        count: int = 10,
        exclude: Sequence[Sequence[Any]] | None = None,
        *,
        among: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the nearest items of each user.

        Args:
            users: float [U, width]; see `user_vectors`.
            count: number of items per user.
            exclude: for each user, the ids to leave out, such as items already seen; unknown ids are ignored.
            among: indices of the items to search, int64 [n]; None searches all items. These items are always compared
                exactly, whatever the method.

        Returns:
            ids [U, count], best first, and scores, float32 [U, count]. There are fewer columns if there are fewer
            items. If fewer than `count` items are left for a user, the remaining scores are -inf.

        Raises:
            ConfigurationError: the width of users and items differs, or `exclude` does not have one list per user.
        """
        users, width = checked_vectors("users", users), self.vectors.shape[1]
        if users.shape[1] != width:
            raise ConfigurationError(f"ItemIndex.search: users have {users.shape[1]} columns, items {width}")
        count = min(whole("ItemIndex.search(count=...)", count), len(self))
        excluded = self._excluded(exclude, len(users))
        searched = min(count + max(map(len, excluded), default=0), len(self) if among is None else len(among))
        indices, scores = self._nearest(users, searched, among)
        if exclude is not None:
            for row, unwanted in enumerate(excluded):
                scores[row, np.isin(indices[row], unwanted)] = -np.inf
            order = np.argsort(-scores, axis=1, kind="stable")
            indices, scores = np.take_along_axis(indices, order, 1), np.take_along_axis(scores, order, 1)
        return self.ids[indices[:, :count]], scores[:, :count]

    def _excluded(self, exclude: Sequence[Sequence[Any]] | None, users: int) -> list[np.ndarray]:
        """Return the indices of the excluded items of each user."""
        if exclude is None:
            return []
        if len(exclude) != users:
            raise ConfigurationError(f"ItemIndex.search(exclude=...): {len(exclude)} lists for {users} users")
        excluded = []
        for ids in exclude:
            known, dtype = np.asarray(ids, dtype=None if len(ids) else self.ids.dtype), self.ids.dtype
            if known.dtype.kind != dtype.kind and (known.dtype.kind, dtype.kind) != ("u", "i"):
                raise ConfigurationError(f"ItemIndex.search(exclude=...): ids are {dtype}; received {known.dtype}")
            at = np.minimum(np.searchsorted(self.ids, known, sorter=self._order), len(self) - 1)
            indices = self._order[at]
            excluded.append(indices[self.ids[indices] == known])
        return excluded

    def _nearest(self, users: np.ndarray, count: int, among: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if not count:
            return np.zeros((len(users), 0), np.int64), np.zeros((len(users), 0), np.float32)
        if among is not None:
            indices, scores = top_items(users, self.vectors[among], count)
            return among[indices], scores
        if self._graph is None:
            return top_items(users, self.vectors, count)
        self._graph.hnsw.efSearch = max(self.ef_search, count)
        scores, indices = self._graph.search(users, count)
        return np.where(indices < 0, 0, indices), np.where(indices < 0, np.float32(-np.inf), scores)


def _neighbour_graph(vectors: np.ndarray, m: int, ef_search: int) -> Any:
    faiss = _faiss()
    graph = faiss.IndexHNSWFlat(vectors.shape[1], m, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = max(2 * m, ef_search)
    graph.add(vectors)
    return graph


def _faiss() -> Any:
    return require("faiss", "ItemIndex(method='hnsw'), unlike method='exact', needs Faiss", "retrieval")
