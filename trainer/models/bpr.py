"""Bayesian personalized ranking (S. Rendle et al., UAI 2009).

"BPR: Bayesian Personalized Ranking from Implicit Feedback".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mindspore import dtype as mstype
from mindspore import nn, ops

from ..checks import choice
from ..errors import ConfigurationError
from ..features import FeatureEmbedding, Features
from ..features.feature import Kind
from .in_batch_softmax import distinct_item_weights, flatten_positions, scores_and_same
from .layers import pooled_embedding
from .two_tower import SplitFields, split_features


class BPR(nn.Cell):
    """Matrix factorization, x = <w_u, h_i> (section 4.3.1), trained by `BPRLoss`.

    If a user or an item has several features, their vectors are added.

    Maps the columns of `Features.inputs` to float32 [N, 2 * dim], the concatenated vectors of user and item. Unlike
    those of `TwoTower`, they are not normalized.

    Args:
        features: the declared columns, categories and pooled lists.
        item: names of the item's features; all others are the user's.
        dim: length of the embedding vectors.
        negatives: name of a list without pooling that holds items the user has not chosen, as drawn by
            `interactions(negatives=...)`. It must share the table of the item's only feature. In training the output is
            then a tuple for `BPRLoss`: the vectors of user and item, float32 [N, 2 * dim]; the vectors of the
            negatives, float32 [N, L, dim]; and a mask, float32 [N, L], 1 for items and 0 for padding.

    Raises:
        ConfigurationError: as in `TwoTower`; a numeric feature; or `negatives` is not the name of such a list.
    """

    rows_are_independent = True

    def __init__(self, features: Features, item: Sequence[str], dim: int = 64, negatives: str | None = None) -> None:
        super().__init__()
        numbers = [output.name for output in features.of_kind(Kind.NUMBERS)]
        if numbers:
            raise ConfigurationError(
                f"BPR factorizes categories and lists, and {numbers[0]!r} is a number; leave it out, give it "
                "boundaries (kind: bucketized), or use two_tower"
            )
        self.has_negatives = negatives is not None
        self.training_columns: tuple[str, ...] = ()  # raw columns read only by the loss; serving does not need them
        if negatives is None:
            self.embedding = pooled_embedding(features, dim)
        else:
            self.training_columns = (_column_of_negatives(features, item, negatives),)
            self.embedding = FeatureEmbedding(features, dim)
        self.sides = SplitFields(*split_features(features, "BPR", self.embedding.field_names, (), item)[:2])

    def construct(self, *columns):
        fields, _, sequences = self.embedding(*columns)
        user, item = self.sides(fields)
        vectors = ops.cast(ops.concat((user.sum(axis=1), item.sum(axis=1)), 1), mstype.float32)
        if self.has_negatives and self.training:
            negatives, mask = sequences[0]
            return vectors, ops.cast(negatives, mstype.float32), ops.cast(mask, mstype.float32)
        return vectors


def _column_of_negatives(features: Features, item: Sequence[str], negatives: str) -> str:
    """Return the raw column of the list of negatives.

    Raises:
        ConfigurationError: it is not the only list without pooling, or does not share the table of a single item
            feature.
    """
    lists = [output for output in features.of_kind(Kind.LIST) if output.pooling is None]
    names = [output.name for output in lists]
    choice("BPR(negatives=...): a list without pooling", negatives, names)
    tables = {output.name: output.table.name for output in features.of_kind(Kind.IDS) if output.table is not None}
    named = [item] if isinstance(item, str) else list(item)
    shared = [table.name for output in lists if (table := output.table) is not None]
    if names != [negatives] or len(named) != 1 or [tables.get(named[0])] != shared:
        raise ConfigurationError(
            f"BPR(negatives={negatives!r}) takes one list without pooling and one feature of the item that shares its "
            f"table; the lists are {', '.join(names)}, the item's features {', '.join(named)}"
        )
    return next(f.source for f in features.features for output in f.outputs() if output.name == negatives)


class BPRLoss(nn.Cell):
    """BPR-Opt: the mean of -log sigmoid(x_ui - x_uj) over the negatives j.

    The paper draws j uniformly among the items that the user has not chosen. `BPR(negatives=...)` with
    `interactions(negatives=...)` does the same. Otherwise, and always in evaluation, the negatives are all other
    distinct items of the batch, each counted once. They may include items that the user chose in other rows, which
    costs accuracy if users choose a large part of the items.

    Inputs and outputs are as in `InBatchSoftmax`. The tuple that `BPR(negatives=...)` returns in training is accepted
    too; the label is then ignored.

    Raises:
        TypeError: the items are not integers; raised before the first step.
    """

    rows_depend: ClassVar[bool] = True

    def construct(self, vectors, item):
        if isinstance(vectors, tuple) and vectors[0].ndim == 2:
            return self._of_drawn(*vectors)
        vectors, item, rows = flatten_positions(vectors, item)
        scores, same, own = scores_and_same(vectors, item)
        negatives = distinct_item_weights(same, rows) * (1 - same)
        losses = (negatives * ops.softplus(scores - ops.expand_dims(own, 1))).sum(axis=1)
        losses = rows * losses / ops.maximum(negatives.sum(axis=1), 1.0)
        return losses.sum() / ops.maximum(rows.sum(), 1.0)

    def _of_drawn(self, vectors, negatives, kept):
        width = negatives.shape[2]
        users, items = vectors[:, :width], vectors[:, width:]
        scores = ops.matmul(negatives, ops.expand_dims(users, 2)).reshape(kept.shape)
        losses = ops.softplus(scores - (users * items).sum(axis=1, keepdims=True))
        return (kept * losses).sum() / ops.maximum(kept.sum(), 1.0)
