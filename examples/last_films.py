"""Predict ratings of MovieLens-100K from the films a user rated before.

Four in five of the newest ratings are by users whom training has not seen. For these users, their earlier ratings are
the main source of information. The same network can be trained with and without the earlier ratings;
`benchmarks/quality.py --parts films films_stream` measures the difference.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal

from examples.rating import Rater

LENGTH = 20
STARS = 5


def last_films(columns: Mapping[str, np.ndarray], length: int = LENGTH) -> dict[str, np.ndarray]:
    """Return the films that the user rated before each rating, with their stars.

    Only ratings with an earlier timestamp count. Ratings submitted together have the same timestamp, so they are not
    part of each other's history.

    Args:
        columns: user, item, rating and timestamp of N ratings in the order of time.
        length: maximum number of films; the newest are kept.

    Returns:
        "films" and "stars", int32 [N, length], newest last. Shorter histories are padded with zeros at the beginning.
    """
    user, time = columns["user"], columns["timestamp"]
    order = np.lexsort((np.arange(len(user)), time, user))
    user, time = user[order], time[order]
    place = np.arange(len(order))
    first = np.maximum.accumulate(np.where(np.r_[True, user[1:] != user[:-1]], place, 0))
    page = np.maximum.accumulate(np.where(np.r_[True, (user[1:] != user[:-1]) | (time[1:] != time[:-1])], place, 0))
    before = page[:, None] + np.arange(-length, 0)
    known = before >= first[:, None]
    found = {}
    for name, column in (("films", columns["item"]), ("stars", columns["rating"])):
        values = np.where(known, column[order].astype(np.int32)[np.maximum(before, 0)], np.int32(0))
        found[name] = np.empty_like(values)
        found[name][order] = values
    return found


class SequenceRater(nn.Cell):
    """A `Rater` that also reads the last films, weighted by attention.

    The attention is similar to that of G. Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD
    2018, but has softmax weights over the films, a learned bias per position, and a learned score for "none of them".

    Args:
        how: "attention", "mean" (all films have the same weight) or "none" (films are ignored).
        mean: initial output.
        dim: length of the embedding vectors.
        length: number of films per row.
    """

    def __init__(self, how: str = "attention", mean: float = 0.0, dim: int = 16, length: int = LENGTH) -> None:
        super().__init__()
        self.how = how
        self.rater = Rater(mean=mean, dim=dim, more=0 if how == "none" else dim + STARS)
        if how != "none":
            self.star = nn.Embedding(STARS + 1, dim, embedding_table=Normal(0.05))
            self.value = nn.Dense(dim, dim)
            self.counts = Parameter(Tensor(np.eye(STARS + 1, STARS, -1, dtype=np.float32)), requires_grad=False)
        if how == "attention":
            self.query = nn.Dense(dim, dim)
            self.key = nn.Dense(dim, dim)
            self.place = Parameter(Tensor(np.zeros(length, np.float32)))
            self.nothing = Parameter(Tensor(np.zeros(1, np.float32)))

    def construct(self, user, item, age, gender, occupation, genres, year, films, stars):
        """Return the rating, [B, 1]."""
        more = ()
        if self.how != "none":
            more = (self.read(item, films, stars),)
        return self.rater.rate((user, item, age, gender, occupation, year), genres, more)

    def read(self, item, films, stars):
        """Return the weighted film vectors and shares of 1 to 5 stars, [B, dim + 5]."""
        vectors = self.rater.vectors[1](films)
        known = (stars > 0).astype(vectors.dtype)
        if self.how == "attention":
            query = self.query(self.rater.vectors[1](item)).expand_dims(1)
            score = (query * self.key(vectors)).sum(2) + self.place
            score = ops.exp(ops.clamp(score, -20.0, 20.0)) * known
            weight = score / (score.sum(1, keepdims=True) + ops.exp(self.nothing))
        else:
            weight = known / (known.sum(1, keepdims=True) + 1.0)
        told = ops.relu(self.value(vectors + self.star(stars)))
        weight = weight.expand_dims(2)
        return ops.concat(((told * weight).sum(1), (ops.gather(self.counts, stars, 0) * weight).sum(1)), 1)
