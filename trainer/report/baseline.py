"""`Baseline`: a plain model on the same rows, beside a run's result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import nn

from ..checks import whole
from ..errors import ConfigurationError
from ..features.feature import IDS, NUMBERS, Kind
from ..features.feature_data import rows_of
from ..features.features import Features
from ..models.in_batch_softmax import InBatchSoftmax
from ..models.retrieval import item_vectors, top_items, user_vectors

if TYPE_CHECKING:
    from ..trainer import Trainer

RETRIEVED = 10
RETRIEVED_METRIC = f"recall_{RETRIEVED}"


class Baseline:
    """Prints a plain model's result on `test` beside that of the run.

    It is the logistic regression of scikit-learn for a label of classes, its ridge regression for numbers, each with
    its default strength and the declared features as inputs: one weight per number and per id. For two towers it is a
    list of the most popular items. Without scikit-learn a line says what to install.

    Args:
        train: raw rows to learn from, as `RawFiles`.
        test: raw rows to compare on.
        rows: most rows to learn from; the first are taken.
    """

    def __init__(self, train: Any, test: Any, rows: int = 200_000) -> None:
        self.train, self.test = train, test
        self.rows = whole("Baseline(rows=...)", rows)

    def __call__(self, trainer: Trainer, run_dir: str | Path) -> dict[str, Any] | None:
        """Print the comparison; return {"baseline": name, "model": ..., "plain": ...}.

        Raises:
            ConfigurationError: the run has no declared features with one label.
        """
        features = trainer.features
        if features is None or len(features.labels) != 1:
            raise ConfigurationError("report: Baseline compares runs with declared features and one label")
        if isinstance(trainer.loss_fn, InBatchSoftmax):
            name, own, plain = "most popular items", *self._retrieved(trainer, features.labels[0])
            higher = {RETRIEVED_METRIC: True}
        else:
            try:
                name, plain = self._linear(features, trainer.loss_fn)
            except ImportError:
                print("no baseline beside the result: pip install 'mindspore-trainer[examples]' for scikit-learn")
                return None
            own = trainer.evaluate(self.test)
            higher = {metric: metric in ("auc", "accuracy") for metric in plain}
        if trainer.group.is_main:
            print("\n".join(_table({"this run": own, name: plain}, list(plain))))
            first = next(iter(plain))
            if own[first] < plain[first] if higher[first] else own[first] > plain[first]:
                print(f"the {name} is better by {first}: the network learns nothing beyond it from these rows yet")
        return {"baseline": name, "model": {metric: own[metric] for metric in plain}, "plain": plain}

    def _linear(self, features: Features, loss_fn: Any) -> tuple[str, dict[str, float]]:
        from sklearn import metrics
        from sklearn.linear_model import LogisticRegression, Ridge

        known: dict[str, np.ndarray] = {}
        x, y, weight = self._matrix(features, self.train, known, self.rows)
        x_test, y_test, weight_test = self._matrix(features, self.test, known)
        weighted = {"sample_weight": weight_test}
        if isinstance(loss_fn, nn.BCEWithLogitsLoss | nn.CrossEntropyLoss):
            model = LogisticRegression(max_iter=1000).fit(x, y, weight)
            chances = model.predict_proba(x_test)
            values = {"log_loss": metrics.log_loss(y_test, chances, labels=model.classes_, **weighted)}
            if len(model.classes_) == 2:
                values["auc"] = metrics.roc_auc_score(y_test, chances[:, 1], **weighted)
            else:
                values["accuracy"] = metrics.accuracy_score(y_test, model.predict(x_test), **weighted)
            order = [name for name in ("auc", "log_loss", "accuracy") if name in values]
            return "logistic regression", {name: float(values[name]) for name in order}
        answers = Ridge(solver="lsqr").fit(x, y, weight).predict(x_test)
        rmse = metrics.mean_squared_error(y_test, answers, **weighted) ** 0.5
        return "ridge regression", {
            "rmse": float(rmse),
            "mae": float(metrics.mean_absolute_error(y_test, answers, **weighted)),
        }

    def _matrix(
        self, features: Features, data: Any, known: dict[str, np.ndarray], most: int | None = None
    ) -> tuple[Any, np.ndarray, np.ndarray | None]:
        """Return features (scipy.sparse), labels and weights; `known` keeps the ids."""
        from scipy import sparse

        inputs = _columns([features.batch(raw) for raw in _parts(features, data, most)])
        y = inputs[features.labels[0]]
        blocks = [sparse.csr_matrix(inputs[NUMBERS])] if features.of_kind(Kind.NUMBERS) else []
        if names := [output.name for output in features.of_kind(Kind.IDS)]:
            ids, ends = inputs[IDS], np.arange(len(y) + 1)
            blocks += [_one_hot(known, name, ids[:, index], ends) for index, name in enumerate(names)]
        for output in features.of_kind(Kind.LIST):
            lists = inputs[output.name]
            shares = sparse.diags(1 / np.maximum(1, np.diff(lists.offsets)))
            blocks.append(shares @ _one_hot(known, output.name, lists.values, lists.offsets))
        return sparse.hstack(blocks, "csr"), y, None if features.weight is None else inputs[features.weight]

    def _retrieved(self, trainer: Trainer, label: str) -> tuple[dict[str, float], dict[str, float]]:
        """Return recall of the two towers and of the most popular items."""
        features = trainer.features
        assert features is not None
        train, test = (
            _columns(list(_parts(features, data, most))) for data, most in ((self.train, self.rows), (self.test, None))
        )
        items, first, counts = np.unique(train[label], return_index=True, return_counts=True)
        shown = items[np.argsort(-counts, kind="stable")[:RETRIEVED]]
        rows = {name: column for name, column in test.items() if name in features.columns}
        of_items = item_vectors(trainer, {name: train[name][first] for name in rows})
        nearest, _ = top_items(user_vectors(trainer, rows), of_items, min(RETRIEVED, len(items)))
        hits = (items[nearest] == np.asarray(test[label])[:, None]).any(1)
        popular = np.isin(test[label], shown)
        return {RETRIEVED_METRIC: float(hits.mean())}, {RETRIEVED_METRIC: float(popular.mean())}


def _parts(features: Features, data: Any, most: int | None) -> Iterator[Mapping[str, Any]]:
    """Yield the raw columns of the first `most` rows, a part at a time."""
    count = 0
    for rows in rows_of(features, data):
        yield rows.columns
        count += rows.good
        if most is not None and count >= most:
            return


def _columns(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _one_hot(known: dict[str, np.ndarray], name: str, ids: np.ndarray, ends: np.ndarray) -> Any:
    """Return rows of ids as scipy.sparse [N, ids known]; unknown ids are zeros."""
    from scipy import sparse

    distinct = known.setdefault(name, np.unique(ids))
    places = np.minimum(np.searchsorted(distinct, ids), len(distinct) - 1)
    found = (distinct[places] == ids).astype(np.float64)
    return sparse.csr_matrix((found, places, ends), shape=(len(ends) - 1, len(distinct)))


def _table(results: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> list[str]:
    width = max(map(len, results))
    lines = [f"{'on the test rows':<{max(width, 16)}} " + " ".join(f"{name:>10}" for name in names)]
    return lines + [
        f"{label:<{max(width, 16)}} " + " ".join(f"{values[name]:>10.4f}" for name in names)
        for label, values in results.items()
    ]
