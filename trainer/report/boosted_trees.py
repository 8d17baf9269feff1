"""`BoostedTrees`: scikit-learn's gradient boosting on declared features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..features import Features
from ..features.feature import IDS, NUMBERS, Kind

_MAX_CATEGORIES = 254  # scikit-learn's limit per column, minus one category for other ids
_LIST_IDS = 32  # number of ids of a list feature that become columns
_UNSEEN = 16.0  # how far the logit of a class without rows is below the largest one


class BoostedTrees:
    """Histogram-based gradient boosting with scikit-learn's defaults.

    Numbers are used unchanged. In a column of ids, each of the most frequent ids is a category, and all other ids share
    one category. For a list feature, each of its most frequent ids becomes a column: 1 if the list contains the id.

    Args:
        features: the declared columns, fitted.
        inputs: result of `Features.batch` for the rows to learn from.
        classes: number of classes of the label, or 1 if the label is a number.

    Raises:
        ImportError: scikit-learn is not installed.
    """

    def __init__(self, features: Features, inputs: Mapping[str, Any], classes: int) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        self._has_numbers, self._classes = bool(features.of_kind(Kind.NUMBERS)), classes
        columns = range(len(features.of_kind(Kind.IDS)))
        self._known = [_most_frequent(inputs[IDS][:, column], _MAX_CATEGORIES) for column in columns]
        lists = [output.name for output in features.of_kind(Kind.LIST)]
        self._list_ids = {name: _most_frequent(inputs[name].values, _LIST_IDS) for name in lists}
        labels = np.asarray(inputs[features.labels[0]]).reshape(-1)
        weight = None if features.weight is None else np.asarray(inputs[features.weight]).reshape(-1)
        model = HistGradientBoostingRegressor if classes == 1 else HistGradientBoostingClassifier
        self._model = model(categorical_features=list(columns), random_state=0)
        self._model.fit(self._table(inputs), labels, weight)

    def outputs(self, inputs: Mapping[str, Any]) -> np.ndarray:
        """Return logits or numbers, float64 [N]; [N, classes] for more than two classes."""
        table = self._table(inputs)
        if self._classes == 1:
            return self._model.predict(table)
        # One column per class that occurred; with two such classes, a single column: the difference of their logits.
        logits, known = self._model.decision_function(table), self._model.classes_.astype(np.int64)
        if logits.ndim == 1:
            logits = np.stack([np.zeros(len(logits)), logits], 1)[:, : len(known)]
        outputs = np.repeat(logits.max(1, keepdims=True) - _UNSEEN, self._classes, 1)
        outputs[:, known] = logits
        return outputs if self._classes > 2 else outputs[:, 1] - outputs[:, 0]

    def _table(self, inputs: Mapping[str, Any]) -> np.ndarray:
        parts = [_category_numbers(inputs[IDS][:, column], known)[:, None] for column, known in enumerate(self._known)]
        if self._has_numbers:
            parts.append(inputs[NUMBERS])
        for name, known in self._list_ids.items():
            contains = np.zeros((len(inputs[name]), 1 + len(known)))
            row = np.repeat(np.arange(len(contains)), np.diff(inputs[name].offsets))
            contains[row, _category_numbers(inputs[name].values, known)] = 1
            parts.append(contains[:, 1:])
        return np.concatenate(parts, 1)


def _most_frequent(ids: np.ndarray, count: int) -> np.ndarray:
    """Return the most frequent ids, ascending."""
    distinct, counts = np.unique(ids, return_counts=True)
    return np.sort(distinct[np.argsort(-counts, kind="stable")[:count]])


def _category_numbers(ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return 1 + the index of each id in `known`, or 0 for other ids."""
    positions = np.minimum(np.searchsorted(known, ids), max(0, len(known) - 1))
    return np.where(known[positions] == ids, 1 + positions, 0) if len(known) else np.zeros(len(ids), np.int64)
