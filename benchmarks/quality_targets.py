"""Several labels and counts on MovieLens-100K, for `benchmarks/quality.py`.

Labels: whether a rating has at least 2, 3, 4 and 5 stars, four binary labels of one network. Rivals: the share of each
label in training, and scikit-learn's logistic regression of each label on the means of the film and of the user.

Counts: how many ratings a film gets in a week, from the film, its genres and year, its counts of the four weeks before
and their mean so far. The newest tenth of the weeks is measured. Rivals: the mean count, the film's mean count, and
scikit-learn's Poisson regression on the logarithms of the same counts and mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.metrics import log_loss, mean_absolute_error, mean_poisson_deviance, roc_auc_score

from examples.movielens import FEATURES, SIZES
from examples.rating import Rater
from trainer import EarlyStopping, Trainer

Columns = Mapping[str, np.ndarray]

STARS = (2, 3, 4, 5)
WEEK = 7 * 86_400
LAGS = 4
RATE = 2e-3


def labels(parts: tuple[Columns, Columns, Columns], seed: int, epochs: int) -> dict[str, dict[str, float]]:
    """Return macro AUC and mean log loss of the four labels on the test rows, of the network and its rivals."""
    mindspore.set_seed(seed)
    np.random.seed(seed)
    train, valid, test = ({**{name: part[name] for name in FEATURES}, "stars": at_least(part)} for part in parts)
    optimizer = ("adamweightdecay", {"learning_rate": RATE, "weight_decay": 0.02})
    trainer = Trainer(Rater(len(STARS)), nn.BCEWithLogitsLoss(), optimizer, ["auc", "log_loss"])
    trainer.fit(train, epochs, valid, callbacks=[stopping()], batch_size=512)
    results = trainer.evaluate(test, batch_size=2048)
    learned = {name: np.concatenate([parts[0][name], parts[1][name]]) for name in ("user", "item", "rating")}
    known, asked = at_least(learned), test["stars"]
    shares = np.broadcast_to(known.mean(axis=0), asked.shape)
    inputs, test_inputs = means_of(learned, learned), means_of(learned, parts[2])
    regressions = [LogisticRegression(max_iter=1000).fit(inputs, known[:, label]) for label in range(len(STARS))]
    predicted = np.stack([model.predict_proba(test_inputs)[:, 1] for model in regressions], 1)
    return {
        "share of each label": {"log_loss": mean_log_loss(asked, shares)},
        "logistic regression": {"auc": roc_auc_score(asked, predicted), "log_loss": mean_log_loss(asked, predicted)},
        "network, four labels": {name: results[name] for name in ("auc", "log_loss")},
    }


def at_least(columns: Columns) -> np.ndarray:
    """Return whether each rating has at least 2, 3, 4 and 5 stars, float32 [N, 4]."""
    return (columns["rating"][:, None] >= np.array(STARS)).astype(np.float32)


def mean_log_loss(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the mean over labels [N, K] of the log loss of their probabilities."""
    return float(np.mean([log_loss(y, p) for y, p in zip(labels.T, predictions.T, strict=True)]))


def means_of(train: Columns, columns: Columns) -> np.ndarray:
    """Return for each row the mean rating of its film and of its user in `train`, shrunk, float64 [N, 2].

    A row of `train` itself does not count towards its own means.
    """
    overall, own = float(train["rating"].mean()), columns is train
    features = []
    for name, strength in (("item", 25.0), ("user", 10.0)):
        total = np.bincount(train[name], train["rating"] - overall, minlength=SIZES[name])[columns[name]]
        count = np.bincount(train[name], minlength=SIZES[name])[columns[name]].astype(np.float64)
        if own:
            total, count = total - (train["rating"] - overall), count - 1
        features.append(total / (count + strength))
    return np.stack(features, 1)


class WeeklyRatings(nn.Cell):
    """The log-rate of a film's ratings in a week, [B, 1]."""

    def __init__(self, mean: float, dim: int = 8) -> None:
        super().__init__()
        self.film = nn.Embedding(SIZES["item"], dim, embedding_table=Normal(0.05))
        self.year = nn.Embedding(SIZES["year"], dim, embedding_table=Normal(0.05))
        self.hidden = nn.Dense(2 * dim + SIZES["genres"] + LAGS + 1, 32)
        self.top = nn.Dense(32, 1, weight_init=Normal(0.05))
        self.mean = Parameter(Tensor([np.log(mean)], mindspore.float32), name="mean")

    def construct(self, item, year, genres, before):
        """Return the log-rate; `before` is log(1 + count) of the four weeks before and of the mean so far, [B, 5]."""
        features = ops.concat((self.film(item), self.year(year), genres, before), 1)
        return self.mean + self.top(ops.relu(self.hidden(features)))


def weekly(columns: Columns) -> list[dict[str, np.ndarray]]:
    """Return the rows of each whole week from the fifth on, oldest first: one for every film."""
    films, first = np.unique(columns["item"], return_index=True)
    week = ((columns["timestamp"] - columns["timestamp"].min()) // WEEK).astype(np.int64)
    counts = np.zeros((week.max(), SIZES["item"]))  # the last week is not whole
    whole = week < len(counts)
    np.add.at(counts, (week[whole], columns["item"][whole]), 1)
    rows = []
    for now in range(LAGS, len(counts)):
        known = np.concatenate((counts[now - LAGS : now, films][::-1], counts[:now, films].mean(axis=0)[None]))
        before = np.log1p(known.T).astype(np.float32)
        given = {"item": films.astype(np.int32), "year": columns["year"][first], "genres": columns["genres"][first]}
        rows.append({**given, "before": before, "count": counts[now, films].astype(np.float32)[:, None]})
    return rows


def counts(columns: Columns, seed: int, epochs: int) -> dict[str, dict[str, float]]:
    """Return Poisson deviance, mean absolute error and bias of the newest weeks, of the network and its rivals."""
    mindspore.set_seed(seed)
    np.random.seed(seed)
    weeks = weekly(columns)
    held = max(1, round(len(weeks) / 10))
    train, valid, test = map(joined, (weeks[: -2 * held], weeks[-2 * held : -held], weeks[-held:]))
    learned = joined(weeks[:-held])
    mean = float(learned["count"].mean())
    names = ["poisson_deviance", "mae", "bias"]
    optimizer = ("adamweightdecay", {"learning_rate": RATE, "weight_decay": 0.02})
    trainer = Trainer(WeeklyRatings(mean), nn.PoissonNLLLoss(), optimizer, names)
    trainer.fit(train, epochs, valid, callbacks=[stopping()], batch_size=512)
    results = trainer.evaluate(test, batch_size=2048)
    asked = test["count"][:, 0].astype(np.float64)
    of_film = np.bincount(learned["item"], learned["count"][:, 0], minlength=SIZES["item"])
    shown = np.bincount(learned["item"], minlength=SIZES["item"])
    regression = PoissonRegressor(alpha=1e-3, max_iter=1000).fit(learned["before"], learned["count"][:, 0])
    rivals = {
        "mean count": np.full(len(asked), mean),
        "film's mean count": ((of_film + mean) / (shown + 1))[test["item"]],
        "Poisson regression": regression.predict(test["before"]),
    }
    measured = {name: count_figures(asked, rates) for name, rates in rivals.items()}
    return {**measured, "network, counts": {name: results[name] for name in names}}


def joined(weeks: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the rows of weeks one after the other."""
    return {name: np.concatenate([week[name] for week in weeks]) for name in weeks[0]}


def count_figures(counts: np.ndarray, rates: np.ndarray) -> dict[str, float]:
    """Return deviance, mean absolute error and bias of rates, float64 [N]."""
    return {
        "poisson_deviance": float(mean_poisson_deviance(counts, rates)),
        "mae": float(mean_absolute_error(counts, rates)),
        "bias": float((rates - counts).mean()),
    }


def stopping() -> EarlyStopping:
    """Return what ends a training by its validation loss, with the best weights."""
    return EarlyStopping("val_loss", patience=3, restore_best=True)
