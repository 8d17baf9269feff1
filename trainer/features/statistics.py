"""What features learn from the data, in one pass and in bounded memory; statistics of parts can be merged."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..checks import any_number, whole
from ..embedding.tables.id_map import IdMap
from .feature import FIRST_ROW, UNSEEN_ROW

logger = logging.getLogger(__name__)

MAX_DISTINCT = 1 << 22  # values that a vocabulary counts before rare ones are dropped


class Moments:
    """Count, mean, variance, least and greatest value; others than finite values are passed over.

    Source: T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
    1979, equation 2.1.
    """

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.least, self.greatest = math.inf, -math.inf

    def add(self, values: np.ndarray) -> None:
        """Add the finite values."""
        values = values[np.isfinite(values)]
        if not len(values):
            return
        part = Moments()
        part.count, part.mean = len(values), float(values.mean())
        part.squares = float(np.square(values - part.mean).sum())
        part.least, part.greatest = float(values.min()), float(values.max())
        self.merge(part)

    def merge(self, other: Moments) -> None:
        """Add what `other` has seen."""
        if not other.count:
            return
        count = self.count + other.count
        difference = other.mean - self.mean
        self.mean += difference * other.count / count
        self.squares += other.squares + difference**2 * self.count * other.count / count
        self.count = count
        self.least, self.greatest = min(self.least, other.least), max(self.greatest, other.greatest)

    @property
    def deviation(self) -> float:
        """Standard deviation over all values; 1 where they do not vary."""
        return math.sqrt(self.squares / self.count) if self.squares > 0 else 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return count, mean, sum of squares, least and greatest value."""
        ends = [self.least, self.greatest] if self.count else [0.0, 0.0]
        return {"json": [self.count, self.mean, self.squares, *ends], "arrays": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        count, *values = state["json"]
        self.count = whole("count", count, 0)
        self.mean, self.squares, self.least, self.greatest = (any_number("moment", value) for value in values)
        if not self.count:
            self.least, self.greatest = math.inf, -math.inf


class Quantiles:
    """Quantiles of finite values to a relative error of 1 %.

    Source: C. Masson, J. Rim, H. Lee, "DDSketch: a fast and fully-mergeable quantile sketch", VLDB 2019.

    A value x > 0 is counted in bucket ceil(log_g x) with g = (1 + a) / (1 - a), a = 0.01. Counts of parts add up to the
    counts of the whole, so merging is exact.
    """

    ACCURACY = 0.01
    _GAMMA = math.log((1 + ACCURACY) / (1 - ACCURACY))
    _SMALLEST = 1e-12  # magnitudes below it count as zero

    def __init__(self) -> None:
        self.keys = np.empty(0, np.int64)  # ascending in the value they stand for: sign * (offset + bucket)
        self.counts = np.empty(0, np.int64)

    def add(self, values: np.ndarray) -> None:
        """Add the finite values."""
        values = values[np.isfinite(values)]
        magnitude = np.abs(values)
        with np.errstate(divide="ignore"):
            bucket = np.ceil(np.log(np.maximum(magnitude, self._SMALLEST)) / self._GAMMA).astype(np.int64)
        keys = np.where(magnitude < self._SMALLEST, 0, np.sign(values).astype(np.int64) * (bucket + self._offset()))
        self._count(*np.unique(keys, return_counts=True))

    @classmethod
    def _offset(cls) -> int:
        return 1 - math.ceil(math.log(cls._SMALLEST) / cls._GAMMA)

    def _count(self, keys: np.ndarray, counts: np.ndarray) -> None:
        merged, inverse = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        total = np.zeros(len(merged), np.int64)
        np.add.at(total, inverse, np.concatenate([self.counts, counts]))
        self.keys, self.counts = merged, total

    def merge(self, other: Quantiles) -> None:
        """Add what `other` has seen."""
        self._count(other.keys, other.counts)

    def values(self, shares: np.ndarray) -> np.ndarray:
        """Return the quantiles at `shares` (0 to 1), float64; NaN where nothing was added."""
        if not len(self.keys):
            return np.full(len(shares), np.nan)
        rank = np.asarray(shares) * (self.counts.sum() - 1)
        keys = self.keys[np.searchsorted(np.cumsum(self.counts), rank, side="right").clip(max=len(self.keys) - 1)]
        bucket = np.abs(keys) - self._offset()
        middle = 2 * np.exp(bucket * self._GAMMA) / (1 + math.exp(self._GAMMA))
        return np.sign(keys) * middle

    def state_dict(self) -> dict[str, Any]:
        """Return the buckets and their counts."""
        return {"json": {}, "arrays": {"keys": self.keys, "counts": self.counts}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.keys = np.array(state["arrays"]["keys"], np.int64)
        self.counts = np.array(state["arrays"]["counts"], np.int64)


class KnownIds:
    """The ids of a vocabulary, each with its row of a table, the ones above those of missing and unseen ids.

    Args:
        ids: int64, ascending.
    """

    def __init__(self, ids: np.ndarray) -> None:
        self.count = len(ids)
        self._rows = IdMap(len(ids))
        self._rows.add(ids, np.arange(FIRST_ROW, FIRST_ROW + len(ids), dtype=np.int32))

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of each id, int64 [n]; `UNSEEN_ROW` for those that are not known."""
        rows = self._rows.get(ids)
        return np.where(rows < 0, UNSEEN_ROW, rows).astype(np.int64, copy=False)


class ValueCounts:
    """How often each id occurs, the most frequent `MAX_DISTINCT` of them.

    Ids are int64, as `trainer.embedding` hashes text. When there are more, those that occur least are dropped, once
    warned of: counts of the dropped ones may then be too low.
    """

    def __init__(self, limit: int = MAX_DISTINCT) -> None:
        self.limit = limit
        self.ids = np.empty(0, np.int64)
        self.counts = np.empty(0, np.int64)
        self._warned = False
        self._vocabulary: KnownIds | None = None

    def add(self, ids: np.ndarray) -> None:
        """Add ids, int64."""
        self._count(*np.unique(ids, return_counts=True))

    def _count(self, ids: np.ndarray, counts: np.ndarray) -> None:
        merged, inverse = np.unique(np.concatenate([self.ids, ids]), return_inverse=True)
        total = np.zeros(len(merged), np.int64)
        np.add.at(total, inverse, np.concatenate([self.counts, counts]))
        if len(merged) > 2 * self.limit:
            if not self._warned:
                self._warned = True
                logger.warning("a vocabulary has more than %d values; rare ones are dropped", self.limit)
            kept = np.sort(np.argpartition(total, -self.limit)[-self.limit :])
            merged, total = merged[kept], total[kept]
        self.ids, self.counts, self._vocabulary = merged, total, None

    def merge(self, other: ValueCounts) -> None:
        """Add what `other` has counted."""
        self._count(other.ids, other.counts)

    def vocabulary(self, min_count: int, max_size: int | None) -> KnownIds:
        """Return the ids that occur at least `min_count` times; at most the `max_size` most frequent of them."""
        if self._vocabulary is None:
            kept = self.counts >= min_count
            ids, counts = self.ids[kept], self.counts[kept]
            if max_size is not None and len(ids) > max_size:
                ids = np.sort(ids[np.lexsort((ids, -counts))[:max_size]])
            self._vocabulary = KnownIds(ids)
        return self._vocabulary

    def state_dict(self) -> dict[str, Any]:
        """Return ids and counts."""
        return {"json": {}, "arrays": {"ids": self.ids, "counts": self.counts}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.ids = np.array(state["arrays"]["ids"], np.int64)
        self.counts = np.array(state["arrays"]["counts"], np.int64)
        self._vocabulary = None
