"""`bpr`, `sasrec` and `hstu` on MovieLens-100K beside the figures that RecBole publishes, ranked over all items.

    python -m benchmarks.published [--models bpr sasrec gsasrec hstu] [--seeds 1 2 3]

RecBole's quick starts (docs/source/get_started/started/general.rst and sequential.rst of github.com/RUCAIBox/RecBole):
every rating is a choice, nothing is filtered out. BPR: each user's ratings are divided at random, 8:1:1; the films of
the parts before are left out of the ranking. GRU4Rec: the newest rating of each user is tested on, the one before it
validated on, histories of 50; no film is left out of the ranking.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import set_seed

from examples.movielens import load
from trainer import Trainer
from trainer.data.finite.interactions import interactions
from trainer.features import Categorical, Features, ListFeature
from trainer.models import BPR, GBCE, HSTU, AllItems, BPRLoss, InBatchSoftmax, SASRec

PUBLISHED = {
    "bpr": ("BPR, published by RecBole", {"recall": 0.2523, "mrr": 0.4855, "ndcg": 0.292, "hit": 0.7953}),
    "sasrec": ("GRU4Rec, published by RecBole", {"recall": 0.1103, "mrr": 0.0337, "ndcg": 0.0513, "hit": 0.1103}),
}
MODELS = ("bpr", "sasrec", "gsasrec", "hstu")  # gsasrec: sasrec with GBCE


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
        history = ListFeature("history", pooling=None, max_length=50, **film)
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


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table; return 1 if `bpr` or `sasrec` lies below what is published."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=100)
    given = parser.parse_args(argv)
    names, below = ("hit", "recall", "ndcg", "mrr"), False
    print("| | hit@10 | recall@10 | ndcg@10 | mrr@10 |\n| --- | --- | --- | --- | --- |")
    for model in given.models:
        runs = []
        for seed in given.seeds:
            runs.append(measured(model, seed, given.epochs))
            cells = [f"{runs[-1][f'{name}@10']:.4f}" for name in names]
            print(f"| `{model}`, seed {seed} | {' | '.join(cells)} |", flush=True)
        values = {name: np.array([run[f"{name}@10"] for run in runs]) for name in names}
        cells = [f"{values[name].mean():.4f} ± {values[name].std():.4f}" for name in names]
        print(f"| `{model}`, {len(runs)} seeds | {' | '.join(cells)} |", flush=True)
        if model in PUBLISHED:
            label, bar = PUBLISHED[model]
            print(f"| {label} | {' | '.join(f'{bar[name]:.4f}' for name in names)} |", flush=True)
            below |= any(values[name].mean() < bar[name] for name in ("recall", "ndcg"))
    return int(below)


if __name__ == "__main__":
    sys.exit(main())
