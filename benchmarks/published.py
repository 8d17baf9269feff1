"""`bpr`, `sasrec` and `hstu` on MovieLens-100K beside the figures that RecBole publishes, ranked over all items.

    python -m benchmarks.published [--models bpr sasrec hstu] [--seeds 1 2 3]

RecBole's quick starts (docs/source/get_started/started/general.rst and sequential.rst of github.com/RUCAIBox/RecBole):
every rating is a choice, nothing is filtered out. BPR: each user's ratings are divided at random, 8:1:1; the films of
the other parts are left out of the ranking. GRU4Rec: the newest rating of each user is tested on, the one before it
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
from trainer.models import BPR, HSTU, AllItems, BPRLoss, InBatchSoftmax, SASRec

PUBLISHED = {
    "bpr": ("BPR, published by RecBole", {"recall": 0.2523, "mrr": 0.4855, "ndcg": 0.292, "hit": 0.7953}),
    "sasrec": ("GRU4Rec, published by RecBole", {"recall": 0.1103, "mrr": 0.0337, "ndcg": 0.0513, "hit": 0.1103}),
}
BATCH, STEP, RATE, PATIENCE = {"bpr": 2048}, {"bpr": 3}, {"bpr": 5e-3}, 3


def measured(model: str, seed: int, epochs: int) -> dict[str, float]:
    """Train one model, stopped by ndcg@10 of the validation rows; return the metrics of the test rows."""
    set_seed(seed)
    columns = load()
    rows = {"user": columns["user"].astype(np.int64), "film": columns["item"].astype(np.int64)}
    rows["time"] = columns["timestamp"]
    ways: dict[str, Any] = {"by": "random", "seed": seed} if model == "bpr" else {"history": "history"}
    parts = [interactions(rows, part, item="film", time="time", **ways) for part in ("train", "valid", "test")]
    catalogue = {"film": rows["film"]}
    ranked = [
        AllItems(part, catalogue, "film", "user", parts[:index] if model == "bpr" else None)
        for index, part in enumerate(parts)
    ]
    film = {"dtype": "int64", "table": "film"}
    if model == "bpr":
        features = Features([Categorical("user", dtype="int64"), Categorical("film", **film)], label="film")
        network, loss = BPR(features, ["film"], 64), BPRLoss()
    else:
        history = ListFeature("history", pooling=None, max_length=50, **film)
        features = Features([Categorical("film", **film), history], label="film")
        options = {"dropout": 0.3, "normalize": True}
        network = SASRec(features, **options) if model == "sasrec" else HSTU(features, **options)
        loss = InBatchSoftmax(0.1)
    trainer = Trainer(network, loss, ("adam", {"learning_rate": RATE.get(model, 2e-3)}), features=features, seed=seed)
    best: tuple[float, dict[str, float]] = (-1.0, {})
    waited, every = 0, STEP.get(model, 5)
    for _ in range(0, epochs, every):
        trainer.fit(parts[0], epochs=every, batch_size=BATCH.get(model, 32), callbacks=[])
        valid = ranked[1](trainer)["ndcg@10"]
        if valid > best[0]:
            best, waited = (valid, ranked[2](trainer)), 0
        elif (waited := waited + 1) >= PATIENCE:
            break
    return best[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table; return 1 if `bpr` or `sasrec` lies below what is published."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=("bpr", "sasrec", "hstu"), default=["bpr", "sasrec", "hstu"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=100)
    given = parser.parse_args(argv)
    names, below = ("hit", "recall", "ndcg", "mrr"), False
    print("| | hit@10 | recall@10 | ndcg@10 | mrr@10 |\n| --- | --- | --- | --- | --- |")
    for model in given.models:
        runs = [measured(model, seed, given.epochs) for seed in given.seeds]
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
