"""Two towers (X. Yi et al., RecSys 2019).

"Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from ..errors import ConfigurationError, did_you_mean
from ..features import Features
from ..features.feature import Kind
from .layers import Perceptron, inverse_root, pooled_embedding


def normalized(vectors, training):
    """Scale vectors to length 1; graph code."""
    vectors = ops.cast(vectors, mstype.float32)
    return vectors * inverse_root(ops.square(vectors).sum(axis=1, keepdims=True) + 1e-12, training)


class TwoTower(nn.Cell):
    """Two perceptrons that compute user and item vectors of length 1.

    Maps the columns of `Features.inputs` to float32 [N, 2 * width], the concatenated vectors of user and item. Train it
    with `InBatchSoftmax`; see `user_vectors` and `item_vectors` for retrieval.

    Args:
        features: the declared columns.
        item: names of the item's features; all others are the user's.
        dim: length of the embedding vectors.
        hidden: widths of each tower's layers.
        width: length of the user and item vectors.

    Raises:
        ConfigurationError: an unknown feature; no category or list for the item or for the user; or a user feature that
            reads the label or the weight, which are known only after the user has chosen.
    """

    rows_are_independent = True

    def __init__(
        self,
        features: Features,
        item: Sequence[str],
        dim: int = 16,
        hidden: Sequence[int] = (128, 64),
        width: int = 32,
    ) -> None:
        super().__init__()
        self.embedding = pooled_embedding(features, dim)
        fields = self.embedding.field_names
        plain = [output for output in features.of_kind(Kind.NUMBERS) if output.vector is None]
        numbers = [output.name for output in plain for _ in range(output.width)]
        split = split_features(features, "TwoTower", fields, numbers, item)
        user_fields, item_fields, user_numbers, item_numbers = split
        self.sides = SplitFields(user_fields, item_fields)
        self.user_numbers, self.item_numbers = _indices(user_numbers), _indices(item_numbers)
        self.user = Perceptron(len(user_fields) * dim + len(user_numbers), hidden, width)
        self.item = Perceptron(len(item_fields) * dim + len(item_numbers), hidden, width)

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        numbers = ops.cast(numbers, fields.dtype)
        user, item = self.sides(fields)
        user = self.user(_concat_columns(user, numbers, self.user_numbers))
        item = self.item(_concat_columns(item, numbers, self.item_numbers))
        return ops.concat((normalized(user, self.training), normalized(item, self.training)), 1)


def split_features(
    features: Features, model: str, fields: Sequence[str], numbers: Sequence[str], item: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices of user fields, item fields, user numbers and item numbers.

    Raises:
        ConfigurationError: see `TwoTower`.
    """
    item = (item,) if isinstance(item, str) else tuple(item)
    for name in item:
        if name not in fields and name not in numbers:
            names = list(dict.fromkeys((*fields, *numbers)))
            raise ConfigurationError(
                f"{model}(item=...): no feature {name!r}; there are {', '.join(names)}{did_you_mean(name, names)}"
            )
    if problem := label_leak(features, item):
        raise ConfigurationError(f"{model}(item=...): {problem}")
    user_fields, item_fields = _split_indices(fields, item)
    if not len(user_fields) or not len(item_fields):
        raise ConfigurationError(
            f"{model}(item={list(item)}) needs a category or list of the item and one of the user; there are "
            f"{', '.join(fields) or 'none'}"
        )
    return user_fields, item_fields, *_split_indices(numbers, item)


def label_leak(features: Features, item: Sequence[str]) -> str | None:
    """Return a message if a user feature reads the label or the weight, else None.

    These columns are known only after the user has chosen, so a served user has no values for them.
    """
    for feature in features.features:
        names = {feature.name, *(output.name for output in feature.outputs())}
        known_later = [name for name in feature.raw() if name in (*features.labels, features.weight)]
        if known_later and not names & set(item):
            return (
                f"feature {feature.name!r} is a user feature but reads {known_later[0]!r}, which is known only after "
                "the choice; name it in item, or leave the feature out"
            )
    return None


class SplitFields(nn.Cell):
    """Split fields [N, F, D] into those of the user and those of the item."""

    def __init__(self, user: np.ndarray, item: np.ndarray) -> None:
        super().__init__(auto_prefix=False)
        self.user, self.item = _indices(user), _indices(item)
        self.order = _indices(np.argsort(np.concatenate((user, item))))

    def construct(self, fields):
        return ops.gather(fields, self.user, 1), ops.gather(fields, self.item, 1)

    def bprop(self, fields, out, dout):
        return (ops.gather(ops.concat(dout, 1), self.order, 1),)


def _split_indices(names: Sequence[str], item: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    of_item = np.array([name in item for name in names], bool)
    return np.flatnonzero(~of_item), np.flatnonzero(of_item)


def _indices(positions: np.ndarray) -> Tensor | None:
    return Tensor(positions.astype(np.int32)) if len(positions) else None


def _concat_columns(fields, numbers, columns):
    """Concatenate the fields and the given columns of numbers; graph code."""
    fields = fields.reshape(fields.shape[0], -1)
    return fields if columns is None else ops.concat((fields, ops.gather(numbers, columns, 1)), 1)
