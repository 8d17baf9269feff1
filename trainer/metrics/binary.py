"""Metrics of binary labels: AUC, normalized entropy, calibration, score tables.

The metrics stream over rows in bounded memory. With several labels (predictions and labels [B, K]), each label has its
own value, and the metric is their unweighted mean ("macro"). Undefined values, such as the AUC of a label that is
always 0, are skipped. Log loss, which also covers classes, is in `trainer.metrics.classes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..checks import whole
from ..errors import DataError
from .binary_counts import AucCounts, BinarySums
from .histogram import DEFAULT_BUCKETS, DEFAULT_BUFFER_ROWS
from .predictions import (
    LINKS,
    CountsByName,
    activate,
    binary_scores,
    check_link,
    hard_labels,
    outside_unit,
    row_weights,
    to_numpy,
)
from .window_metric import RowMetric

BUCKETS = 4_096  # default for AUC in windows: fewer than in evaluations, because three horizons are kept
CALIBRATION_GROUPS = 15
SCORE_BINS = 40
THRESHOLDS = 101


class BinaryMetric(RowMetric):
    """Base of binary metrics: keeps counts per label and computes values from them.

    Args:
        link: how to interpret predictions; see `trainer.metrics.predictions.check_link`.
    """

    takes_raw = True

    def __init__(self, link: str = "auto") -> None:
        super().__init__()
        self._link = check_link(link)
        self.clear()

    def make_counts(self, labels: int) -> Any:
        """Return empty counts for one label; `labels` is the number of labels."""
        raise NotImplementedError

    def _counts_of(self, labels: int) -> CountsByName:
        return CountsByName({str(label): self.make_counts(labels) for label in range(labels)})

    def read(self, counts: Any) -> float | dict[str, float]:
        """Return the value of one label from its counts, or a dict of its parts."""
        raise NotImplementedError

    @property
    def link(self) -> str:
        """The link in use; "auto" resolves to the loss's activation if it has one."""
        activation = self.meaning.activation
        if self._link == "auto" and isinstance(activation, str) and activation in LINKS:
            return activation
        return self._link

    def clear(self) -> None:
        self._counts = CountsByName()

    def counts_of_first_label(self) -> Any:
        """Return the counts of the first label, or None without rows.

        The caller must not modify them.
        """
        return self._counts.get("0")

    def restart(self) -> None:
        """Forget all rows; remember whether predictions are logits."""
        self._counts.restart()

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows.

        Args:
            predictions: [B], [B, 1] or [B, 2] for one label, [B, K] for several.
            labels: 0 or 1, shape [B], [B, 1] or [B, K]; log loss and metrics derived from it accept any number from 0
                to 1.

        Raises:
            DataError: incompatible shapes, or labels or probabilities outside [0, 1].
        """
        predictions, labels = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
        is_multi_label = labels.ndim == 2 and labels.shape[1] > 1 and predictions.shape == labels.shape
        columns = labels.shape[1] if is_multi_label else 1
        link = self.link
        if is_multi_label and link == "softmax":
            predictions, link = activate(link, predictions), "identity"
        self._counts = self._counts or self._counts_of(columns)
        if len(self._counts) != columns:
            raise DataError(f"{type(self).__name__} has counted {len(self._counts)} labels; received {columns}")
        weights = row_weights(weights, len(labels))
        for column, counts in enumerate(self._counts.values()):
            index = (slice(None), column) if is_multi_label else slice(None)
            scores, label_column, are_logits = binary_scores(predictions[index], labels[index], link)
            if len(scores):
                self._add_label(counts, scores, label_column, weights, are_logits)

    def _add_label(self, counts: Any, scores: np.ndarray, labels: np.ndarray, weights: Any, are_logits: bool) -> None:
        counts.add(scores, hard_labels(labels), weights)

    def value(self) -> float | dict[str, float]:
        """Return the value; with several labels, a dict.

        Its key "" holds the mean over labels, and the keys "0", "1", ... hold the labels' own values.
        """
        if len(self._counts) < 2:
            return self.read(self.counts_of_first_label() or self.make_counts(1))
        read = [self.read(counts) for counts in self._counts.values()]
        each = [values if isinstance(values, dict) else {"": values} for values in read]
        results = {}
        for part in each[0]:
            values = np.array([parts[part] for parts in each])
            known = values[~np.isnan(values)]
            results[part] = float(known.mean()) if len(known) else float("nan")
            results |= {f"{part}_{label}".lstrip("_"): float(value) for label, value in enumerate(values)}
        return results

    def merge(self, other: BinaryMetric) -> None:
        if other._counts:
            self._counts = self._counts or self._counts_of(len(other._counts))
            self._counts.merge(other._counts)

    def decay(self, factor: float) -> None:
        self._counts.decay(factor)

    def state_dict(self) -> dict[str, Any]:
        return self._counts.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._counts = self._counts_of(len(state["json"]))
        self._counts.load_state_dict(state)


class Auc(BinaryMetric):
    """Area under the ROC curve over all rows since `clear`, in bounded memory.

    The result is exact while there are no more distinct scores than buckets. At 10^6 scores it is within 1e-3 of the
    exact value for any distribution (see `trainer.metrics.histogram`). It is NaN without rows, with a single class or
    after a NaN prediction.

    Args:
        link: how two columns become one score (see `trainer.metrics.predictions.check_link`). One column needs no link,
            because AUC depends only on the order of rows.
        buckets: resolution. Memory is 24 bytes per bucket and label, plus 1 MB for rows not yet sorted. With more than
            64 labels, all labels together get 64 times this number of buckets.

    Raises:
        ConfigurationError: unknown link, or fewer than 2 buckets.
    """

    name = "auc"
    higher_is_better = True

    def __init__(self, link: str = "auto", buckets: int = DEFAULT_BUCKETS) -> None:
        super().__init__(link)
        self._buckets = whole("buckets", buckets, 2)

    def make_counts(self, labels: int) -> AucCounts:
        buckets = max(2, min(self._buckets, 64 * self._buckets // labels))
        return AucCounts(buckets, max(1024, DEFAULT_BUFFER_ROWS // labels))

    def read(self, counts: AucCounts) -> float:
        return counts.auc()


class BinarySumMetric(BinaryMetric):
    """Base of metrics computed from `BinarySums`; see `LogLoss` for the arguments."""

    def __init__(
        self, link: str = "auto", negative_sampling_rate: float | None = None, correct_probability: bool = True
    ) -> None:
        self._sampling = (negative_sampling_rate, correct_probability)
        BinarySums(check_link(link), *self._sampling)  # validates the arguments
        super().__init__(link)

    def make_counts(self, labels: int) -> Any:
        return BinarySums(self.link, *self._sampling)

    def _add_label(self, counts: Any, scores: np.ndarray, labels: np.ndarray, weights: Any, are_logits: bool) -> None:
        low, high = labels.min(), labels.max()
        if not (low >= 0 and high <= 1):
            raise DataError(f"{type(self).__name__} takes labels in [0, 1]; received values in [{low}, {high}]")
        counts.logits_seen = counts.logits_seen or are_logits
        counts.add(scores, labels, weights)


class NormalizedEntropy(BinarySumMetric):
    """Log loss divided by the entropy of the observed base rate (He et al. 2014).

    Below 1, the predictions are better than always predicting the base rate. The value is NaN if all labels are equal.
    See `LogLoss` for arguments and errors.
    """

    name = "normalized_entropy"
    higher_is_better = False

    def read(self, counts: BinarySums) -> float:
        return counts.normalized_entropy


class Calibration(BinarySumMetric):
    """Sum of predicted probabilities divided by the number of positives.

    1 is perfect. The value is NaN without positives. See `LogLoss` for arguments and errors.
    """

    name = "calibration"

    def read(self, counts: BinarySums) -> float:
        return counts.calibration


class BinaryMetrics(BinarySumMetric):
    """AUC, log loss, normalized entropy and calibration in one pass.

    The cost is a third of that of four separate metrics. `value` returns a dict with the keys "auc", "log_loss",
    "normalized_entropy" and "calibration". Every `add` sorts its rows, so pass thousands of rows at a time.

    Args:
        link, negative_sampling_rate, correct_probability: as in `LogLoss`.
        buckets: resolution of the AUC; see `trainer.metrics.histogram.ScoreHistogram`.

    Raises:
        ConfigurationError: a value out of range.
    """

    name = "binary"
    parts = ("auc", "log_loss", "normalized_entropy", "calibration")
    higher_is_better = {  # noqa: RUF012 (never changed)
        "auc": True,
        "log_loss": False,
        "normalized_entropy": False,
        "calibration": None,
    }

    def __init__(
        self,
        link: str = "auto",
        negative_sampling_rate: float | None = None,
        correct_probability: bool = True,
        buckets: int = BUCKETS,
    ) -> None:
        self._buckets = whole("buckets", buckets, 2)
        super().__init__(link, negative_sampling_rate, correct_probability)

    def make_counts(self, labels: int) -> CountsByName:
        return CountsByName(sums=super().make_counts(labels), auc=AucCounts(self._buckets, 0))

    def _add_label(self, counts: Any, scores: np.ndarray, labels: np.ndarray, weights: Any, are_logits: bool) -> None:
        positive = hard_labels(labels)
        super()._add_label(counts["sums"], scores, positive, weights, are_logits)
        counts["auc"].add(scores, positive, weights)

    def read(self, counts: CountsByName) -> dict[str, float]:
        return {"auc": counts["auc"].auc(), **{part: getattr(counts["sums"], part) for part in self.parts[1:]}}


def score_table(metrics: Iterable[Any]) -> dict[str, Any] | None:
    """Return a calibration curve and the score distribution, for reports.

    They are computed from the first of `metrics` that has a score histogram; the result is None if there is none.
    Logits are converted to probabilities. Calibration groups cover consecutive ranges of scores with about equal
    weight.

    Returns:
        - "predicted", "observed", "weight": mean prediction, share of positives and row weight of each group;
        - "edges": edges of equal-width bins, one more than the number of bins;
        - "positives", "negatives": weight of each class in each bin;
        - "above": weight of the positives and of the negatives predicted at or above each threshold 0, 0.01, ..., 1.
    """
    for metric in metrics:
        counts = metric.counts_of_first_label() if isinstance(metric, BinaryMetric) else None
        counts = counts.get("auc") if isinstance(counts, CountsByName) else counts
        if not isinstance(counts, AucCounts) or not len(counts.histogram.scores):
            continue
        histogram = counts.histogram
        scores = histogram.scores.astype(np.float64)
        if metric.link in ("sigmoid", "softmax") or outside_unit(scores):
            scores = 0.5 * (1.0 + np.tanh(0.5 * scores))
        return _table(scores, histogram.positives, histogram.negatives)
    return None


def _table(scores: np.ndarray, positives: np.ndarray, negatives: np.ndarray) -> dict[str, Any]:
    weights = positives + negatives
    share = (np.cumsum(weights) - 0.5 * weights) / max(weights.sum(), np.finfo(np.float64).tiny)
    group = np.minimum((share * CALIBRATION_GROUPS).astype(np.int64), CALIBRATION_GROUPS - 1)
    group_weights = np.bincount(group, weights, CALIBRATION_GROUPS)
    has_rows = group_weights > 0
    edges = np.linspace(scores[0], max(scores[-1], np.nextafter(scores[0], 2.0)), SCORE_BINS + 1)
    first = np.searchsorted(scores, np.linspace(0.0, 1.0, THRESHOLDS))

    def group_means(sums: np.ndarray) -> list[float]:
        return (np.bincount(group, sums, CALIBRATION_GROUPS)[has_rows] / group_weights[has_rows]).tolist()

    def above(class_weights: np.ndarray) -> list[float]:
        return (class_weights.sum() - np.concatenate(([0.0], np.cumsum(class_weights)))[first]).tolist()

    return {
        "above": {"positives": above(positives), "negatives": above(negatives)},
        "predicted": group_means(weights * scores),
        "observed": group_means(positives),
        "weight": group_weights[has_rows].tolist(),
        "edges": edges.tolist(),
        "positives": np.histogram(scores, edges, weights=positives)[0].tolist(),
        "negatives": np.histogram(scores, edges, weights=negatives)[0].tolist(),
    }
