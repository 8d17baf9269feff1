"""AUC of rows kept as float16, and of row-wise moments, beside float32 rows: MovieLens-100K and Criteo-shaped data.

    python benchmarks/quality_row_types.py
    python benchmarks/quality_row_types.py --seeds 1 2 3 --data movielens

MovieLens: six columns with a table of width 16 each, two epochs, the newest tenth held out. Criteo-shaped: 26 columns
of Zipf(1.3) ids below 10^6 and 13 numbers, labels drawn from a logistic model with a weight for every id and number,
tables of width 8, one epoch of 200,000 rows, 100,000 others held out. All ways see the same rows in the same order,
from the same first weights but for their rounding; a seed decides on the weights. Prints each AUC, the mean difference
from float32 and the largest one; ends with exit code 1 when float16 with the same moments differs by more than 0.0005
in the mean.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn, ops

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.nets import dense_weights, mindspore_mlp  # noqa: E402
from examples.baselines import auc  # noqa: E402
from examples.movielens import load, split_by_time  # noqa: E402
from trainer import Trainer  # noqa: E402
from trainer.embedding import EmbeddingGroup, RowAdam  # noqa: E402

PLAIN, HALVES, ROW_WISE, HALVES_ROW_WISE = "float32", "float16", "float32, row-wise", "float16, row-wise"
# each way and the one of float32 that it is compared with
WAYS = {HALVES: PLAIN, HALVES_ROW_WISE: ROW_WISE, ROW_WISE: PLAIN, PLAIN: PLAIN}
MOST = 0.0005
HIDDEN, BATCH = 64, 512
MOVIELENS = ("user", "item", "age", "gender", "occupation", "year")
FIELDS, NUMBERS, VOCABULARY, TRAINED, TESTED = 26, 13, 1_000_000, 200_000, 100_000
Rows = dict[str, np.ndarray]  # ids [n, fields], numbers [n, numbers], label [n]


class Net(nn.Cell):
    """A perceptron over the vectors of all columns and the numbers."""

    def __init__(self, dim: int, fields: int, numbers: int, options: dict[str, Any]) -> None:
        super().__init__()
        self.embedding = EmbeddingGroup(dim, [f"field{i}" for i in range(fields)], mode="sparse", **options)
        self.deep = mindspore_mlp(dense_weights((fields * dim + numbers, HIDDEN, 1), options["seed"]))

    def construct(self, ids, numbers):
        """Return a logit for each row."""
        return self.deep(ops.concat((self.embedding(ids).reshape(ids.shape[0], -1), numbers), 1))


def movielens() -> tuple[Rows, Rows, int, int]:
    """Return training rows, test rows, the width of vectors and the epochs."""
    parts = []
    for part in split_by_time(load()):
        ids = np.stack([part[name] for name in MOVIELENS], 1).astype(np.int64)
        parts.append({"ids": ids, "numbers": part["genres"], "label": part["label"]})
    return parts[0], parts[1], 16, 2


def criteo_shaped() -> tuple[Rows, Rows, int, int]:
    """Return the same of drawn rows."""
    rng = np.random.default_rng(0)
    rows = TRAINED + TESTED
    ids = rng.zipf(1.3, (rows, FIELDS)) % VOCABULARY
    numbers = rng.standard_normal((rows, NUMBERS), dtype=np.float32)
    weights = 0.4 * rng.standard_normal((FIELDS, VOCABULARY), dtype=np.float32)
    logits = sum(weights[i, ids[:, i]] for i in range(FIELDS)) + numbers @ (0.3 * rng.standard_normal(NUMBERS)) - 1
    label = (rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    table = {"ids": ids, "numbers": numbers, "label": label}
    train = {name: column[:TRAINED] for name, column in table.items()}
    return train, {name: column[TRAINED:] for name, column in table.items()}, 8, 1


DATA: dict[str, Callable[[], tuple[Rows, Rows, int, int]]] = {"movielens": movielens, "criteo-shaped": criteo_shaped}


def measured(way: str, data: tuple[Rows, Rows, int, int], seed: int) -> float:
    """Return the AUC of one way on the test rows."""
    train, test, dim, epochs = data
    mindspore.set_seed(seed)
    dtype, _, row_wise = way.partition(", ")
    options = {"dtype": dtype, "optimizer": RowAdam(row_wise=bool(row_wise)), "seed": seed}
    network = Net(dim, train["ids"].shape[1], train["numbers"].shape[1], options)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 2e-3), seed=seed)
    trainer.fit(train, epochs, batch_size=BATCH, callbacks=[])
    scores = trainer.predict({name: test[name] for name in ("ids", "numbers")}, batch_size=4096)
    return auc(test["label"], np.asarray(scores, np.float64).reshape(-1))


def differences(figures: dict[str, list[float]]) -> dict[str, np.ndarray]:
    """Return each way's AUC over the seeds less that of the way that it is compared with."""
    return {way: np.subtract(figures[way], figures[other]) for way, other in WAYS.items() if way != other}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    given = parser.parse_args(argv)
    apart = False
    for name in given.data:
        data = DATA[name]()
        figures = {way: [measured(way, data, seed) for seed in given.seeds] for way in WAYS}
        found = differences(figures)
        print(f"{name}, {len(given.seeds)} seeds:")
        for way, values in figures.items():
            line = f"  {way:18} {np.mean(values):.5f} ({', '.join(f'{value:.5f}' for value in values)})"
            if way in found:
                own = found[way]
                line += f"; {own.mean():+.5f} of {WAYS[way]}, at most {np.abs(own).max():.5f}"
            print(line, flush=True)
        apart |= any(abs(found[way].mean()) > MOST for way in (HALVES, HALVES_ROW_WISE))
    return int(apart)


if __name__ == "__main__":
    sys.exit(main())
