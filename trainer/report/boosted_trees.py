"""`BoostedTrees`: scikit-learn's gradient boosting over declared features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..features import Features
from ..features.feature import IDS, NUMBERS, Kind

_MAX_CATEGORIES = 254  # the most that scikit-learn's trees accept in a column, besides "other"
_LISTED = 32


class BoostedTrees:
    """Histogram-based gradient boosting with scikit-learn's defaults.

    Numbers are taken as they are. Of ids the most frequent are categories, and all others are one; of a list each of
    the most frequent ids is a column, whether the list has it.

    Args:
        features: the declared columns, fitted.
        inputs: result of `Features.batch` for the rows to learn from.
        classes: as of `trainer.models.linear_model.LinearModel`.

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
        """Return logits or numbers, float64 [N], or [N, classes] of several classes."""
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
    """Return 1 + the place of each id in `known`, 0 for others."""
    places = np.minimum(np.searchsorted(known, ids), max(0, len(known) - 1))
    return np.where(known[places] == ids, 1 + places, 0) if len(known) else np.zeros(len(ids), np.int64)
