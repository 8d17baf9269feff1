"""Ranking metrics by group: AUC per user, and recall, NDCG and hit rate at k.

Rows with the same value in a column (a user, a session, a request) form a group. Groups are ranked separately in each
evaluation or window, and the values of past windows are averaged. A group split over two windows therefore counts as
two groups, so windows should be long enough to hold whole groups. Tied rows contribute their mean over all possible
orders, so an untrained network gets no credit for the order of the input.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..checks import nonempty_text, whole
from ..errors import DataError
from .predictions import binary_scores, group_column, hard_labels, row_weights, weighted_sum
from .window_metric import RowMetric

logger = logging.getLogger(__name__)

DEFAULT_CAPACITY = 1_000_000
ALL_GROUPS = (1 << 63) - 1
_COLUMNS = ("keys", "scores", "labels", "weights")


class RankedRows(NamedTuple):
    """Rows sorted by group and, within a group, by descending score."""

    labels: np.ndarray  # float64 [N]
    weights: np.ndarray  # float64 [N]
    group: np.ndarray  # group index of each row, from 0, ascending, [N]
    tie: np.ndarray  # tie index of each row, from 0, ascending, [N]; a tie is a run of equal scores within a group
    rank: np.ndarray  # position of each row in its group, from 0, [N]
    first: np.ndarray  # index of the first row of each group, [G]
    tie_first: np.ndarray  # index of the first row of each tie, [T]


class GroupMetric(RowMetric):
    """Base of metrics by group.

    It keeps the rows of the open window, and only sums of past windows.

    If a window has more than `capacity` rows, a warning is logged and whole groups are dropped by a hash of the group.
    The value is then computed from a random sample of groups, independent of row order. If a single group exceeds the
    capacity, `Gauc` samples its rows, keeping a random half each time the buffer is full. Metrics at k are NaN in that
    case, because the top k of a sample differ from the top k of all rows.

    Args:
        group: column that assigns rows to groups; integers or strings.
        capacity: maximum number of rows kept, 28 bytes each.

    Raises:
        ConfigurationError: no column name, or a capacity below 2.
    """

    higher_is_better = True
    takes_raw = True
    samples_rows = False  # whether a group's value can be estimated from a sample of its rows

    def __init__(self, group: str, capacity: int = DEFAULT_CAPACITY) -> None:
        super().__init__()
        kind = type(self).__name__
        self.group = nonempty_text(f"{kind}(group=...)", group, "the name of a column")
        self.capacity = whole(f"{kind}(capacity=...)", capacity, 2)
        self._has_warned = False
        self.clear()

    def clear(self) -> None:
        self._total = self._weight = 0.0
        self._forget_rows()

    def _forget_rows(self) -> None:
        self._blocks: list[tuple[np.ndarray, ...]] = []
        self._rows = 0
        self._bound = ALL_GROUPS  # only groups whose hash is below it are kept
        self._every = 1  # about one row in this many is kept
        self._seen = 0

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows.

        Args:
            predictions: shape [B], [B, 1] or, for two classes, [B, 2].
            labels: relevance, [B] or [B, 1]: 0 or 1 (`Ndcg`: any non-negative number).
            weights: shape [B] or None. `Gauc` uses them as impression counts; the other metrics weight each group by
                the mean weight of its rows. Rows of weight 0 are ignored.
            groups: shape [B] or [B, 1].
        """
        scores, labels, _ = binary_scores(predictions, labels, "auto")
        keys = group_hashes(groups, len(scores))
        weights = row_weights(weights, len(scores))
        weights = np.ones(len(scores)) if weights is None else weights
        columns: tuple[np.ndarray, ...] = (keys, scores, self._read_labels(labels), weights)
        if not weights.all():  # rows of weight 0 must not take a rank in their group
            columns = tuple(column[weights > 0] for column in columns)
        if self._every > 1:
            kept = _random_rows(self._seen, len(columns[0]), self._every)
            self._seen += len(columns[0])
            columns = tuple(column[kept] for column in columns)
            columns = (*columns[:3], columns[3] * self._every)
        self._keep(*columns)

    def _read_labels(self, labels: np.ndarray) -> np.ndarray:
        return hard_labels(labels).astype(np.float32)

    def _keep(self, *columns: np.ndarray) -> None:
        if self._bound < ALL_GROUPS:
            kept = columns[0] < self._bound
            columns = tuple(column[kept] for column in columns)
        self._blocks.append(tuple(np.array(column) for column in columns))
        self._rows += len(columns[0])
        if self._rows > self.capacity:
            self._drop_rows()

    def _drop_rows(self) -> None:
        """Drop groups until at most three quarters of the capacity are used."""
        columns = self._columns()
        keys = columns[0]
        order = np.argsort(keys, kind="stable")
        ends = np.append(np.flatnonzero(np.diff(keys[order])) + 1, len(keys))
        fits = int(np.searchsorted(ends, self.capacity * 3 // 4, side="right"))
        if fits:
            end = ends[fits - 1]
            self._bound = int(keys[order[end]])
            columns = tuple(column[np.sort(order[:end])] for column in columns)
            self._warn("the value is that of a random sample of groups")
        elif self.samples_rows:  # a single group fills the buffer: keep half of the rows and double their weights
            kept = _random_rows(self._every, len(keys), 2)  # `_every` serves as a seed that differs each time
            columns = tuple(column[kept] for column in columns)
            columns = (*columns[:3], columns[3] * 2)
            self._every *= 2
            self._warn("a single group exceeds the capacity, so the value is computed from a random sample of its rows")
        else:
            self._bound = int(keys.min())
            columns = tuple(column[:0] for column in columns)
            self._warn("a single group exceeds the capacity, so the value is NaN")
        self._blocks, self._rows = [columns], len(columns[0])

    def _warn(self, consequence: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            cause = f"received more rows in a window or evaluation than its capacity of {self.capacity:,}"
            logger.warning("%s by %r %s: %s", self.name, self.group, cause, consequence)

    def _columns(self) -> tuple[np.ndarray, ...]:
        if not self._blocks:
            return np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.float32), np.empty(0)
        return tuple(np.concatenate(parts) for parts in zip(*self._blocks, strict=True))

    def _open_sums(self) -> tuple[float, float]:
        """Return the weighted sum of group values and the total weight of the open window."""
        keys, scores, labels, weights = self._columns()
        if not len(keys):
            return 0.0, 0.0
        order = np.lexsort((-scores, keys))
        keys, scores = keys[order], scores[order]
        new_group = np.append(True, keys[1:] != keys[:-1])
        new_tie = new_group | np.append(True, scores[1:] != scores[:-1])
        first = np.flatnonzero(new_group)
        group, tie = np.cumsum(new_group) - 1, np.cumsum(new_tie) - 1
        rank, labels = np.arange(len(keys)) - first[group], labels[order].astype(np.float64)
        rows = RankedRows(labels, weights[order], group, tie, rank, first, np.flatnonzero(new_tie))
        values, weight = self.group_values(rows)
        counted = weight > 0
        return float(weighted_sum(weight[counted], values[counted])), float(weight.sum())

    def group_values(self, rows: RankedRows) -> tuple[np.ndarray, np.ndarray]:
        """Return each group's value and weight, float64 [G]; weight 0 if undefined."""
        raise NotImplementedError

    def value(self) -> float:
        """Return the weighted mean over groups; NaN if no group has a value."""
        total, weight = self._open_sums()
        return (self._total + total) / (self._weight + weight) if self._weight + weight else float("nan")

    def close(self) -> None:
        """Rank the open window's groups, keep their sums and drop the rows."""
        total, weight = self._open_sums()
        self._total, self._weight = self._total + total, self._weight + weight
        self._forget_rows()

    def merge(self, other: GroupMetric) -> None:
        """Add the sums and open rows of `other`; a group may have rows in both."""
        self._total, self._weight = self._total + other._total, self._weight + other._weight
        if other._bound < self._bound:
            columns, self._bound = self._columns(), other._bound
            self._blocks, self._rows = [], 0
            self._keep(*columns)
        if other._rows:
            self._keep(*other._columns())

    def decay(self, factor: float) -> None:
        """Multiply the weights of closed windows and of open rows by `factor`."""
        self._total, self._weight = self._total * factor, self._weight * factor
        self._blocks = [(*columns[:3], columns[3] * factor) for columns in self._blocks]

    def state_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, f"_{name}") for name in ("total", "weight", "bound", "every", "seen")}
        return {"json": numbers, "arrays": dict(zip(_COLUMNS, self._columns(), strict=True))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        saved, arrays = state["json"], state["arrays"]
        self._total, self._weight = float(saved["total"]), float(saved["weight"])
        self._bound, self._every, self._seen = (int(saved[name]) for name in ("bound", "every", "seen"))
        # The bound is set before, because `_keep` lowers it further if this metric's capacity is smaller.
        self._keep(*(arrays[name] for name in _COLUMNS))


class Gauc(GroupMetric):
    """Mean AUC of the groups, weighted by the total weight of their rows.

    Groups with a single class have no AUC and are skipped. Grouped by user and weighted by impressions, this is the
    GAUC of H. Zhu et al., "Optimized Cost per Click in Taobao Display Advertising", KDD 2017. See `GroupMetric` for
    the arguments.
    """

    name = "gauc"
    samples_rows = True

    def group_values(self, rows: RankedRows) -> tuple[np.ndarray, np.ndarray]:
        positive, negative = rows.weights * rows.labels, rows.weights * (1.0 - rows.labels)
        positives, negatives = np.bincount(rows.group, positive), np.bincount(rows.group, negative)
        tied_negatives = np.bincount(rows.tie, negative)  # weight of negatives in each tie
        above = np.cumsum(tied_negatives) - tied_negatives
        above -= above[rows.tie[rows.first]][rows.group[rows.tie_first]]
        below = negatives[rows.group] - above[rows.tie] - 0.5 * tied_negatives[rows.tie]
        pairs = positives * negatives
        area = np.bincount(rows.group, positive * below)
        return np.divide(area, pairs, out=np.zeros_like(area), where=pairs > 0), (positives + negatives) * (pairs > 0)


class TopKMetric(GroupMetric):
    """Base of the metrics at k. Groups without a positive are skipped.

    Args:
        k: number of top-ranked rows considered.
        group, capacity: as in `GroupMetric`.

    Raises:
        ConfigurationError: k below 1, or as in `GroupMetric`.
    """

    def __init__(self, k: int, group: str, capacity: int = DEFAULT_CAPACITY) -> None:
        self.k = whole(f"{type(self).__name__}(k=...)", k)
        self.name = f"{type(self).name}@{k}"
        super().__init__(group, capacity)

    def _group_weights(self, rows: RankedRows, defined: np.ndarray) -> np.ndarray:
        """Return the mean weight of each group's rows; 0 where the group has no value."""
        return np.bincount(rows.group, rows.weights) / np.bincount(rows.group) * defined

    def _tie_counts(self, rows: RankedRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the size of each tie, its positions in the top k and its positives."""
        size = np.bincount(rows.tie)
        positions = np.clip(self.k - rows.rank[rows.tie_first], 0, size)
        return size, positions, np.bincount(rows.tie, rows.labels)


class RecallAtK(TopKMetric):
    """Share of a group's positives that are in its top k, averaged over groups."""

    name = "recall"

    def group_values(self, rows: RankedRows) -> tuple[np.ndarray, np.ndarray]:
        size, positions, positives = self._tie_counts(rows)
        group_of_tie = rows.group[rows.tie_first]
        total = np.bincount(rows.group, rows.labels)
        hits = np.bincount(group_of_tie, positives * positions / size)
        return hits / np.maximum(total, 1.0), self._group_weights(rows, total > 0)


class HitRateAtK(TopKMetric):
    """Share of groups with at least one positive in their top k.

    If a tie straddles position k, the group counts the probability of a hit. For n tied rows with p positives and m
    positions in the top k, it is 1 - C(n - p, m) / C(n, m).
    """

    name = "hit_rate"

    def group_values(self, rows: RankedRows) -> tuple[np.ndarray, np.ndarray]:
        size, positions, positives = self._tie_counts(rows)
        missed = np.ones(len(size))
        for draw in range(min(self.k, int(positions.max()))):
            drawn = draw < positions
            remaining_negatives = np.maximum(size[drawn] - positives[drawn] - draw, 0.0)
            missed[drawn] *= remaining_negatives / (size[drawn] - draw)
        total = np.bincount(rows.group, rows.labels)
        log_missed = np.log(np.maximum(missed, np.finfo(np.float64).tiny))
        no_hit = np.bincount(rows.group[rows.tie_first], log_missed)
        return 1.0 - np.where(no_hit < -700, 0.0, np.exp(no_hit)), self._group_weights(rows, total > 0)


class Ndcg(TopKMetric):
    """Normalized discounted cumulative gain at k, averaged over groups.

    The definition is that of K. Järvelin and J. Kekäläinen, 2002. The gain of a row is its label, discounted by 1 /
    log2(position + 1). The sum is divided by the sum for the ideal order, so a perfect ranking has the value 1. Tied
    rows share the discounts of their positions, as in F. McSherry and M. Najork, "Computing Information Retrieval
    Performance Measures Efficiently in the Presence of Tied Scores", ECIR 2008.
    """

    name = "ndcg"

    def _read_labels(self, labels: np.ndarray) -> np.ndarray:
        if len(labels) and not labels.min() >= 0:
            raise DataError(f"Ndcg takes labels not below 0; received {labels.min()}")
        return labels.astype(np.float32)

    def group_values(self, rows: RankedRows) -> tuple[np.ndarray, np.ndarray]:
        discount = np.where(rows.rank < self.k, 1.0 / np.log2(rows.rank + 2.0), 0.0)
        size = np.bincount(rows.tie)
        shared = (np.bincount(rows.tie, discount) / size)[rows.tie]
        gained = np.bincount(rows.group, rows.labels * shared)
        ideal = rows.labels[np.lexsort((-rows.labels, rows.group))]
        best = np.bincount(rows.group, ideal * discount)
        return np.divide(gained, best, out=np.zeros_like(gained), where=best > 0), self._group_weights(rows, best > 0)


def _random_rows(first: int, rows: int, every: int) -> np.ndarray:
    """Return a mask, bool [rows], that keeps about one row in `every`.

    The mask is a hash of the row numbers from `first` on, so it is reproducible.
    """
    return group_hashes(np.arange(first, first + rows), rows) % every == 0


def group_hashes(groups: Any, rows: int) -> np.ndarray:
    """Return a 63-bit hash of each group, int64 [rows]; the same in every process.

    Strings are first hashed by FNV-1a over their code points. The finalizer of SplitMix64 (G. L. Steele, D. Lea, C. H.
    Flood, 2014) then mixes the bits.
    """
    column = group_column(groups, rows)
    with np.errstate(over="ignore"):
        if column.dtype.kind == "U":
            points = column.view(np.uint32).reshape(rows, -1) if rows else np.zeros((0, 1), np.uint32)
            mixed = np.full(rows, 0xCBF29CE484222325, np.uint64)
            for position in range(points.shape[1]):
                point = points[:, position].astype(np.uint64)
                mixed = np.where(point > 0, (mixed ^ point) * np.uint64(0x100000001B3), mixed)
        else:
            mixed = column.astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(1)).view(np.int64)
