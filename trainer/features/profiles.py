"""Profiles of raw columns, and the drift between two profiles."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..checks import whole
from ..embedding.tables.hashing import to_ids
from ..streams.formats.column import Column
from ..streams.formats.ragged_column import Ragged
from .feature import NO_ID
from .statistics import Quantiles, ValueCounts

SAMPLED_ROWS = 4096  # rows sampled from each part of the training data
MAX_VALUES = 4096  # number of distinct values that a profile keeps when it drops rare ones
BUCKETS = 10  # number of buckets for numbers, with equal counts
FREQUENT = 20  # number of most frequent categories, which have a bucket each
SMALLEST_SHARE = 1e-4  # share assumed for an empty bucket


class ColumnProfile:
    """Counts a raw column's values: lists by their last value, vectors by their mean."""

    def __init__(self, column: Column) -> None:
        self.ordered = column.dtype.kind == "f"
        self.counts = ValueCounts(limit=MAX_VALUES)
        self.rows = self.missing = 0

    def add(self, values: Any) -> None:
        self.add_keys(*self.keys_of(values))

    def add_keys(self, keys: np.ndarray, missing: np.ndarray) -> None:
        """Add the values of a batch, as returned by `keys_of`."""
        self.rows += len(missing)
        self.missing += int(missing.sum())
        self.counts.add(keys[~missing])

    def keys_of(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return int64 keys in numeric order, and whether values are missing; [N] each."""
        is_empty = False
        if isinstance(values, Ragged):
            values = values[:]
            is_empty = values.lengths == 0
            last = np.where(is_empty, 0, values.offsets[1:] - 1)
            blank = np.zeros(1, values.values.dtype)
            values = (values.values if len(values.values) else blank)[last]
        if self.ordered:
            numbers = np.asarray(values, np.float64)
            numbers = numbers.mean(1) if numbers.ndim > 1 else numbers
            return Quantiles.keys_of(numbers), is_empty | ~np.isfinite(numbers)
        return to_ids(values), is_empty | (values == ("" if values.dtype.kind == "U" else NO_ID))

    def merge(self, other: ColumnProfile) -> None:
        self.counts.merge(other.counts)
        self.rows += other.rows
        self.missing += other.missing

    def copy(self) -> ColumnProfile:
        """Return an independent copy."""
        other = copy.copy(self)
        other.counts = copy.copy(self.counts)
        return other

    def state_dict(self) -> dict[str, Any]:
        arrays = {"ids": self.counts.ids, "counts": self.counts.counts}
        return {"json": [self.rows, self.missing], "arrays": arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rows, self.missing = (whole("profile", count, 0) for count in state["json"])
        self.counts.load_state_dict({"json": {}, "arrays": state["arrays"]})


class ProfileBuckets:
    """Buckets for comparing profiles: missing values, number ranges or categories.

    Infrequent categories share the last bucket.
    """

    def __init__(self, reference: ColumnProfile) -> None:
        self._reference = reference
        keys, counts = reference.counts.ids, reference.counts.counts
        if not len(keys):  # all values are missing
            self._keys = keys
        elif reference.ordered:
            ranks = np.arange(1, BUCKETS) / BUCKETS * counts.sum()
            self._keys = np.unique(keys[np.searchsorted(np.cumsum(counts), ranks).clip(max=len(keys) - 1)])
        else:
            self._keys = np.sort(keys[np.lexsort((keys, -counts))[:FREQUENT]])
        self.count = 2 + len(self._keys)
        self.shares = self.shares_of(reference)

    def bucket_of(self, keys: np.ndarray, missing: np.ndarray) -> np.ndarray:
        """Return the bucket index of each row, int64 [N]; 0 holds missing values."""
        buckets = 1 + np.searchsorted(self._keys, keys)
        if not self._reference.ordered and len(self._keys):
            frequent = self._keys[np.minimum(buckets - 1, len(self._keys) - 1)] == keys
            buckets = np.where(frequent, buckets, self.count - 1)
        return np.where(missing, 0, buckets)

    def shares_of(self, profile: ColumnProfile) -> np.ndarray:
        """Return the share of a profile's rows in each bucket, float64."""
        keys = profile.counts.ids
        buckets = self.bucket_of(keys, np.zeros(len(keys), bool))
        counts = np.bincount(buckets, weights=profile.counts.counts, minlength=self.count)
        counts[0] = profile.missing
        if not self._reference.ordered:  # add the rare values that the profile has dropped
            counts[-1] += profile.rows - counts.sum()
        return counts / max(1.0, counts.sum())


def stability_index(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the population stability index of two vectors of shares.

    Empty buckets count as `SMALLEST_SHARE`.

    Distributions are usually considered equal below 0.1 and different above 0.25. Source: N. Siddiqi, "Credit Risk
    Scorecards", 2006.
    """
    expected, actual = np.maximum(expected, SMALLEST_SHARE), np.maximum(actual, SMALLEST_SHARE)
    return float(((actual - expected) * np.log(actual / expected)).sum())
