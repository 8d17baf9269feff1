"""Quality on MovieLens-100K: rating as a number, as one of 5 classes, and "liked" with "loved" as two tasks.

    python benchmarks/quality.py

Offline, on a random tenth and on the newest tenth, beside the mean rating, user and film means and a matrix
factorization fitted by alternating least squares (Y. Koren, R. Bell, C. Volinsky, "Matrix Factorization Techniques for
Recommender Systems", IEEE Computer 2009); online, in the order of time, every rating scored before it is learned. Of
each kind of target the network, features and numbers are the same; nothing was tuned on the rows that are measured.
Prints tables and ends with exit code 1 when the network does not beat the means.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from examples.movielens import SIZES, load  # noqa: E402
from examples.rating import Columns, Rater, arrays  # noqa: E402
from trainer import EarlyStopping, MultiTaskLoss, Trainer, Window  # noqa: E402
from trainer.streams import ReplayStream  # noqa: E402

WINDOW = Window(rows=10_000)
TARGETS = ("rating", "classes", "tasks")
TITLES = {"random": "A random tenth", "time": "The newest tenth", "stream": "A stream, in the order of time"}
PARTS = tuple(TITLES)


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


def split(columns: Columns, how: str, share: float = 0.1, seed: int = 0) -> tuple[Columns, Columns, Columns]:
    """Return training, validation and test rows; ids that training lacks become 0, "unknown".

    A random split draws the test rows, a split by time takes the newest; validation is drawn from the others the same
    way.
    """
    rows = len(columns["rating"])
    order = np.random.default_rng(seed).permutation(rows) if how == "random" else np.arange(rows)
    ends = [0, int(rows * (1 - 1.5 * share)), int(rows * (1 - share)), rows]
    parts = [{name: column[np.sort(order[a:b])] for name, column in columns.items()} for a, b in pairwise(ends)]
    for name in ("user", "item"):
        known = np.zeros(SIZES[name], bool)
        known[parts[0][name]] = True
        for part in parts[1:]:
            part[name] = np.where(known[part[name]], part[name], np.int32(0))
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


def offline(columns: Columns, how: str, seed: int, epochs: int) -> dict[str, dict[str, float]]:
    """Return the figures of a split, "random" or "time"."""
    parts = split(columns, how)
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


def online(columns: Columns, seed: int) -> dict[str, dict[str, float]]:
    """Return the figures of the streams."""
    figures = {f"network, {target}": streamed(target, columns, seed) for target in TARGETS}
    return {"mean or commonest class so far": progressive_means(columns), **figures}


SHOWN = ("rmse", "accuracy", "log_loss", "liked_auc", "loved_auc")


def table(figures: Mapping[str, Mapping[str, float]]) -> str:
    """Return the figures of one part as a Markdown table."""
    lines = [f"| | {' | '.join(SHOWN)} |", "| --- |" + " --- |" * len(SHOWN)]
    for name, values in figures.items():
        cells = [f"{values[metric]:.4f}" if metric in values else "" for metric in SHOWN]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def passed(part: str, figures: Mapping[str, Any]) -> bool:
    """Return whether the network beats what needs no network."""
    rating, classes, tasks = (figures[f"network, {target}"] for target in TARGETS)
    if part == "stream":
        plain = figures["mean or commonest class so far"]
        good = rating["rmse"] < plain["rmse"] and classes["accuracy"] > plain["accuracy"]
    else:
        good = rating["rmse"] < figures["mean"]["rmse"]
        good = good and classes["log_loss"] < figures["commonest class"]["log_loss"]
    return good and min(tasks["liked_auc"], tasks["loved_auc"]) > 0.5


def main(argv: Sequence[str] | None = None, show: Callable[[str], None] = print) -> int:
    """Measure, print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument("--rows", type=int, help="the oldest rows alone")
    parser.add_argument("--epochs", type=int, default=20, help="most epochs; the validation loss stops before")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("runs/quality"), help="folder for the figures")
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING)
    columns = {name: column[: given.rows] for name, column in load().items()}
    given.output.mkdir(parents=True, exist_ok=True)
    good = True
    for part in given.parts:
        began = time.monotonic()
        figures = online(columns, given.seed) if part == "stream" else offline(columns, part, given.seed, given.epochs)
        (given.output / f"{part}.json").write_text(json.dumps(figures, indent=1))
        show(f"\n{TITLES[part]} ({time.monotonic() - began:.0f} s)\n\n{table(figures)}")
        good = good and passed(part, figures)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
