"""Calibration and score distribution of a binary target."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .binary import BinaryMetric
from .predictions import outside_unit

GROUPS = 15
BINS = 40
THRESHOLDS = 101


def score_table(metrics: Iterable[Any]) -> dict[str, Any] | None:
    """Return calibration and distribution of the first metric with a histogram.

    None without one. Logits are converted to probabilities. Calibration groups are consecutive in score and of about
    equal weight.

    Returns:
        - "predicted", "observed", "weight": mean prediction, share of positives and row weight of each group;
        - "edges": edges of equal-width bins, one more than there are bins;
        - "positives", "negatives": weight of each class in each bin;
        - "above": for thresholds 0, 0.01, ..., 1 the weight of positives and of negatives predicted at or above them.
    """
    for metric in metrics:
        histogram = metric.score_histogram() if isinstance(metric, BinaryMetric) else None
        if histogram is None or not len(histogram.scores):
            continue
        scores = histogram.scores.astype(np.float64)
        if metric.link in ("sigmoid", "softmax") or outside_unit(scores):
            scores = 0.5 * (1.0 + np.tanh(0.5 * scores))
        return _table(scores, histogram.positives, histogram.negatives)
    return None


def _table(scores: np.ndarray, positives: np.ndarray, negatives: np.ndarray) -> dict[str, Any]:
    weights = positives + negatives
    share = (np.cumsum(weights) - 0.5 * weights) / max(weights.sum(), np.finfo(np.float64).tiny)
    group = np.minimum((share * GROUPS).astype(np.int64), GROUPS - 1)
    in_group = np.bincount(group, weights, GROUPS)
    kept = in_group > 0
    edges = np.linspace(scores[0], max(scores[-1], np.nextafter(scores[0], 2.0)), BINS + 1)
    first = np.searchsorted(scores, np.linspace(0.0, 1.0, THRESHOLDS))

    def above(of_class: np.ndarray) -> list[float]:
        return (of_class.sum() - np.concatenate(([0.0], np.cumsum(of_class)))[first]).tolist()

    return {
        "above": {"positives": above(positives), "negatives": above(negatives)},
        "predicted": (np.bincount(group, weights * scores, GROUPS)[kept] / in_group[kept]).tolist(),
        "observed": (np.bincount(group, positives, GROUPS)[kept] / in_group[kept]).tolist(),
        "weight": in_group[kept].tolist(),
        "edges": edges.tolist(),
        "positives": np.histogram(scores, edges, weights=positives)[0].tolist(),
        "negatives": np.histogram(scores, edges, weights=negatives)[0].tolist(),
    }
