"""MaskNet (Z. Wang, Q. She, J. Zhang, DLP-KDD 2021).

"MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models by Instance-Guided Mask".
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import nn, ops

from ..checks import number, whole
from ..features import Features
from .layers import LayerNorm, Perceptron, flat, flat_width, pooled_embedding


class MaskBlock(nn.Cell):
    """A layer with an instance-guided mask: ReLU(LayerNorm(W (mask * x))).

    A two-layer perceptron computes the mask from the embeddings. Maps embeddings float [N, width] and x float [N,
    inputs] to float [N, outputs].

    Args:
        width: width of the embeddings.
        inputs: width of x.
        outputs: width of the output.
        reduction: width of the mask's hidden layer divided by the width of the mask.
    """

    def __init__(self, width: int, inputs: int, outputs: int, reduction: float) -> None:
        super().__init__()
        hidden = max(1, int(inputs * reduction))
        self.mask = nn.SequentialCell(nn.Dense(width, hidden), nn.ReLU(), nn.Dense(hidden, inputs))
        self.dense = nn.Dense(inputs, outputs, has_bias=False)
        self.norm = LayerNorm(outputs)

    def construct(self, embeddings, x):
        return ops.relu(self.norm(self.dense(self.mask(embeddings) * x)))


class MaskNet(nn.Cell):
    """Parallel mask blocks over the normalized embeddings, followed by a perceptron.

    Maps the columns of `Features.inputs` to logits, float32 [N].

    Args:
        features: the declared columns.
        dim: length of the embedding vectors.
        hidden: widths of the perceptron's layers.
        blocks: number of mask blocks.
        block_width: width of a block's output.
        reduction: see `MaskBlock`.
    """

    rows_are_independent = True

    def __init__(
        self,
        features: Features,
        dim: int = 16,
        hidden: Sequence[int] = (400, 400),
        blocks: int = 3,
        block_width: int = 64,
        reduction: float = 1.0,
    ) -> None:
        super().__init__()
        whole("MaskNet(blocks=...)", blocks)
        whole("MaskNet(block_width=...)", block_width)
        number("MaskNet(reduction=...)", reduction, above=0)
        self.embedding = pooled_embedding(features, dim)
        width = flat_width(self.embedding)
        self.norm = LayerNorm(dim)
        self.blocks = nn.CellList([MaskBlock(width, width, block_width, reduction) for _ in range(blocks)])
        self.top = Perceptron(blocks * block_width, hidden, 1)

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        embeddings = flat(fields, numbers)
        normalized = flat(self.norm(fields), numbers)
        outputs = ()
        for block in self.blocks:
            outputs += (block(embeddings, normalized),)
        return self.top(ops.concat(outputs, 1)).reshape(-1)
