"""DeepFM (H. Guo et al., IJCAI 2017).

"DeepFM: A Factorization-Machine based Neural Network for CTR Prediction".
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import nn

from ..features import Features
from .layers import LabelUnits, Linear, PairwiseProducts, Perceptron, flat, flat_width, pooled_embedding


class DeepFM(nn.Cell):
    """A factorization machine and a perceptron over the same embedding vectors.

    Maps the columns of `Features.inputs` to logits or predicted numbers, float32 [N].

    Args:
        features: the declared columns.
        dim: length of the embedding vectors.
        hidden: widths of the perceptron's layers.
        mean: mean of the label, if the label is a number.
        deviation: standard deviation of the label; see `trainer.models.layers.LabelUnits`.
    """

    rows_are_independent = True

    def __init__(
        self,
        features: Features,
        dim: int = 16,
        hidden: Sequence[int] = (400, 400),
        mean: float = 0.0,
        deviation: float = 1.0,
    ) -> None:
        super().__init__()
        self.linear = Linear(features)
        self.embedding = pooled_embedding(features, dim)
        self.pairs = PairwiseProducts()
        self.deep = Perceptron(flat_width(self.embedding), hidden, 1, last_init="zeros")
        self.units = LabelUnits(mean, deviation)

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        outputs = self.linear(*columns) + self.pairs(fields) + self.deep(flat(fields, numbers)).reshape(-1)
        return self.units(outputs)
