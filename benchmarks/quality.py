"""Quality on MovieLens-100K: rating as a number, as classes, as tasks and as labels; ratings of a week as counts.

    python benchmarks/quality.py
    python benchmarks/quality.py --parts films films_stream --seeds 1 2 3
    python benchmarks/quality.py --show

Offline, on a random tenth and on the newest tenth, beside the mean rating, user and film means and a matrix
factorization fitted by alternating least squares (Y. Koren, R. Bell, C. Volinsky, "Matrix Factorization Techniques for
Recommender Systems", IEEE Computer 2009); online, in the order of time, every rating scored before it is learned. Of
each kind of target the network, features and numbers are the same; nothing was tuned on the rows that are measured.

The parts "films" and "films_stream" measure what a sequence is worth: the rating by the same network without the last
20 films of its author, with their mean, and with attention over them. Only ratings of an earlier second are known, so
there is no random split of these, and the plain rival knows them too: the author's mean so far.

The parts "labels" and "counts" measure several binary labels and counts, beside scikit-learn's regressions; see
`benchmarks/quality_targets.py`. The parts "models" and "published" measure `trainer.models` beside the same networks in
PyTorch and beside a published figure; see `benchmarks/quality_models.py`.

Figures are means and standard deviations over the seeds; the random split is drawn anew for each. Prints tables, keeps
every figure in the folder of `--output` (from which `--show` prints them again), and ends with exit code 1 when the
network does not beat the means, or the sequence not the network without it, or one target not its regression, or a
model lies behind the same network in PyTorch by more than the spread of the seeds.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import quality_models, quality_targets  # noqa: E402
from examples.last_films import SequenceRater, last_films  # noqa: E402
from examples.movielens import FEATURES, SIZES, load  # noqa: E402
from examples.rating import Columns, Rater, arrays, targets  # noqa: E402
from trainer import EarlyStopping, MultiTaskLoss, Trainer, Window  # noqa: E402
from trainer.streams import ReplayStream  # noqa: E402

WINDOW = Window(rows=10_000)
TARGETS = ("rating", "classes", "tasks")
WAYS = {"none": "without the last 20 films", "mean": "the last 20 films, mean", "attention": "the last 20, attention"}
TITLES = {
    "random": "A random tenth",
    "time": "The newest tenth",
    "stream": "A stream, in the order of time",
    "films": "The newest tenth, from the last 20 films",
    "films_stream": "A stream, from the last 20 films",
    "labels": "At least 2, 3, 4, 5 stars as four labels, a random tenth",
    "counts": "Ratings of a film in a week, the newest tenth of the weeks",
    "models": "The package's models beside the same networks in PyTorch, a random tenth of ratings other than 3",
    "published": "Ratings of five random folds, beside figures published by Surprise",
}
PARTS = tuple(TITLES)
UNKNOWN_RATE = 0.3  # of training rows whose user is hidden, so that the network learns what to say about new ones

Figures = dict[str, dict[str, float]]


def make(target: str, seed: int, rate: float = 2e-3) -> Trainer:
    """Return an untrained trainer for one kind of target."""
    mindspore.set_seed(seed)
    np.random.seed(seed)
    metrics: Any = ["rmse", "mae", "r2"]
    if target == "rating":
        network, loss = Rater(mean=3.5), nn.MSELoss()
    elif target == "classes":
        network, loss, metrics = Rater(5), nn.CrossEntropyLoss(), ["accuracy", "log_loss"]
    else:
        network, metrics = Rater(2, heads=True), ["auc", "log_loss"]
        bce = nn.BCEWithLogitsLoss
        loss = MultiTaskLoss({"liked": bce(), "loved": bce(reduction="none")}, masks={"loved": "liked"})
    return Trainer(network, loss, ("adamweightdecay", {"learning_rate": rate, "weight_decay": 0.02}), metrics)


def make_sequence(how: str, seed: int, rate: float = 2e-3) -> Trainer:
    """Return an untrained trainer of the rating that reads the last films in one of `WAYS`."""
    mindspore.set_seed(seed)
    np.random.seed(seed)
    optimizer = ("adamweightdecay", {"learning_rate": rate, "weight_decay": 0.02})
    return Trainer(SequenceRater(how, mean=3.5), nn.MSELoss(), optimizer, ["rmse", "mae", "r2"])


def split(columns: Columns, how: str, share: float = 0.1, seed: int = 0) -> tuple[Columns, Columns, Columns]:
    """Return training, validation and test rows; ids that training lacks become 0, "unknown".

    A random split draws the test rows, a split by time takes the newest; validation is drawn from the others the same
    way.
    """
    rows = len(columns["rating"])
    order = np.random.default_rng(seed).permutation(rows) if how == "random" else np.arange(rows)
    ends = [0, int(rows * (1 - 1.5 * share)), int(rows * (1 - share)), rows]
    parts = [{name: column[np.sort(order[a:b])] for name, column in columns.items()} for a, b in pairwise(ends)]
    known = {name: np.isin(np.arange(SIZES[name]), parts[0][name]) for name in ("user", "item")}
    for name, ids in (("user", "user"), ("films", "item"), ("item", "item")):
        for part in parts:
            if name in part:
                part[name] = np.where(known[ids][part[name]], part[name], np.int32(0))
    return parts[0], parts[1], parts[2]


def fitted(target: str, parts: tuple[Columns, Columns, Columns], seed: int, epochs: int) -> dict[str, float]:
    """Train, stop by the validation loss, and return the results on the test rows."""
    trainer = make(target, seed)
    stop = EarlyStopping("val_loss", patience=3, restore_best=True)
    train, valid, test = (arrays(part, target) for part in parts)
    trainer.fit(train, epochs, valid, callbacks=[stop], batch_size=512)
    return trainer.evaluate(test, batch_size=2048)


def streamed(target: str, columns: Columns, seed: int) -> dict[str, float]:
    """Learn every rating in the order of time and return the lifetime values of the windows."""
    trainer = make(target, seed)
    stream = ReplayStream(arrays(columns, target))
    trainer.online_train(stream, [], batch_size=16, sink_size=32, window=WINDOW)
    window = trainer.state.window
    return {name[9:]: value for name, value in window.items() if name.startswith("lifetime_")}


def with_films(columns: Columns) -> dict[str, np.ndarray]:
    """Return what a network that reads the last films takes, and the rating."""
    features = {name: columns[name] for name in (*FEATURES, "films", "stars")}
    return {**features, **targets(columns)["rating"]}


def fitted_sequence(how: str, parts: tuple[Columns, Columns, Columns], seed: int, epochs: int) -> dict[str, float]:
    """Do what `fitted` does with the network that reads the last films; some users are hidden in training."""
    trainer = make_sequence(how, seed)
    stop = EarlyStopping("val_loss", patience=3, restore_best=True)
    train, valid, test = map(with_films, parts)
    hidden = np.random.default_rng(seed).random(len(train["user"])) < UNKNOWN_RATE
    train["user"] = np.where(hidden, np.int32(0), train["user"])
    trainer.fit(train, epochs, valid, callbacks=[stop], batch_size=512)
    return trainer.evaluate(test, batch_size=2048)


def streamed_sequence(how: str, columns: Columns, seed: int) -> dict[str, float]:
    """Do what `streamed` does with the network that reads the last films."""
    trainer = make_sequence(how, seed)
    trainer.online_train(ReplayStream(with_films(columns)), [], batch_size=16, sink_size=32, window=WINDOW)
    return {name[9:]: value for name, value in trainer.state.window.items() if name.startswith("lifetime_")}


def means(train: Columns, test: Columns) -> dict[str, float]:
    """Return the RMSE of the mean rating, and of user and film means (shrunk towards the overall one)."""
    overall = train["rating"].mean()
    biases: dict[str, np.ndarray] = {}
    rest = train["rating"] - overall
    for name, strength in (("item", 25.0), ("user", 10.0)):
        total = np.bincount(train[name], weights=rest, minlength=SIZES[name])
        biases[name] = total / (np.bincount(train[name], minlength=SIZES[name]) + strength)
        rest = rest - biases[name][train[name]]
    both = overall + biases["item"][test["item"]] + biases["user"][test["user"]]
    return {"mean": rmse(test, np.full(len(test["rating"]), overall)), "user and film means": rmse(test, both)}


def factorization(train: Columns, test: Columns, rank: int = 10, strength: float = 12.0, sweeps: int = 12) -> float:
    """Return the RMSE of a matrix factorization by alternating ridge regressions over biases and vectors."""
    overall = float(train["rating"].mean())
    rng = np.random.default_rng(0)
    sides = ("user", "item")
    # a row is (bias, 1's place for the other side's bias, vector)
    bias = {name: np.zeros(SIZES[name]) for name in sides}
    vector = {name: rng.normal(0, 0.1, (SIZES[name], rank)) for name in sides}
    rows_of = {name: np.split(np.argsort(train[name], kind="stable"), np.cumsum(np.bincount(
        train[name], minlength=SIZES[name]))[:-1]) for name in sides}  # fmt: skip
    for _ in range(sweeps):
        for name, other in (sides, sides[::-1]):
            for key, rows in enumerate(rows_of[name]):
                if not len(rows):
                    continue
                far = train[other][rows]
                x = np.concatenate((np.ones((len(rows), 1)), vector[other][far]), axis=1)
                y = train["rating"][rows] - overall - bias[other][far]
                solved = np.linalg.solve(x.T @ x + strength * np.eye(rank + 1), x.T @ y)
                bias[name][key], vector[name][key] = solved[0], solved[1:]
    user, item = test["user"], test["item"]
    unknown = {name: np.bincount(train[name], minlength=SIZES[name]) == 0 for name in sides}
    product = (vector["user"][user] * vector["item"][item]).sum(axis=1)
    product[unknown["user"][user] | unknown["item"][item]] = 0.0
    return rmse(test, overall + bias["user"][user] + bias["item"][item] + product)


def rmse(test: Columns, predictions: np.ndarray) -> float:
    """Return the root mean squared error of predictions kept within 1 to 5."""
    return float(np.sqrt(np.mean((np.clip(predictions, 1, 5) - test["rating"]) ** 2)))


def progressive_means(columns: Columns) -> dict[str, float]:
    """Return what a stream's plainest forecasts reach in the order of time: the mean so far, the commonest class."""
    rating = columns["rating"].astype(np.float64)
    before = np.concatenate(([3.5], np.cumsum(rating)[:-1] / np.arange(1, len(rating))))
    counts = np.cumsum(np.eye(5)[(rating - 1).astype(int)], axis=0)
    commonest = np.concatenate(([3], counts[:-1].argmax(axis=1)))
    return {"rmse": rmse(columns, before), "accuracy": float((commonest == rating - 1).mean())}


def means_so_far(columns: Columns) -> np.ndarray:
    """Return, for each rating, mean + film's bias + author's bias, of what was known the second before.

    The biases are means of what is left of ratings, over their number and 25 for films, 10 for people.
    """
    sums = {name: np.zeros(SIZES[name]) for name in ("item", "user")}
    counts = {name: np.zeros(SIZES[name]) for name in ("item", "user")}
    forecasts = np.empty(len(columns["rating"]))
    total, pending = 3.5, list[tuple[int, int, float]]()
    rows = zip(*(columns[name].tolist() for name in ("user", "item", "rating", "timestamp")), strict=True)
    before = None
    for row, (user, item, rating, time_) in enumerate(rows):
        if time_ != before:
            for u, i, r in pending:
                sums["user"][u] += r - total - sums["item"][i] / (counts["item"][i] + 25.0)
                sums["item"][i] += r - total
                counts["user"][u] += 1
                counts["item"][i] += 1
            pending, before = [], time_
        film = sums["item"][item] / (counts["item"][item] + 25.0)
        forecasts[row] = total + film + sums["user"][user] / (counts["user"][user] + 10.0)
        pending.append((user, item, rating))
    return forecasts


def offline(columns: Columns, how: str, seed: int, epochs: int) -> Figures:
    """Return the figures of a split, "random" or "time"."""
    parts = split(columns, how, seed=seed)
    learned = {name: np.concatenate([parts[0][name], parts[1][name]]) for name in columns}
    figures = {name: {"rmse": value} for name, value in means(learned, parts[2]).items()}
    figures["matrix factorization"] = {"rmse": factorization(learned, parts[2])}
    share = np.bincount((learned["rating"] - 1).astype(int), minlength=5) / len(learned["rating"])
    test = (parts[2]["rating"] - 1).astype(int)
    figures["commonest class"] = {
        "accuracy": float((test == share.argmax()).mean()),
        "log_loss": float(-np.log(share[test]).mean()),
    }
    return {**figures, **{f"network, {target}": fitted(target, parts, seed, epochs) for target in TARGETS}}


def online(columns: Columns, seed: int) -> Figures:
    """Return the figures of the streams."""
    figures = {f"network, {target}": streamed(target, columns, seed) for target in TARGETS}
    return {"mean or commonest class so far": progressive_means(columns), **figures}


def sequences(columns: Columns, how: str, seed: int, epochs: int) -> Figures:
    """Return what the last films are worth, "time" for the newest tenth, "stream" for all in the order of time."""
    columns = {**columns, **last_films(columns)}
    forecasts = means_so_far(columns)
    if how == "stream":
        figures = {name: streamed_sequence(way, columns, seed) for way, name in WAYS.items()}
        return {"film's and author's means so far": {"rmse": rmse(columns, forecasts)}, **figures}
    parts = split(columns, how)
    newest = len(parts[2]["rating"])
    figures = {name: fitted_sequence(way, parts, seed, epochs) for way, name in WAYS.items()}
    return {"film's and author's means so far": {"rmse": rmse(parts[2], forecasts[-newest:])}, **figures}


def measured(part: str, columns: Columns, seed: int, epochs: int) -> Figures:
    """Return the figures of one part for one seed."""
    if part == "stream":
        return online(columns, seed)
    if part in ("films", "films_stream"):
        return sequences(columns, "stream" if part == "films_stream" else "time", seed, epochs)
    if part == "labels":
        return quality_targets.labels(split(columns, "random", seed=seed), seed, epochs)
    if part == "counts":
        return quality_targets.counts(columns, seed, epochs)
    if part == "models":
        return quality_models.beside_torch(columns, seed, min(epochs, quality_models.EPOCHS))
    if part == "published":
        return quality_models.published(seed, epochs)
    return offline(columns, part, seed, epochs)


SHOWN = (
    "rmse",
    "accuracy",
    "auc",
    "auc, torch",
    "log_loss",
    "liked_auc",
    "loved_auc",
    "poisson_deviance",
    "mae",
    "bias",
)
HIDDEN = ("mae", "bias")  # but where counts are measured


def averaged(runs: Sequence[Figures]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return mean and standard deviation (0 for one) over runs that differ in their seed."""
    together = {}
    for name, values in runs[0].items():
        columns = {metric: np.array([run[name][metric] for run in runs]) for metric in values}
        together[name] = {m: (float(c.mean()), float(c.std(ddof=len(runs) > 1))) for m, c in columns.items()}
    return together


def table(runs: Sequence[Figures]) -> str:
    """Return the figures of one part as a Markdown table: means, and standard deviations where they are not 0."""
    together = averaged(runs)
    shown = [metric for metric in SHOWN if any(metric in values for values in together.values())]
    if "poisson_deviance" not in shown:
        shown = [metric for metric in shown if metric not in HIDDEN]
    lines = [f"| | {' | '.join(shown)} |", "| --- |" + " --- |" * len(shown)]
    for name, values in together.items():
        cells = []
        for metric in shown:
            mean, spread = values.get(metric, (0.0, 0.0))
            cells.append(f"{mean:.4f}" + (f" ± {spread:.4f}" if spread >= 5e-5 else "") if metric in values else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def passed(part: str, runs: Sequence[Figures]) -> bool:
    """Return whether the network beats what needs no network, and a sequence the network without it."""
    means = {name: {m: value for m, (value, _) in found.items()} for name, found in averaged(runs).items()}
    if part in ("films", "films_stream"):
        return all(means[WAYS[way]]["rmse"] < means[WAYS["none"]]["rmse"] for way in ("mean", "attention"))
    if part == "labels":
        return means["network, four labels"]["log_loss"] < means["logistic regression"]["log_loss"]
    if part == "counts":
        return means["network, counts"]["poisson_deviance"] < means["Poisson regression"]["poisson_deviance"]
    if part == "models":
        return not quality_models.behind_torch(runs)
    if part == "published":
        return quality_models.reproduced(means)
    rating, classes, tasks = (means[f"network, {target}"] for target in TARGETS)
    if part == "stream":
        plain = means["mean or commonest class so far"]
        good = rating["rmse"] < plain["rmse"] and classes["accuracy"] > plain["accuracy"]
    else:
        good = rating["rmse"] < means["mean"]["rmse"]
        good = good and classes["log_loss"] < means["commonest class"]["log_loss"]
    return good and min(tasks["liked_auc"], tasks["loved_auc"]) > 0.5


def main(argv: Sequence[str] | None = None, show: Callable[[str], None] = print) -> int:
    """Measure, print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument("--rows", type=int, help="the oldest rows alone")
    parser.add_argument("--epochs", type=int, default=20, help="most epochs; the validation loss stops before")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--show", action="store_true", help="measure nothing, print what the folder holds")
    parser.add_argument("--output", type=Path, default=Path("runs/quality"), help="folder for the figures")
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING)
    columns = {name: column[: given.rows] for name, column in load().items()}
    given.output.mkdir(parents=True, exist_ok=True)
    good = True
    for part in given.parts:
        file = given.output / f"{part}.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        began = time.monotonic()
        for seed in () if given.show else given.seeds:
            known[str(seed)] = measured(part, columns, seed, given.epochs)
            file.write_text(json.dumps(known, indent=1))
        seeds = sorted(known, key=int) if given.show else [str(seed) for seed in given.seeds]
        if not seeds:
            show(f"\n{TITLES[part]}: nothing was measured yet")
            continue
        runs = [known[seed] for seed in seeds]
        took = "" if given.show else f" ({time.monotonic() - began:.0f} s)"
        show(f"\n{TITLES[part]}, {len(runs)} seeds{took}\n\n{table(runs)}")
        good = good and passed(part, runs)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
