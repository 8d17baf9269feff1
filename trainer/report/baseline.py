"""`Baseline`: compares a run with plain models trained on the same rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from callbacks import Callback

from ..checks import whole
from ..embedding.layers.embedding_cells import embedding_cells
from ..errors import ConfigurationError, DataError
from ..features.feature_data import rows_of
from ..features.features import Features, Inputs
from ..features.raw_rows import first_rows
from ..metrics.adapters import BySlice
from ..metrics.defaults import BINARY, CLASSES, meaning_of, set_meanings
from ..metrics.loss import Loss
from ..metrics.predictions import Meaning
from ..metrics.registry import clear_metrics, directions, read_metrics, update_metrics
from ..models.in_batch_softmax import InBatchSoftmax
from ..models.layers import LabelUnits, Linear
from ..models.linear_model import LinearModel
from ..models.retrieval import item_vectors, top_items, user_vectors
from .boosted_trees import BoostedTrees

logger = logging.getLogger(__name__)

TOP_K = 10  # items per user in the comparison of a two-tower model
RECALL = f"recall_{TOP_K}"
IMPORTANCE_ROWS = 10_000
SHUFFLES = 5  # per column
DIGITS = 4  # decimals of the metrics in the table; also used to round metrics before comparing models

Values = dict[str, float]


class Baseline(Callback):
    """Compares a run with plain models that learn from the same rows and features.

    The plain models are a regression (`trainer.models.linear_model.LinearModel`: logistic for classes, else ridge) and,
    if scikit-learn is installed, gradient boosting. A two-tower model is instead compared with recommending the most
    popular items. `compare` prints the result. Pass the object as a callback only if `start` is set. All processes read
    the same rows.

    Args:
        train: raw rows to learn from, such as `RawFiles`.
        test: raw rows to compare on.
        start: whether to initialise an untrained network with the weights of the regression. The network needs a linear
            part (`trainer.models`: lr, fm, wide_deep, deepfm). With ``fit(valid_on_start=True)`` and the best weights
            kept, the run is then at least as good as the regression on the validation rows.
        rows: maximum number of rows to learn from, counted from the first row.
    """

    def __init__(self, train: Any, test: Any, start: bool = False, rows: int = 200_000) -> None:
        self.train, self.test, self.start = train, test, start
        self.rows = whole("Baseline(rows=...)", rows)
        self._regression: tuple[Inputs, LinearModel] | None = None

    def setup(self, trainer: Any) -> None:
        """Initialise the network from the regression if `start` is set.

        A network that has been trained already, as in a resumed run, keeps its weights.

        Raises:
            ConfigurationError: the run has no declared features with one label, or no metrics.
        """
        features = _checked_features(trainer)
        if not self.start:
            return
        linear = [cell for cell in trainer.network.cells() if isinstance(cell, Linear)]
        if len(linear) != 1:
            name = type(trainer.network).__name__
            logger.warning("Baseline(start=True): %s has no linear part, so it keeps its initial weights", name)
            return
        if _is_trained(trainer, linear[0]):
            return
        units = [cell for cell in trainer.network.cells() if isinstance(cell, LabelUnits)]
        linear[0].initialize_from(self._linear(features, trainer.loss_fn)[1], *units)
        name = _regression_name(trainer.loss_fn)
        logger.info("the network starts with the weights of a %s on the same features", name)

    def compare(self, trainer: Any) -> dict[str, Any]:
        """Print the comparison on the test rows, and return it.

        Returns:
            A dict. "model": the run's metrics, {metric: value}. "plain": the metrics of each plain model, by its name.
            "best": the model with the best first metric, "this run" or the name of a plain model. "importance": how
            much worse the first metric gets if a raw column is shuffled, {column: [mean, standard deviation over the
            shuffles]}.
        """
        features = _checked_features(trainer)
        importance: dict[str, list[float]] = {}
        if isinstance(trainer.loss_fn, InBatchSoftmax):
            run_metrics, popular = self._recalls(trainer, features.labels[0])
            results, first, higher = {"this run": run_metrics, "most popular items": popular}, RECALL, True
        else:
            results = self._results(trainer, features)
            first, higher = _first_metric(trainer)
            importance = _importance(trainer, features, self.test)
        best = (max if higher else min)(results, key=lambda name: round(results[name][first], DIGITS))
        if trainer.group.is_main:
            print("\n".join(_table(results)))
            if best != "this run":
                print(f"the baseline wins: {best} is better by {first}; the network learned nothing beyond it")
        return {"model": results.pop("this run"), "plain": results, "best": best, "importance": importance}

    def _linear(self, features: Features, loss_fn: Any) -> tuple[Inputs, LinearModel]:
        if self._regression is None:
            raw = self._training_rows(features)
            if (ignored := meaning_of(loss_fn).ignored) is not None:
                counts = np.asarray(raw[features.labels[0]]) != ignored
                raw = {name: column[counts] for name, column in raw.items()}
            inputs = _inputs(features, raw)
            self._regression = inputs, LinearModel(features, inputs, _classes(features, inputs, loss_fn))
        return self._regression

    def _training_rows(self, features: Features) -> dict[str, Any]:
        return first_rows(rows_of(features, self.train), self.rows).columns

    def _results(self, trainer: Any, features: Features) -> dict[str, Values]:
        """Return the metrics of the run and of each plain model.

        The test rows are read part by part, once for each.
        """
        run_metrics = trainer.evaluate(self.test)
        inputs, linear = self._linear(features, trainer.loss_fn)
        models: dict[str, Any] = {_regression_name(trainer.loss_fn): linear}
        try:
            models["gradient boosting"] = BoostedTrees(features, inputs, _classes(features, inputs, trainer.loss_fn))
        except ImportError:
            logger.info("no comparison with gradient boosting: scikit-learn is not installed")
        except ValueError as error:  # labels between 0 and 1, or weights that are all 0
            logger.warning("no comparison with gradient boosting: %s", error)
        results = {"this run": run_metrics}
        for name, model in models.items():
            try:
                results[name] = _model_metrics(trainer, features, self.test, model)
            except DataError as error:  # a regression may predict a negative count
                logger.warning("no comparison with %s: %s", name, error)
        names = [name for name in run_metrics if all(name in values for values in results.values())]
        return {name: {metric: values[metric] for metric in names} for name, values in results.items()}

    def _recalls(self, trainer: Any, label: str) -> tuple[Values, Values]:
        """Return the recall of the two-tower model and of the most popular items."""
        features = trainer.features
        train = self._training_rows(features)
        items, first, counts = np.unique(train[label], return_index=True, return_counts=True)
        popular_items = items[np.argsort(-counts, kind="stable")[:TOP_K]]
        vectors_of_items = item_vectors(trainer, {name: train[name][first] for name in features.columns})
        hits = popular = count = 0
        for part in _raw_parts(features, self.test):
            chosen, rows = np.asarray(part[label]), {name: part[name] for name in features.columns}
            nearest, _ = top_items(user_vectors(trainer, rows), vectors_of_items, min(TOP_K, len(items)))
            hits += int((items[nearest] == chosen[:, None]).any(1).sum())
            popular += int(np.isin(chosen, popular_items).sum())
            count += len(chosen)
        return {RECALL: hits / count}, {RECALL: popular / count}


def _checked_features(trainer: Any) -> Features:
    features = trainer.features
    if features is None or len(features.labels) != 1:
        raise ConfigurationError("baseline: plain models need declared features with one label")
    if not isinstance(trainer.loss_fn, InBatchSoftmax):
        _first_metric(trainer)
    return features


def _first_metric(trainer: Any) -> tuple[str, bool]:
    """Return the first metric that ranks models, and whether higher is better."""
    metrics = {name: metric for name, metric in trainer.metrics.items() if not isinstance(metric, Loss | BySlice)}
    ranking = ((name, higher) for name, higher in directions(metrics).items() if higher is not None)
    first = next(ranking, None)
    if first is None:
        known = ", ".join(trainer.metrics) or "none"
        raise ConfigurationError(
            "baseline: the comparison needs metrics, such as metrics: [log_loss, auc], of which one declares whether "
            f"higher is better; received {known}"
        )
    return first


def _is_trained(trainer: Any, linear: Linear) -> bool:
    cells = embedding_cells(linear)
    rows = any(len(cell.host_table()) for cell in cells if not cell.is_dense)
    return rows or trainer.state.progress.global_step > 0 or bool(linear.numbers.weight.asnumpy().any())


def _regression_name(loss_fn: Any) -> str:
    return "logistic regression" if meaning_of(loss_fn).target in (BINARY, CLASSES) else "ridge regression"


def _classes(features: Features, inputs: Inputs, loss_fn: Any) -> int:
    """Return the number of classes of the label, or 1 if the label is a number."""
    if meaning_of(loss_fn).target == CLASSES:
        return len(features.label_classes) or int(np.max(inputs[features.labels[0]])) + 1
    return 2 if meaning_of(loss_fn).target == BINARY else 1


def _model_metrics(trainer: Any, features: Features, data: Any, model: Any) -> Values:
    """Return the run's metrics of a plain model's outputs for raw rows.

    The outputs are logits or numbers, whatever the network returns.
    """
    metrics = {name: metric for name, metric in trainer.metrics.items() if not isinstance(metric, Loss)}
    meaning = meaning_of(trainer.loss_fn)
    target = meaning.target
    clear_metrics(metrics)
    for inputs in (_inputs(features, raw) for raw in _raw_parts(features, data)):
        outputs = model.outputs(inputs)
        activation = None if target not in (BINARY, CLASSES) else "sigmoid" if outputs.ndim == 1 else "softmax"
        set_meanings(metrics, Meaning(target, activation, meaning.ignored))
        weight = inputs[features.weight] if trainer.row_weights.of_metrics else None
        label = np.asarray(inputs[features.labels[0]])
        read = (None, outputs.astype(np.float32), label)
        update_metrics(metrics, read, (0, 1, 2), len(label), inputs, weight, meaning.ignored)
    return read_metrics(metrics)


def _importance(trainer: Any, features: Features, data: Any) -> dict[str, list[float]]:
    """Return how much worse the first metric gets per shuffled column: [mean, std]."""
    raw = first_rows(rows_of(features, data), IMPORTANCE_ROWS).columns
    first, higher = _first_metric(trainer)
    rng, rows = np.random.default_rng(0), len(raw[features.labels[0]])

    def evaluate(columns: Mapping[str, Any]) -> float:
        return float(trainer.evaluate(_inputs(features, columns))[first])

    unshuffled = evaluate(raw)
    importance = {}
    for name in dict.fromkeys(name for feature in features.features for name in feature.raw()):
        values = [evaluate({**raw, name: raw[name][rng.permutation(rows)]}) for _ in range(SHUFFLES)]
        costs = (unshuffled - np.array(values)) * (1 if higher else -1)
        importance[name] = [float(costs.mean()), float(costs.std())]
    return dict(sorted(importance.items(), key=lambda item: -item[1][0]))


def _inputs(features: Features, raw: Mapping[str, Any]) -> Inputs:
    return Inputs(features.batch(raw))


def _raw_parts(features: Features, data: Any) -> Iterator[Mapping[str, Any]]:
    return (rows.columns for rows in rows_of(features, data) if rows.good)


def _table(results: Mapping[str, Values]) -> list[str]:
    names = list(results["this run"])
    width = max(16, *map(len, results))
    lines = [f"{'on the test rows':<{width}} " + " ".join(f"{name:>10}" for name in names)]
    return lines + [
        f"{label:<{width}} " + " ".join(f"{values[name]:>10.{DIGITS}f}" for name in names)
        for label, values in results.items()
    ]
