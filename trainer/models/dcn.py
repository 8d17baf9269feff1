"""DCN-V2 (R. Wang et al., WWW 2021).

"DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems".
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import nn, ops

from ..checks import choice, whole
from ..features import Features
from .layers import Perceptron, flat, flat_width, pooled_embedding


class CrossNetwork(nn.Cell):
    """Layers x' = x0 * (W x + b) + x, where x0 is the input of the network.

    Maps float [N, width] to float [N, width].

    Args:
        width: width of the input.
        layers: number of layers.
        rank: rank of W = U V^T; None: W has full rank.
    """

    def __init__(self, width: int, layers: int, rank: int | None = None) -> None:
        super().__init__()

        def cross() -> nn.Cell:
            if rank is None:
                return nn.Dense(width, width)
            return nn.SequentialCell(nn.Dense(width, rank, has_bias=False), nn.Dense(rank, width))

        self.crosses = nn.CellList([cross() for _ in range(layers)])

    def construct(self, x):
        first = x
        for cross in self.crosses:
            x = first * cross(x) + x
        return x


class DCNv2(nn.Cell):
    """Explicit crosses of bounded degree and a perceptron, stacked or parallel.

    Maps the columns of `Features.inputs` to logits, float32 [N].

    Args:
        features: the declared columns.
        dim: length of the embedding vectors.
        hidden: widths of the perceptron's layers.
        cross_layers: number of cross layers; the degree of the crosses is one higher.
        rank: rank of the cross layers' matrices; None: full rank.
        structure: "stacked" (crosses feed the perceptron) or "parallel".
    """

    rows_are_independent = True

    def __init__(
        self,
        features: Features,
        dim: int = 16,
        hidden: Sequence[int] = (400, 400),
        cross_layers: int = 3,
        rank: int | None = None,
        structure: str = "stacked",
    ) -> None:
        super().__init__()
        whole("DCNv2(cross_layers=...)", cross_layers)
        whole("DCNv2(rank=...)", rank, optional=True)
        choice("DCNv2(structure=...)", structure, ("stacked", "parallel"))
        self.embedding = pooled_embedding(features, dim)
        width = flat_width(self.embedding)
        self.is_parallel = structure == "parallel"
        self.cross = CrossNetwork(width, cross_layers, rank)
        self.deep = Perceptron(width, hidden)
        self.top = nn.Dense(hidden[-1] + (width if self.is_parallel else 0), 1)

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        x = flat(fields, numbers)
        crossed = self.cross(x)
        if self.is_parallel:
            return self.top(ops.concat((crossed, self.deep(x)), 1)).reshape(-1)
        return self.top(self.deep(crossed)).reshape(-1)
