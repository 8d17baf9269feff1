"""`BoostedTrees`: scikit-learn's gradient boosting on declared features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..features import Features
from ..features.feature import IDS, NUMBERS, Kind

_MAX_CATEGORIES = 254  # scikit-learn's limit per column, minus one category for other ids
_LISTED = 32  # number of ids of a list feature that become columns


class BoostedTrees:
    """Histogram-based gradient boosting with scikit-learn's defaults.

    Numbers are used unchanged. In a column of ids, each of the most frequent ids is a category, and all other ids share
    one category. For lists, each of the most frequent ids becomes a column that tells whether the list contains the id.

    Args:
        features: the declared columns, fitted.
        inputs: result of `Features.batch` for the rows to learn from.
        classes: number of classes of the label, or 1 if the label is a number.

    Raises:
        ImportError: scikit-learn is not installed.
    """

    def __init__(self, features: Features, inputs: Mapping[str, Any], classes: int) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        self._has_numbers, self._is_number = bool(features.of_kind(Kind.NUMBERS)), classes == 1
        columns = range(len(features.of_kind(Kind.IDS)))
        self._known = [_frequent(inputs[IDS][:, column], _MAX_CATEGORIES) for column in columns]
        lists = [output.name for output in features.of_kind(Kind.LIST)]
        self._listed = {name: _frequent(inputs[name].values, _LISTED) for name in lists}
        labels = np.asarray(inputs[features.labels[0]]).reshape(-1)
        weight = None if features.weight is None else np.asarray(inputs[features.weight]).reshape(-1)
        model = HistGradientBoostingRegressor if classes == 1 else HistGradientBoostingClassifier
        self._model = model(categorical_features=list(columns), random_state=0)
        self._model.fit(self._table(inputs), labels, weight)

    def outputs(self, inputs: Mapping[str, Any]) -> np.ndarray:
        """Return logits or numbers, float64 [N]; [N, classes] for more than two classes."""
        table = self._table(inputs)
        return self._model.predict(table) if self._is_number else self._model.decision_function(table)

    def _table(self, inputs: Mapping[str, Any]) -> np.ndarray:
        parts = [_numbered(inputs[IDS][:, column], known)[:, None] for column, known in enumerate(self._known)]
        if self._has_numbers:
            parts.append(inputs[NUMBERS])
        for name, known in self._listed.items():
            holds = np.zeros((len(inputs[name]), 1 + len(known)))
            row = np.repeat(np.arange(len(holds)), np.diff(inputs[name].offsets))
            holds[row, _numbered(inputs[name].values, known)] = 1
            parts.append(holds[:, 1:])
        return np.concatenate(parts, 1)


def _frequent(ids: np.ndarray, most: int) -> np.ndarray:
    """Return the most frequent ids, ascending."""
    distinct, counts = np.unique(ids, return_counts=True)
    return np.sort(distinct[np.argsort(-counts, kind="stable")[:most]])


def _numbered(ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return 1 + the index of each id in `known`, or 0 for other ids."""
    places = np.minimum(np.searchsorted(known, ids), max(0, len(known) - 1))
    return np.where(known[places] == ids, 1 + places, 0) if len(known) else np.zeros(len(ids), np.int64)
