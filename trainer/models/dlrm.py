"""DLRM (M. Naumov et al., arXiv:1906.00091, 2019).

"Deep Learning Recommendation Model for Personalization and Recommendation Systems".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, nn, ops

from ..features import Features
from .layers import Perceptron, check_hidden, pooled_embedding


class DotInteraction(nn.Cell):
    """The inner products of all pairs of different vectors.

    Maps float [N, count, D] to float [N, count * (count - 1) / 2]: the pairs (i, j) with i > j, sorted by i, then j.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        rows, columns = np.tril_indices(count, -1)
        self.pairs = Tensor((rows * count + columns).astype(np.int32))

    def construct(self, vectors):
        products = ops.matmul(vectors, vectors.swapaxes(1, 2))
        return ops.gather(products.reshape(vectors.shape[0], -1), self.pairs, 1)


class DLRM(nn.Cell):
    """A bottom perceptron for numbers, pairwise inner products, and a top perceptron.

    Maps the columns of `Features.inputs` to logits, float32 [N].

    Args:
        features: the declared columns.
        dim: length of the embedding vectors.
        bottom: widths of the hidden layers of the bottom perceptron; a layer of width `dim` follows.
        top: widths of the hidden layers of the top perceptron.
    """

    rows_are_independent = True

    def __init__(
        self,
        features: Features,
        dim: int = 16,
        bottom: Sequence[int] = (128, 64),
        top: Sequence[int] = (256, 128),
    ) -> None:
        super().__init__()
        self.embedding = pooled_embedding(features, dim)
        count = max(1, len(self.embedding.field_names)) + 1
        self.bottom = Perceptron(self.embedding.number_width, [*check_hidden(bottom), dim])
        self.interaction = DotInteraction(count)
        self.top = Perceptron(dim + count * (count - 1) // 2, top, 1)

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        dense = self.bottom(numbers)
        products = self.interaction(ops.concat((ops.expand_dims(dense, 1), fields), 1))
        return self.top(ops.concat((dense, products), 1)).reshape(-1)
