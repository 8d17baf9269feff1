"""Factorization machine (S. Rendle, "Factorization Machines", ICDM 2010)."""

from __future__ import annotations

from mindspore import nn

from ..features import Features
from .layers import Linear, PairwiseProducts, pooled_embedding


class FM(nn.Cell):
    """First-order terms and the inner products of all pairs of embedding vectors.

    Maps the columns of `Features.inputs` to logits, float32 [N].

    Args:
        features: the declared columns.
        dim: length of the embedding vectors.
    """

    rows_are_independent = True

    def __init__(self, features: Features, dim: int = 16) -> None:
        super().__init__()
        self.linear = Linear(features)
        self.embedding = pooled_embedding(features, dim)
        self.pairs = PairwiseProducts()

    def construct(self, *columns):
        fields, _, _ = self.embedding(*columns)
        return self.linear(*columns) + self.pairs(fields)
