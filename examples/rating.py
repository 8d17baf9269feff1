"""Ratings of MovieLens-100K as a number, as one of five classes, or as two tasks.

The tasks are "liked" (4 or 5 stars) and, among liked films, "loved" (5 stars). `configs/rating_movielens_online.yaml`
learns the number from a stream; `benchmarks/quality.py` measures all three forms.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal

from examples.movielens import FEATURES, SIZES, load
from trainer.streams import ReplayStream

Columns = Mapping[str, np.ndarray]


class Rater(nn.Cell):
    """Biases, the product of user and film vectors, and a perceptron on all features.

    Args:
        outputs: number of outputs.
        mean: initial value of the outputs.
        heads: whether to return the two outputs as separate tensors [B, 1], one per task, instead of one tensor
            [B, outputs].
        dim: length of the embedding vectors.
        more: number of additional inputs per row, which `rate` receives.
    """

    def __init__(self, outputs: int = 1, mean: float = 0.0, heads: bool = False, dim: int = 16, more: int = 0) -> None:
        super().__init__()
        self.heads = heads
        names = [name for name in FEATURES if name != "genres"]
        self.vectors = nn.CellList([nn.Embedding(SIZES[name], dim, embedding_table=Normal(0.05)) for name in names])
        self.biases = nn.CellList([nn.Embedding(SIZES[name], outputs, embedding_table="zeros") for name in names])
        self.genres = nn.Dense(SIZES["genres"], dim)
        self.hidden = nn.Dense((len(names) + 2) * dim + more, 64)
        self.drop = nn.Dropout(p=0.3)
        self.top = nn.Dense(64 + dim + more, outputs, weight_init=Normal(0.05))
        self.mean = Parameter(Tensor(np.full(outputs, mean, np.float32)), name="mean")

    def construct(self, user, item, age, gender, occupation, genres, year):
        """Return the outputs."""
        return self.rate((user, item, age, gender, occupation, year), genres, ())

    def rate(self, ids, genres, more):
        """Return the outputs.

        Args:
            ids: columns of ids, each [B].
            genres: shape [B, 19].
            more: tuple of additional inputs, each [B, n].
        """
        vectors = ()
        total = self.mean
        for place, column in enumerate(ids):
            vectors += (self.vectors[place](column),)
            total = total + self.biases[place](column)
        product = vectors[0] * vectors[1]
        features = ops.concat((*vectors, self.genres(genres), product, *more), 1)
        hidden = self.drop(ops.relu(self.hidden(features)))
        total = total + self.top(ops.concat((hidden, product, *more), 1))
        return (total[:, 0:1], total[:, 1:2]) if self.heads else total


def targets(columns: Columns) -> dict[str, dict[str, np.ndarray]]:
    """Return the label columns of each kind of target, by name."""
    rating = columns["rating"]
    liked = (rating >= 4).astype(np.float32)
    return {
        "rating": {"rating": rating[:, None].astype(np.float32)},
        "classes": {"stars": (rating - 1).astype(np.int32)},
        "tasks": {"liked": liked, "loved": (rating == 5).astype(np.float32)},
    }


def arrays(columns: Columns, target: str) -> dict[str, np.ndarray]:
    """Return features and labels of one kind of target."""
    return {**{name: columns[name] for name in FEATURES}, **targets(columns)[target]}


def stream(target: str = "rating", rows: int | None = None) -> ReplayStream:
    """Return the ratings as a stream ordered by time, with one kind of target.

    Args:
        target: "rating", "classes" or "tasks".
        rows: number of ratings, oldest first; None for all.
    """
    columns = {name: column[:rows] for name, column in load().items()}
    return ReplayStream(arrays(columns, target))
