"""Class counts by score in bounded memory, for a streaming AUC.

`ScoreHistogram` keeps a sorted list of at most `buckets` score values with the weight of positives and negatives at
each. It is exact while there are no more distinct scores than buckets. Beyond that, neighbouring scores are merged into
buckets of equal weight. The resolution therefore adapts to the distribution of the scores, which may lie within 1e-3 of
each other, be heavily tied, or spread over many orders of magnitude. A score value with more than 2 / buckets of the
weight always has its own bucket. No other bucket holds more than about 3 / buckets of the weight. This bounds the error
of the AUC.

`RowBuffer` collects small batches, so that rows are sorted in blocks of tens of thousands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

DEFAULT_BUCKETS = 8_192
DEFAULT_BUFFER_ROWS = 65_536


class ScoreHistogram:
    """Weights of positives and negatives by score.

    Args:
        buckets: maximum number of score values; memory is at most 24 bytes times `buckets`.
    """

    __slots__ = ("buckets", "negatives", "positives", "scores")

    def __init__(self, buckets: int = DEFAULT_BUCKETS) -> None:
        self.buckets = buckets
        self.clear()

    def clear(self) -> None:
        self.scores = np.empty(0, np.float32)  # ascending and distinct, [M]; float64 after float64 scores were added
        self.positives = np.empty(0, np.float64)  # weight of positives at each score, [M]
        self.negatives = np.empty(0, np.float64)

    def add(self, scores: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Add rows. Each call sorts its rows, so pass thousands at a time.

        Args:
            scores: shape [N], float32 or float64, no NaN; infinities are allowed.
            positive: whether each row is a positive, shape [N], bool.
            weights: weights of the rows, shape [N], or None.
        """
        for start in range(0, len(scores), DEFAULT_BUFFER_ROWS):
            rows = slice(start, start + DEFAULT_BUFFER_ROWS)
            positives = positive[rows].astype(np.float64)
            negatives = 1.0 - positives
            if weights is not None:
                positives *= weights[rows]
                negatives *= weights[rows]
            self._insert(scores[rows], positives, negatives, _argsort)

    def merge(self, other: ScoreHistogram) -> None:
        """Add the counts of `other` without changing it."""
        if len(other.scores):
            timsort = functools.partial(np.argsort, kind="stable")  # linear time for two sorted runs
            self._insert(other.scores, other.positives, other.negatives, timsort)

    def decay(self, factor: float) -> None:
        """Multiply every weight; drop buckets with less than 1e-12 of the total."""
        self.positives = self.positives * factor
        self.negatives = self.negatives * factor
        weights = self.positives + self.negatives
        keep = weights > weights.sum() * 1e-12
        if not keep.all():
            self.scores, self.positives, self.negatives = self.scores[keep], self.positives[keep], self.negatives[keep]

    def auc(self) -> float:
        """Return the area under the ROC curve; NaN without both classes.

        Tied pairs count half.
        """
        positives, negatives = self.positives.sum(), self.negatives.sum()
        if not (positives > 0 and negatives > 0):
            return float("nan")
        below = np.cumsum(self.negatives)
        below -= 0.5 * self.negatives
        return float(np.dot(self.positives, below) / (positives * negatives))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return copies of the three arrays for a snapshot."""
        return {name: getattr(self, name).copy() for name in ("scores", "positives", "negatives")}

    def load_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore a snapshot made by `arrays`."""
        for name in ("scores", "positives", "negatives"):
            setattr(self, name, np.array(arrays[name]))

    def _insert(self, scores: np.ndarray, positives: np.ndarray, negatives: np.ndarray, argsort: Callable) -> None:
        scores = np.concatenate((self.scores, scores)) if len(self.scores) else scores
        order = argsort(scores)
        scores = scores[order]
        ends = np.append(np.flatnonzero(scores[1:] != scores[:-1]), len(scores) - 1)
        scores = scores[ends]
        cumulative_positives = np.cumsum(np.concatenate((self.positives, positives))[order])[ends]
        cumulative_negatives = np.cumsum(np.concatenate((self.negatives, negatives))[order])[ends]
        if len(scores) > self.buckets:
            weight = cumulative_positives + cumulative_negatives
            middle = weight.copy()
            middle[1:] += weight[:-1]
            bucket = (middle * (0.5 * self.buckets / max(weight[-1], np.finfo(np.float64).tiny))).astype(np.int64)
            ends = np.append(np.flatnonzero(bucket[1:] != bucket[:-1]), len(bucket) - 1)
            starts = np.append(0, ends[:-1] + 1)
            scores = scores[(starts + ends) // 2]
            cumulative_positives, cumulative_negatives = cumulative_positives[ends], cumulative_negatives[ends]
        self.scores = scores
        self.positives = np.diff(cumulative_positives, prepend=0.0)
        self.negatives = np.diff(cumulative_negatives, prepend=0.0)


def _argsort(scores: np.ndarray) -> np.ndarray:
    """Return the indexes that sort `scores`; up to 8 times faster for float32.

    NumPy's float argsort is fast only with AVX-512, but its stable sort of 16-bit integers is a linear-time radix sort
    on every processor. So the bits of a float32 are mapped to an integer of the same order, which is sorted in two
    16-bit passes.
    """
    if scores.dtype != np.float32:
        return np.argsort(scores)
    bits = scores.view(np.uint32)
    keys = bits ^ ((bits.view(np.int32) >> 31).view(np.uint32) | np.uint32(0x80000000))
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    return order[np.argsort((keys >> np.uint32(16)).astype(np.uint16)[order], kind="stable")]


class RowBuffer:
    """Buffers rows of several columns and emits blocks of `capacity` rows.

    Blocks are always full, so results do not depend on batch sizes.
    """

    def __init__(self, capacity: int = DEFAULT_BUFFER_ROWS) -> None:
        self.capacity = capacity
        self.rows = 0
        self._columns: list[np.ndarray] = []

    def push(self, *columns: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        """Add rows and yield each full block; a block is valid until the next one.

        All columns have the same length N, shape [N, ...]. Their number and row shapes are the same in every call. If
        a column arrives with a wider dtype, the buffered column is converted to it.
        """
        self._allocate(columns)
        done, total = 0, len(columns[0])
        while done < total:
            rows = min(self.capacity - self.rows, total - done)
            if rows == self.capacity:
                yield tuple(column[done : done + rows] for column in columns)
            else:
                for buffered, column in zip(self._columns, columns, strict=True):
                    buffered[self.rows : self.rows + rows] = column[done : done + rows]
                self.rows += rows
                if self.rows == self.capacity:
                    yield self.drain()
            done += rows

    def drain(self) -> tuple[np.ndarray, ...]:
        """Remove the buffered rows and return them; valid until the next `push`."""
        block = self.peek()
        self.rows = 0
        return block

    def peek(self) -> tuple[np.ndarray, ...]:
        """Return views of the buffered rows; an empty tuple before the first `push`."""
        return tuple(column[: self.rows] for column in self._columns)

    def state_dict(self) -> dict[str, Any]:
        """Return the buffered rows: ``{"arrays": {"0": column, "1": column, ...}}``."""
        return {"arrays": {str(index): column.copy() for index, column in enumerate(self.peek())}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        columns = [np.asarray(column) for _, column in sorted(state["arrays"].items(), key=lambda item: int(item[0]))]
        self._columns, self.rows = [], 0
        if columns:
            self._allocate(columns)
            self.rows = len(columns[0])
            for buffered, column in zip(self._columns, columns, strict=True):
                buffered[: self.rows] = column

    def _allocate(self, columns: tuple[np.ndarray, ...] | list[np.ndarray]) -> None:
        if not self._columns:
            self._columns = [np.empty((self.capacity, *column.shape[1:]), column.dtype) for column in columns]
        for index, column in enumerate(columns):
            buffered = self._columns[index]
            if buffered.dtype != column.dtype:
                self._columns[index] = buffered.astype(np.result_type(buffered.dtype, column.dtype), copy=False)
