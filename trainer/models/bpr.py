"""Bayesian personalized ranking (S. Rendle et al., UAI 2009).

"BPR: Bayesian Personalized Ranking from Implicit Feedback".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mindspore import dtype as mstype
from mindspore import nn, ops

from ..errors import ConfigurationError
from ..features import Features
from ..features.feature import Kind
from .in_batch_softmax import choices_of, each_item_once, scores_and_same
from .layers import pooled_embedding
from .two_tower import Sides, divided


class BPR(nn.Cell):
    """Matrix factorization, x = <w_u, h_i> (section 4.3.1), trained by `BPRLoss`.

    The vector of a user or an item with several features is the sum of theirs.

    Maps the columns of `Features.inputs` to float32 [N, 2 * dim]: the vectors of user and item, side by side, as
    `TwoTower` does; here their length is learned too.

    Args:
        features: the declared columns, categories and pooled lists.
        item: names of the item's features; all others are the user's.
        dim: length of the vectors.

    Raises:
        ConfigurationError: as `TwoTower`, or a feature that is a number.
    """

    rows_are_independent = True

    def __init__(self, features: Features, item: Sequence[str], dim: int = 64) -> None:
        super().__init__()
        numbers = [output.name for output in features.of_kind(Kind.NUMBERS)]
        if numbers:
            raise ConfigurationError(
                f"BPR factorizes categories and lists, and {numbers[0]!r} is a number; leave it out, give it "
                "boundaries, as kind: bucketized, or take two_tower"
            )
        self.embedding = pooled_embedding(features, dim)
        self.sides = Sides(*divided(features, "BPR", self.embedding.field_names, (), item)[:2])

    def construct(self, *columns):
        user, item = self.sides(self.embedding(*columns)[0])
        return ops.cast(ops.concat((user.sum(axis=1), item.sum(axis=1)), 1), mstype.float32)


class BPRLoss(nn.Cell):
    """BPR-Opt: -log sigmoid(x_ui - x_uj), the mean over the negatives j.

    The paper draws j uniformly among the items that the user has not chosen. Here they are all other distinct items of
    the batch, each once: the mean over the draws instead of one. What the user chose in other rows counts among them.

    Inputs and outputs as of `InBatchSoftmax`.

    Raises:
        TypeError: items that are not integers, before the first step.
    """

    rows_depend: ClassVar[bool] = True

    def construct(self, vectors, item):
        vectors, item, rows = choices_of(vectors, item)
        scores, same, own = scores_and_same(vectors, item)
        negatives = each_item_once(same, rows) * (1 - same)
        losses = (negatives * ops.softplus(scores - ops.expand_dims(own, 1))).sum(axis=1)
        return (rows * losses / ops.maximum(negatives.sum(axis=1), 1.0)).sum() / rows.sum()
