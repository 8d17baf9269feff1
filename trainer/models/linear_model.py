"""`LinearModel`: logistic or ridge regression over declared features."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..features import Features
from ..features.feature import IDS, NUMBERS, Kind, Output

_MAX_ITERATIONS = 1000
_GRADIENT = 1e-5  # stop when the largest entry of the mean loss's gradient is this small


class LinearModel:
    """A linear model with one weight per number, one per id of a table, and a bias.

    Regularization is as strong as scikit-learn's default: half the sum of the squared weights is added to the sum of
    the losses, with numbers and labels in units of their standard deviations. The solver is L-BFGS of SciPy, which
    MindSpore requires anyway.

    Args:
        features: the declared columns, fitted.
        inputs: result of `Features.batch` for the training rows.
        classes: 1 for least squares; 2 for one logit, with labels from 0 to 1; more for one logit per class, with class
            indices as labels.

    Attributes:
        numbers: weights of the columns of "numbers", float64 [M, outputs].
        rows: table -> (ids int64 [n], weights float64 [n, outputs]); other ids have weight 0.
        bias: float64 [outputs].
    """

    def __init__(self, features: Features, inputs: Mapping[str, Any], classes: int) -> None:
        self._features = features
        self._ids: dict[str, np.ndarray] = {}
        for output in _table_outputs(features):
            table = _table_name(output)
            seen = np.unique(_ids_and_weights(features, inputs, output)[0])
            self._ids[table] = np.union1d(self._ids[table], seen) if table in self._ids else seen
        x, mean, deviation = self._design(inputs, None)
        labels = np.asarray(inputs[features.labels[0]], np.float64).reshape(-1)
        weight = np.ones(len(labels)) if features.weight is None else np.asarray(inputs[features.weight], np.float64)
        self._scaling = (mean, deviation)
        weights, bias = _regression(x, labels, weight.reshape(-1), classes)
        self.numbers = weights[: len(mean)] / deviation[:, None]
        self.bias = bias - mean @ self.numbers
        ends = np.cumsum([len(mean), *map(len, self._ids.values())])
        parts = [weights[first:last] for first, last in itertools.pairwise(ends)]
        self.rows = {table: (ids, part) for (table, ids), part in zip(self._ids.items(), parts, strict=True)}
        self._weights, self._bias = weights, bias

    def outputs(self, inputs: Mapping[str, Any]) -> np.ndarray:
        """Return logits or predicted numbers, float64 [N]; [N, classes] for classes."""
        values = self._design(inputs, self._scaling)[0] @ self._weights + self._bias
        return values[:, 0] if values.shape[1] == 1 else values

    def _design(self, inputs: Mapping[str, Any], scaling: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        """Return the design matrix (scipy.sparse), and the numbers' means and deviations."""
        from scipy import sparse

        features = self._features
        has_numbers = bool(features.of_kind(Kind.NUMBERS))
        count = len(inputs[features.labels[0]])
        numbers = np.asarray(inputs[NUMBERS], np.float64) if has_numbers else np.zeros((count, 0))
        mean, deviation = (numbers.mean(0), numbers.std(0)) if scaling is None else scaling
        deviation = np.where(deviation > 0, deviation, 1.0)
        blocks: dict[str, Any] = {}
        for output in _table_outputs(features):
            ids, ends, id_weights = _ids_and_weights(features, inputs, output)
            known = self._ids[_table_name(output)]
            if not len(known):  # all lists of the training rows were empty
                ids, ends, id_weights = ids[:0], 0 * ends, id_weights[:0]
            positions = np.minimum(np.searchsorted(known, ids), len(known) - 1)
            values, table = id_weights * (known[positions] == ids), _table_name(output)
            block = sparse.csr_matrix((values, positions, ends), shape=(count, len(known)))
            blocks[table] = blocks[table] + block if table in blocks else block
        scaled = sparse.csr_matrix((numbers - mean) / deviation)
        return sparse.hstack([scaled, *(blocks[table] for table in self._ids)], "csr"), mean, deviation


def _table_outputs(features: Features) -> list[Output]:
    return [*features.of_kind(Kind.IDS), *features.of_kind(Kind.LIST)]


def _table_name(output: Output) -> str:
    assert output.table is not None
    return output.table.name


def _ids_and_weights(features: Features, inputs: Mapping[str, Any], output: Output) -> tuple[np.ndarray, ...]:
    """Return ids, the row offsets, and the weight of each id within its row."""
    if output.kind is Kind.IDS:
        ids = inputs[IDS][:, features.of_kind(Kind.IDS).index(output)]
        return ids, np.arange(len(ids) + 1), np.ones(len(ids))
    listed = inputs[output.name]
    id_weights = np.ones(len(listed.values))
    if output.weights is not None:
        id_weights = np.asarray(inputs[output.weights].values, np.float64)
    if output.pooling != "sum":
        row = np.repeat(np.arange(len(listed)), np.diff(listed.offsets))
        sums = np.bincount(row, id_weights**2 if output.pooling == "sqrtn" else id_weights, len(listed))
        total = np.sqrt(sums) if output.pooling == "sqrtn" else sums
        id_weights = id_weights / np.where(total > 0, total, 1.0)[row]
    return listed.values, listed.offsets, id_weights


def _regression(x: Any, labels: np.ndarray, weight: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Minimize the loss; return weights [columns, outputs] and bias [outputs]."""
    from scipy.optimize import minimize
    from scipy.special import logsumexp, softmax

    width, total = x.shape[1], weight.sum()
    mean, unit, outputs = 0.0, 1.0, classes if classes > 2 else 1
    if classes == 1:
        mean = float(weight @ labels / total)
        unit = float(np.sqrt(weight @ (labels - mean) ** 2 / total)) or 1.0
    target = (labels - mean) / unit
    wanted = np.eye(outputs)[labels.astype(np.int64)] if classes > 2 else target[:, None]
    transposed = x.T.tocsr()

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights, bias = flat[:-outputs].reshape(width, outputs), flat[-outputs:]
        z = x @ weights + bias
        if classes == 1:
            losses, slope = 0.5 * (z - wanted)[:, 0] ** 2, z - wanted
        elif classes == 2:
            losses, slope = (np.logaddexp(0, z) - wanted * z)[:, 0], 1 / (1 + np.exp(-z)) - wanted
        else:
            losses, slope = logsumexp(z, 1) - (wanted * z).sum(1), softmax(z, 1) - wanted
        slope = slope * weight[:, None]
        gradient = [(transposed @ slope + weights).ravel(), slope.sum(0)]
        return (weight @ losses + 0.5 * (weights**2).sum()) / total, np.concatenate(gradient) / total

    options = {"maxiter": _MAX_ITERATIONS, "gtol": _GRADIENT, "ftol": 0.0}
    with np.errstate(over="ignore"):  # for a large negative logit exp(-z) is inf, and its probability is 0
        best = minimize(loss, np.zeros((width + 1) * outputs), jac=True, method="L-BFGS-B", options=options).x * unit
    return best[:-outputs].reshape(width, outputs), best[-outputs:] + mean
