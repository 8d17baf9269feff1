"""BST (Q. Chen et al., DLP-KDD 2019).

"Behavior Sequence Transformer for E-commerce Recommendation in Alibaba".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..checks import whole
from ..errors import ConfigurationError
from ..features import FeatureEmbedding, Features
from .activations import LeakyReLU
from .attention import Attention
from .layers import LayerNorm, Perceptron, flat, flat_width, item_dense
from .sequences import candidate_and_history, candidates_of


def running_count(mask):
    """Return the running count of True in each row, float32 [N, L]; graph code.

    Computed as a product with a triangular matrix of ones, because MindSpore cannot export CumSum to ONNX. Counts are
    exact below 2**24.
    """
    positions = ops.arange(mask.shape[1])
    triangle = ops.cast(ops.expand_dims(positions, 1) <= ops.expand_dims(positions, 0), mstype.float32)
    return ops.matmul(ops.cast(mask, mstype.float32), triangle)


class TransformerBlock(nn.Cell):
    """Self-attention and a perceptron, each followed by a residual and LayerNorm.

    The perceptron has two layers and leaky ReLU. The block computes equations 2 to 6 of the paper, without dropout.

    Maps x float [N, L, width] and mask bool [N, L], with at least one True in each row, to float [N, L, width].
    `heads` must divide `width`.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(heads, float(width // heads) ** -0.5, masked=True)
        self.query, self.key, self.value = (item_dense(width, width) for _ in range(3))
        self.output = item_dense(width, width)
        self.norm, self.last_norm = LayerNorm(width), LayerNorm(width)
        self.expand, self.contract = item_dense(width, 4 * width), item_dense(4 * width, width)
        self.activation = LeakyReLU()

    def construct(self, x, mask):
        attended = self.attention(self.query(x), self.key(x), self.value(x), mask)
        x = self.norm(x + self.output(attended))
        return self.last_norm(x + self.contract(self.activation(self.expand(x))))


class BST(nn.Cell):
    """A transformer over history and candidate, followed by a perceptron.

    The input of the perceptron (leaky ReLU) is the transformer's output for the candidate, its mean output over the
    history, and all other features.

    Maps the columns of `Features.inputs` to logits, float32 [N].

    Args:
        features: the declared columns; see `DIN`.
        candidate: see `DIN`.
        dim: length of the embedding vectors.
        hidden: widths of the perceptron's layers.
        blocks: number of transformer blocks.
        heads: number of attention heads in each block. It must divide `dim`; with several lists, `dim` times the number
            of lists.
        positions: number of learned positions, counted back from the candidate; earlier items share the last one.

    Raises:
        ConfigurationError: no history, no candidate, or heads that do not divide `dim`.
    """

    rows_are_independent = True

    def __init__(
        self,
        features: Features,
        candidate: str | Sequence[str] | None = None,
        dim: int = 16,
        hidden: Sequence[int] = (256, 128),
        blocks: int = 1,
        heads: int = 2,
        positions: int = 64,
    ) -> None:
        super().__init__()
        for name, value in (("blocks", blocks), ("heads", heads), ("positions", positions)):
            whole(f"BST({name}=...)", value)
        candidates = candidates_of(features, "BST", candidate)
        width = dim * len(candidates)
        if width % heads:
            lists = "" if len(candidates) == 1 else f" for each of {len(candidates)} lists"
            raise ConfigurationError(f"BST(heads={heads}) does not divide dim={dim}{lists}")
        self.embedding = FeatureEmbedding(features, dim)
        self.candidates = tuple(self.embedding.field_index(name) for name in candidates)
        self.last_position = float(positions - 1)
        first = np.random.default_rng(0).normal(0, 0.01, (positions, width)).astype(np.float32)
        self.positions = Parameter(Tensor(first), name="positions")
        self.blocks = nn.CellList([TransformerBlock(width, heads) for _ in range(blocks)])
        self.top = Perceptron(flat_width(self.embedding) + 2 * width, hidden, 1, LeakyReLU)

    def construct(self, *columns):
        fields, numbers, sequences = self.embedding(*columns)
        candidate, history, mask = candidate_and_history(fields, sequences, self.candidates)
        # Padding is at the end, so the distance from an item to the candidate depends on the length of the history.
        count = running_count(mask)
        back = ops.cast(ops.minimum(count[:, -1:] - count + 1, self.last_position), mstype.int32)
        history = history + ops.gather(self.positions, back, 0)
        x = ops.concat((history, ops.expand_dims(candidate + self.positions[0], 1)), 1)
        kept = ops.cast(mask, mstype.float32)
        # A column of zeros, computed from an input: a constant would fix the batch size of an exported graph.
        zero = 0 * kept[:, :1]
        mask = ops.concat((kept, zero + 1), 1) > 0
        for block in self.blocks:
            x = block(x, mask)
        # One matrix product computes the mean over the history and selects the candidate's output.
        mean = ops.concat((kept / ops.maximum(kept.sum(axis=1, keepdims=True), 1.0), zero), 1)
        last = ops.concat((0 * kept, zero + 1), 1)
        outputs = ops.matmul(ops.cast(ops.stack((mean, last), 1), x.dtype), x)
        return self.top(ops.concat((flat(fields, numbers), outputs.reshape(x.shape[0], -1)), 1)).reshape(-1)
