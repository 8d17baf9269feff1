"""AutoInt (W. Song et al., CIKM 2019).

"AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural Networks".
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import nn, ops

from ..checks import whole
from ..features import Features
from .attention import Attention
from .layers import Perceptron, flat, flat_width, pooled_embedding


class InteractingLayer(nn.Cell):
    """Multi-head self-attention over the fields: ReLU(softmax(Q K^T) V + W x).

    Maps float [N, F, width] to float [N, F, heads * head_dim].
    """

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        out = heads * head_dim
        self.query = nn.Dense(width, out, has_bias=False)
        self.key = nn.Dense(width, out, has_bias=False)
        self.value = nn.Dense(width, out, has_bias=False)
        self.residual = nn.Dense(width, out, has_bias=False)
        self.attention = Attention(heads)

    def construct(self, fields):
        attended = self.attention(self.query(fields), self.key(fields), self.value(fields))
        return ops.relu(attended + self.residual(fields))


class AutoInt(nn.Cell):
    """Self-attention over the fields, alongside a perceptron (the paper's AutoInt+).

    Maps the columns of `Features.inputs` to logits, float32 [N].

    Args:
        features: the declared columns.
        dim: length of the embedding vectors.
        hidden: widths of the perceptron's layers.
        layers: number of attention layers.
        heads: number of heads in each layer.
        head_dim: width of a head.
    """

    rows_are_independent = True

    def __init__(
        self,
        features: Features,
        dim: int = 16,
        hidden: Sequence[int] = (400, 400),
        layers: int = 2,
        heads: int = 2,
        head_dim: int = 16,
    ) -> None:
        super().__init__()
        for name, value in (("layers", layers), ("heads", heads), ("head_dim", head_dim)):
            whole(f"AutoInt({name}=...)", value)
        self.embedding = pooled_embedding(features, dim)
        widths = [dim] + [heads * head_dim] * layers
        self.attention = nn.SequentialCell([InteractingLayer(width, heads, head_dim) for width in widths[:-1]])
        self.logit = nn.Dense(max(1, len(self.embedding.field_names)) * widths[-1], 1)
        self.deep = Perceptron(flat_width(self.embedding), hidden, 1)

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        attended = self.attention(fields)
        attended = self.logit(attended.reshape(attended.shape[0], -1))
        return (attended + self.deep(flat(fields, numbers))).reshape(-1)
