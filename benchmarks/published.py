"""`bpr`, `sasrec` and `hstu` on MovieLens-100K beside the figures that RecBole publishes, ranked over all items.

    python -m benchmarks.published [--models bpr sasrec sasrec-torch gsasrec hstu] [--seeds 1 2 3]

`sasrec-torch` is `sasrec` in PyTorch, in an environment of its own that its first use makes.

RecBole's quick starts (docs/source/get_started/started/general.rst and sequential.rst of github.com/RUCAIBox/RecBole):
every rating is a choice, nothing is filtered out. BPR: each user's ratings are divided at random, 8:1:1; the films of
the parts before are left out of the ranking. GRU4Rec: the newest rating of each user is tested on, the one before it
validated on, histories of 50; no film is left out of the ranking.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import set_seed

from benchmarks import peers
from examples.movielens import load
from trainer import Trainer
from trainer.data.finite.interactions import interactions
from trainer.features import Categorical, Features, ListFeature
from trainer.models import BPR, GBCE, HSTU, AllItems, BPRLoss, InBatchSoftmax, SASRec

PUBLISHED = {
    "bpr": ("BPR, published by RecBole", {"recall": 0.2523, "mrr": 0.4855, "ndcg": 0.292, "hit": 0.7953}),
    "sasrec": ("GRU4Rec, published by RecBole", {"recall": 0.1103, "mrr": 0.0337, "ndcg": 0.0513, "hit": 0.1103}),
}
MODELS = ("bpr", "sasrec", "sasrec-torch", "gsasrec", "hstu")  # gsasrec: sasrec with GBCE
LENGTH = 50  # of a history
ROOT = Path(__file__).resolve().parent.parent


def measured(model: str, seed: int, epochs: int) -> dict[str, float]:
    """Train one model, stopped by ndcg@10 of the validation rows; return the metrics of the test rows."""
    set_seed(seed)
    columns = load()
    rows = {"user": columns["user"].astype(np.int64), "film": columns["item"].astype(np.int64)}
    rows["time"] = columns["timestamp"]
    ways: dict[str, Any] = {"by": "random", "seed": seed} if model == "bpr" else {"history": "history"}
    drawn = {"train": {"negatives": 8}} if model == "bpr" else {}
    parts = [
        interactions(rows, part, item="film", time="time", **ways, **drawn.get(part, {}))
        for part in ("train", "valid", "test")
    ]
    if model == "sasrec-torch":
        return by_torch(dict(zip(("train", "valid", "test"), parts, strict=True)), rows["film"], seed, epochs)
    catalogue = {"film": rows["film"]}
    ranked = [
        AllItems(part, catalogue, "film", "user", parts[:index] if model == "bpr" else None)
        for index, part in enumerate(parts)
    ]
    film = {"dtype": "int64", "table": "film"}
    optimizer: dict[str, Any]
    loss: Any
    if model == "bpr":
        # dense tables, so that Adam and its weight decay reach all rows in each step, as RecBole's does; RecBole's
        # first weights have standard deviations of 0.045 and 0.034, by which Xavier's rule takes these tables' sizes
        dense = {"dtype": "int64", "options": {"mode": "dense", "scale": 0.04}}
        user = Categorical("user", vocabulary=np.unique(rows["user"]).tolist(), **dense)
        film = {"table": "film", "vocabulary": np.unique(rows["film"]).tolist(), **dense}
        negatives = ListFeature("negatives", pooling=None, **film)
        features = Features([user, Categorical("film", **film), negatives], label="film")
        network, loss = BPR(features, ["film"], 64, negatives="negatives"), BPRLoss()
        optimizer, batch, every, patience = {"learning_rate": 2e-3, "weight_decay": 3e-5}, 2048, 5, 3
    else:
        history = ListFeature("history", pooling=None, max_length=LENGTH, **film)
        features = Features([Categorical("film", **film), history], label="film")
        kind = HSTU if model == "hstu" else SASRec
        network = kind(features, heads=2, dropout=0.4)
        loss = GBCE(len(np.unique(rows["film"]))) if model == "gsasrec" else InBatchSoftmax(1.0)
        # ten epochs without a better validation end a training, as in RecBole
        optimizer, batch, every, patience = {"learning_rate": 1e-3}, 32, 2, 5
    trainer = Trainer(network, loss, ("adam", optimizer), features=features, seed=seed)
    best: tuple[float, dict[str, float]] = (-1.0, {})
    waited = 0
    for _ in range(0, epochs, every):
        trainer.fit(parts[0], epochs=every, batch_size=batch, callbacks=[])
        valid = ranked[1](trainer)["ndcg@10"]
        if valid > best[0]:
            best, waited = (valid, ranked[2](trainer)), 0
        elif (waited := waited + 1) >= patience:
            break
    return best[1]


def by_torch(parts: Mapping[str, Mapping[str, Any]], films: np.ndarray, seed: int, epochs: int) -> dict[str, float]:
    """Return the metrics of the same network in PyTorch."""
    known = np.unique(films)
    arrays: dict[str, Any] = {"items": len(known)}
    for part, rows in parts.items():
        history, following = np.zeros((2, len(rows["film"]), LENGTH), np.int64)
        for row, (before, film) in enumerate(zip(rows["history"], rows["film"], strict=True)):
            numbers = 1 + np.searchsorted(known, [*before[-LENGTH:], film])
            history[row, : len(numbers) - 1], following[row, : len(numbers) - 1] = numbers[:-1], numbers[1:]
        arrays |= {f"{part}_history": history, f"{part}_following": following}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        np.savez(path, **arrays)
        command = [str(peers.python()), "-m", "benchmarks.published_torch", str(path), str(seed), str(epochs)]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table; return 1 if `bpr` or `sasrec` lies below what is published or below its PyTorch twin.

    Below the twin is a mean that is lower by more than the seeds of either are apart.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=100)
    given = parser.parse_args(argv)
    names, below = ("hit", "recall", "ndcg", "mrr"), False
    gains: dict[str, np.ndarray] = {}
    print("| | hit@10 | recall@10 | ndcg@10 | mrr@10 |\n| --- | --- | --- | --- | --- |")
    for model in given.models:
        runs = []
        for seed in given.seeds:
            runs.append(measured(model, seed, given.epochs))
            cells = [f"{runs[-1][f'{name}@10']:.4f}" for name in names]
            print(f"| `{model}`, seed {seed} | {' | '.join(cells)} |", flush=True)
        values = {name: np.array([run[f"{name}@10"] for run in runs]) for name in names}
        gains[model] = values["ndcg"]
        cells = [f"{values[name].mean():.4f} ± {values[name].std():.4f}" for name in names]
        print(f"| `{model}`, {len(runs)} seeds | {' | '.join(cells)} |", flush=True)
        if model in PUBLISHED:
            label, bar = PUBLISHED[model]
            print(f"| {label} | {' | '.join(f'{bar[name]:.4f}' for name in names)} |", flush=True)
            below |= any(values[name].mean() < bar[name] for name in ("recall", "ndcg"))
    if {"sasrec", "sasrec-torch"} <= set(gains):
        ours, theirs = gains["sasrec"], gains["sasrec-torch"]
        below |= theirs.mean() - ours.mean() > max(np.ptp(ours), np.ptp(theirs))
    return int(below)


if __name__ == "__main__":
    sys.exit(main())
