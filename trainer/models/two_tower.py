"""Two towers (X. Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", 2019)."""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import dtype as mstype
from mindspore import nn, ops

from ..errors import ConfigurationError, did_you_mean
from ..features import Features
from ..features.feature import Kind
from .layers import Perceptron, inverse_root, pooled_embedding


def normalized(vectors, training):
    """Scale vectors to length 1; graph code."""
    vectors = ops.cast(vectors, mstype.float32)
    return vectors * inverse_root(ops.square(vectors).sum(axis=1, keepdims=True) + 1e-12, training)


class TwoTower(nn.Cell):
    """A user vector and an item vector, each from a perceptron of its features; both have length 1.

    Args:
        features: the declared columns.
        item: names of the item's features; all others are the user's.
        dim: length of the features' vectors.
        hidden: widths of each tower's layers.
        width: length of the towers' vectors.

    Inputs:
        the columns of `Features.inputs`.

    Outputs:
        float32 [N, 2 * width]: the user's vector and the item's, side by side; see `InBatchSoftmax`, `user_vectors` and
        `item_vectors`.

    Raises:
        ConfigurationError: no such feature, or no category or list of the item or of the user.
    """

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
        item = (item,) if isinstance(item, str) else tuple(item)
        for name in item:
            if name not in fields and name not in numbers:
                names = list(dict.fromkeys((*fields, *numbers)))
                raise ConfigurationError(
                    f"TwoTower(item=...): no feature {name!r}; there are {', '.join(names)}{did_you_mean(name, names)}"
                )
        if all(name in item for name in fields) or not any(name in item for name in fields):
            raise ConfigurationError(
                f"TwoTower(item={list(item)}) needs a category or list of the item and one of the user; there are "
                f"{', '.join(fields) or 'none'}"
            )
        self.item_fields, self.item_numbers = _positions(fields, item, True), _positions(numbers, item, True)
        self.user_fields, self.user_numbers = _positions(fields, item, False), _positions(numbers, item, False)
        self.user = Perceptron(len(self.user_fields) * dim + len(self.user_numbers), hidden, width)
        self.item = Perceptron(len(self.item_fields) * dim + len(self.item_numbers), hidden, width)

    def construct(self, *columns):
        """Return the concatenated user and item vectors."""
        fields, numbers, _ = self.embedding(*columns)
        numbers = ops.cast(numbers, fields.dtype)
        user = self.user(_side(fields, numbers, self.user_fields, self.user_numbers))
        item = self.item(_side(fields, numbers, self.item_fields, self.item_numbers))
        return ops.concat((normalized(user, self.training), normalized(item, self.training)), 1)


def _positions(names: Sequence[str], item: Sequence[str], chosen: bool) -> tuple[int, ...]:
    return tuple(index for index, name in enumerate(names) if (name in item) is chosen)


def _side(fields, numbers, of_fields, of_numbers):
    """Return the chosen fields and numbers, concatenated; graph code."""
    parts = ()
    for index in of_fields:
        parts += (fields[:, index],)
    for index in of_numbers:
        parts += (numbers[:, index : index + 1],)
    return ops.concat(parts, 1) if len(parts) > 1 else parts[0]  # type: ignore[misc]
