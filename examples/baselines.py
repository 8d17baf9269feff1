"""Two baselines on MovieLens-100K: the mean of each item, and logistic regression.

python -m examples.baselines
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from examples.movielens import FEATURES, LABEL, SIZES, load, split_by_time

Columns = Mapping[str, np.ndarray]


def item_mean(train: Columns, test: Columns, strength: float = 5.0) -> NDArray[np.float64]:
    """Return the share of liked ratings of each test row's item, learned from `train`.

    The share is smoothed as if each item had `strength` additional ratings with the overall share (an empirical Bayes
    estimate of a binomial rate), so that rare items do not get extreme values. Shape [rows of test].
    """
    overall = train[LABEL].mean(dtype=np.float64)
    liked = np.bincount(train["item"], weights=train[LABEL], minlength=SIZES["item"])
    rated = np.bincount(train["item"], minlength=SIZES["item"])
    return ((liked + strength * overall) / (rated + strength))[test["item"]]


def linear(train: Columns, test: Columns, inverse_l2: float = 0.5) -> NDArray[np.float64]:
    """Return the probabilities of a logistic regression with one weight per category.

    The inputs are those of the wide part of `configs/wide_deep_movielens.yaml`, without crosses. The solver is Newton's
    method with conjugate gradients, which is six times faster here than L-BFGS. `inverse_l2` is scikit-learn's C; the
    default was best on the newest tenth of the training part. Shape [rows of test].
    """
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=inverse_l2, solver="newton-cg", tol=1e-6)
    model.fit(one_hot(train), train[LABEL])
    return model.predict_proba(one_hot(test))[:, 1]


def one_hot(columns: Columns):
    """Return the features as a sparse matrix with one column per category.

    The type is `scipy.sparse.csr_matrix`, float64.
    """
    from scipy.sparse import csr_matrix, hstack

    rows = len(columns[LABEL])
    ones, starts = np.ones(rows), np.arange(rows + 1)
    blocks = [
        csr_matrix(columns[name])
        if columns[name].ndim == 2
        else csr_matrix((ones, columns[name], starts), shape=(rows, SIZES[name]))
        for name in FEATURES
    ]
    return hstack(blocks, format="csr")


def auc(label: np.ndarray, score: np.ndarray) -> float:
    """Return the area under the ROC curve; ties count half."""
    values, place = np.unique(score, return_inverse=True)
    liked = np.bincount(place, weights=label, minlength=len(values))
    other = np.bincount(place, weights=1.0 - label, minlength=len(values))
    below = np.cumsum(other) - other
    return float((liked * (below + other / 2)).sum() / (liked.sum() * other.sum()))


def log_loss(label: np.ndarray, probability: np.ndarray) -> float:
    """Return the mean negative log-likelihood, in nats."""
    probability = np.clip(np.asarray(probability, dtype=np.float64), 1e-7, 1 - 1e-7)
    return float(-np.mean(label * np.log(probability) + (1 - label) * np.log1p(-probability)))


def baselines(train: Columns, test: Columns) -> dict[str, dict[str, float]]:
    """Return AUC and log loss on `test` of the baselines "item mean" and "linear"."""
    predictions = {"item mean": item_mean(train, test), "linear": linear(train, test)}
    label = test[LABEL]
    return {name: {"auc": auc(label, p), "log_loss": log_loss(label, p)} for name, p in predictions.items()}


if __name__ == "__main__":
    for name, scores in baselines(*split_by_time(load())).items():
        print(f"{name:10} AUC {scores['auc']:.4f}   log loss {scores['log_loss']:.4f}")
