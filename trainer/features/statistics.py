"""Mergeable statistics that features learn in one pass and bounded memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import any_number, whole
from ..embedding.tables.hashing import to_ids
from ..embedding.tables.id_map import IdMap
from ..streams.formats.coercion import TRUTH_WORDS
from .feature import FIRST_ROW, UNSEEN_ROW, Statistic

logger = logging.getLogger(__name__)

MAX_FLOAT32 = float(np.finfo(np.float32).max)
MAX_DISTINCT = 1 << 22  # number of values that a vocabulary keeps when it drops rare ones


class Moments(Statistic):
    """Count, mean, variance, minimum and maximum of values finite in float32.

    Source: T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
    1979, equation 2.1.
    """

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.minimum, self.maximum = math.inf, -math.inf

    def add(self, values: np.ndarray) -> None:
        values = values[np.abs(values) <= MAX_FLOAT32]  # the square of a larger one would not be finite
        if not len(values):
            return
        part = Moments()
        part.count, part.mean = len(values), float(values.mean())
        part.squares = float(np.square(values - part.mean).sum())
        part.minimum, part.maximum = float(values.min()), float(values.max())
        self.merge(part)

    def merge(self, other: Moments) -> None:
        if not other.count:
            return
        count = self.count + other.count
        difference = other.mean - self.mean
        self.mean += difference * other.count / count
        self.squares += other.squares + difference**2 * self.count * other.count / count
        self.count = count
        self.minimum, self.maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)

    @property
    def deviation(self) -> float:
        """Standard deviation of all values; 1 if they do not vary."""
        return math.sqrt(self.squares / self.count) if self.squares > 0 else 1.0

    def state_dict(self) -> dict[str, Any]:
        bounds = [self.minimum, self.maximum] if self.count else [0.0, 0.0]
        return {"json": [self.count, self.mean, self.squares, *bounds], "arrays": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        count, *values = state["json"]
        self.count = whole("count", count, 0)
        self.mean, self.squares, self.minimum, self.maximum = (any_number("moment", value) for value in values)
        if not self.count:
            self.minimum, self.maximum = math.inf, -math.inf


class Quantiles(Statistic):
    """Quantiles of finite values to a relative error of 1 %.

    Source: C. Masson, J. Rim, H. Lee, "DDSketch: a fast and fully-mergeable quantile sketch", VLDB 2019.

    A value x > 0 is counted in bucket ceil(log_g x) with g = (1 + a) / (1 - a), a = 0.01. Merging adds counts, so it is
    exact.
    """

    ACCURACY = 0.01
    _GAMMA = math.log((1 + ACCURACY) / (1 - ACCURACY))
    _SMALLEST = 1e-12  # magnitudes below it count as zero
    _OFFSET = 1 - math.ceil(math.log(_SMALLEST) / _GAMMA)

    def __init__(self) -> None:
        self.keys = np.empty(0, np.int64)  # ordered by value: sign * (offset + bucket)
        self.counts = np.empty(0, np.int64)

    def add(self, values: np.ndarray) -> None:
        keys, counts = np.unique(self.keys_of(values[np.isfinite(values)]), return_counts=True)
        self.keys, self.counts = _sum_counts([self.keys, keys], [self.counts, counts])

    @classmethod
    def keys_of(cls, values: np.ndarray) -> np.ndarray:
        """Return each value's signed bucket number, in numeric order; 0 if not finite."""
        values = np.where(np.isfinite(values), values, 0.0)
        magnitude = np.abs(values)
        bucket = np.ceil(np.log(np.maximum(magnitude, cls._SMALLEST)) / cls._GAMMA).astype(np.int64)
        return np.where(magnitude < cls._SMALLEST, 0, np.sign(values).astype(np.int64) * (bucket + cls._OFFSET))

    def merge(self, other: Quantiles) -> None:
        self.keys, self.counts = _sum_counts([self.keys, other.keys], [self.counts, other.counts])

    def values(self, shares: np.ndarray) -> np.ndarray:
        """Return the quantiles at `shares` (0 to 1), float64; NaN if empty."""
        if not len(self.keys):
            return np.full(len(shares), np.nan)
        rank = np.asarray(shares) * (self.counts.sum() - 1)
        keys = self.keys[np.searchsorted(np.cumsum(self.counts), rank, side="right").clip(max=len(self.keys) - 1)]
        bucket = np.abs(keys) - self._OFFSET
        center = 2 * np.exp(bucket * self._GAMMA) / (1 + math.exp(self._GAMMA))
        return np.sign(keys) * center

    def state_dict(self) -> dict[str, Any]:
        return {"json": {}, "arrays": {"keys": self.keys, "counts": self.counts}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.keys = np.array(state["arrays"]["keys"], np.int64)
        self.counts = np.array(state["arrays"]["counts"], np.int64)


def _sum_counts(keys: Sequence[np.ndarray], counts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct keys, ascending, and their summed counts."""
    merged, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    total = np.zeros(len(merged), np.int64)
    np.add.at(total, inverse, np.concatenate(counts))
    return merged, total


class KnownIds:
    """Maps the ids of a vocabulary to table rows, from `FIRST_ROW` on."""

    def __init__(self, ids: np.ndarray, rows: np.ndarray | None = None) -> None:
        self.count = len(ids)
        self._rows = IdMap(len(ids))
        rows = np.arange(FIRST_ROW, FIRST_ROW + len(ids)) if rows is None else rows
        self._rows.add(ids, rows.astype(np.int32))

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of each id, int64 [n]; `UNSEEN_ROW` for unknown ids."""
        rows = self._rows.get(ids)
        return np.where(rows < 0, UNSEEN_ROW, rows).astype(np.int64, copy=False)


class ValueCounts(Statistic):
    """Counts the most frequent ids and assigns table rows to them.

    Ids are int64; text is hashed as in `trainer.embedding`. When there are more than 2 * `limit` ids, only the `limit`
    most frequent ones and those with a row are kept. An id that returns after it was dropped has too low a count. An id
    keeps its row.

    Args:
        min_count: minimum count of an id that gets a row.
        max_size: maximum number of ids with a row; the most frequent ids get the free rows. None: unlimited.
        limit: number of ids to keep.
    """

    def __init__(self, min_count: int = 1, max_size: int | None = None, limit: int = MAX_DISTINCT) -> None:
        self.min_count, self.max_size, self.limit = min_count, max_size, limit
        self.ids = np.empty(0, np.int64)  # ascending
        self.counts = np.empty(0, np.int64)
        self.rows = np.empty(0, np.int32)  # -1 for ids without a row
        self._warned = False
        self._vocabulary: KnownIds | None = None

    def add(self, ids: np.ndarray) -> None:
        self._count(*np.unique(ids, return_counts=True))

    def _count(self, ids: np.ndarray, counts: np.ndarray) -> None:
        merged, total = _sum_counts([self.ids, ids], [self.counts, counts])
        rows = np.full(len(merged), -1, np.int32)
        rows[np.searchsorted(merged, self.ids)] = self.rows
        if len(merged) > 2 * self.limit:
            if not self._warned and self.limit == MAX_DISTINCT:
                logger.warning("a vocabulary has more than %d values; rare ones are dropped", self.limit)
            self._warned = True
            rank = np.where(rows < 0, total, np.iinfo(np.int64).max)
            kept = rows >= 0
            kept[np.argpartition(rank, -self.limit)[-self.limit :]] = True
            merged, total, rows = merged[kept], total[kept], rows[kept]
        self.ids, self.counts, self.rows, self._vocabulary = merged, total, rows, None

    def merge(self, other: ValueCounts) -> None:
        """Add the counts of another vocabulary, without its rows."""
        self._count(other.ids, other.counts)

    def finish(self) -> None:
        """Assign rows, in id order, to the ids that have become frequent enough."""
        new = np.flatnonzero((self.rows < 0) & (self.counts >= self.min_count))
        known = len(self.rows) - int((self.rows < 0).sum())
        if self.max_size is not None and len(new) > (room := max(0, self.max_size - known)):
            new = np.sort(new[np.lexsort((new, -self.counts[new]))[:room]])
        if len(new):
            self.rows = self.rows.copy()
            self.rows[new] = np.arange(FIRST_ROW + known, FIRST_ROW + known + len(new))
            self._vocabulary = None

    @property
    def vocabulary(self) -> KnownIds:
        """The ids with a row."""
        if self._vocabulary is None:
            self.finish()
            known = self.rows >= 0
            self._vocabulary = KnownIds(self.ids[known], self.rows[known])
        return self._vocabulary

    def state_dict(self) -> dict[str, Any]:
        return {"json": {}, "arrays": {"ids": self.ids, "counts": self.counts, "rows": self.rows}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        arrays = state["arrays"]
        self.ids, self.counts = np.array(arrays["ids"], np.int64), np.array(arrays["counts"], np.int64)
        self.rows = np.array(arrays["rows"], np.int32) if "rows" in arrays else np.full(len(self.ids), -1, np.int32)
        ids = _with_lower_truth(self.ids)
        if ids is not self.ids:
            order = np.argsort(ids)
            self.ids, self.counts, self.rows = ids[order], self.counts[order], self.rows[order]
        self._vocabulary = None


def _with_lower_truth(ids: np.ndarray) -> np.ndarray:
    """Return ids with "True", "FALSE", ... mapped to the ids of "true" and "false".

    Older versions kept the spelling of the data in vocabularies; see `trainer.streams.formats.coercion`.
    """
    spellings = to_ids(np.array(list(TRUTH_WORDS)))
    words = to_ids(np.array(list(TRUTH_WORDS.values())))
    renamed = ids
    for index in np.flatnonzero(np.isin(spellings, ids)):
        if not (renamed == words[index]).any():
            renamed = np.where(renamed == spellings[index], words[index], renamed)
    return renamed
