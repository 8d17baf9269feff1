"""Ratings of MovieLens-100K from the films somebody rated before: the same network with them and without.

What a person rated before is all that is known of somebody whom training has never met, as four in five of the newest
ratings' authors are. `benchmarks/quality.py --parts films films_stream` measures what it is worth.
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
    """Return, for every rating, the films its author rated before it and how.

    "Before" is an earlier second: ratings handed in on one page bear one time, and none of them is known to another.

    Args:
        columns: user, item, rating and timestamp of N ratings in the order of time.
        length: how many films, the newest ones.

    Returns:
        "films" and "stars", int32 [N, length], newest last; where there were fewer, both begin with zeros.
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
    """`Rater` on the features and on the last films, read by attention: those most like the one in question count most.

    Attention in the manner of G. Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018, with
    softmax weights over the films, a learned place in the sequence, and "none of them".

    Args:
        how: "attention", "mean" (all films alike) or "none" (the films are not looked at).
        mean: where the output starts.
        dim: length of the vectors.
        length: films of a row.
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
        """Return what the films say, [B, dim + 5]: their vectors and the shares of 1 to 5 stars, by weight."""
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
