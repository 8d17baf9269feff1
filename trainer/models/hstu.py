"""HSTU (J. Zhai et al., ICML 2024).

"Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative Recommendations".
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import Parameter, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import Normal, initializer

from ..checks import whole
from ..errors import ConfigurationError
from ..features import Features
from .attention import causal_mask
from .layers import LayerNorm
from .next_item import NextItem


class HSTULayer(nn.Cell):
    """One layer (equations 1 to 3) with a residual connection.

        U, V, Q, K = split(SiLU(LayerNorm(x) W1)),
        A V = SiLU(Q K^T + rab) V / n, with a causal mask,
        Y = (LayerNorm(A V) * U) W2.

    The relative bias rab depends on the distance between two positions, and n is the number of positions. The paper
    adds a bias for the time between two items, which is not available here. Maps x float [N, L, width] to the same
    shape.
    """

    def __init__(self, width: int, heads: int, positions: int, drop: nn.Cell) -> None:
        super().__init__()
        self.heads, self.positions = heads, positions
        self.norm, self.attended_norm = LayerNorm(width), LayerNorm(width)
        self.expand, self.contract = nn.Dense(width, 4 * width, has_bias=False), nn.Dense(width, width)
        self.bias = Parameter(initializer(Normal(0.02), (positions,)), name="relative_bias")
        self.split = ops.Split(2, 4)
        self.product, self.product_with_transposed = ops.BatchMatMul(), ops.BatchMatMul(transpose_b=True)
        self.last_distance = float(positions - 1)
        self.drop = drop

    def _heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).swapaxes(1, 2)

    def construct(self, x):
        expanded = self.expand(self.norm(x))
        gate, value, query, key = self.split(expanded * ops.sigmoid(expanded))
        positions = ops.arange(x.shape[1])
        # Use float32, because the minimum of integers cannot be exported to ONNX.
        distance = ops.cast(ops.expand_dims(positions, 1) - ops.expand_dims(positions, 0), mstype.float32)
        distance = ops.cast(ops.minimum(ops.relu(distance), self.last_distance), mstype.int32)
        bias = ops.cast(ops.gather(self.bias, distance, 0), x.dtype)
        scores = self.product_with_transposed(self._heads(query), self._heads(key)) + bias
        causal = ops.cast(causal_mask(x.shape[1]), x.dtype) / self.positions
        attended = self.product(scores * ops.sigmoid(scores) * causal, self._heads(value))
        attended = attended.swapaxes(1, 2).reshape(x.shape)
        return x + self.contract(self.drop(self.attended_norm(attended) * gate))


class HSTU(NextItem):
    """Gated pointwise attention over the history, without a softmax.

    To train it as in the paper, use `normalize=True` and `InBatchSoftmax` with a temperature of 0.05.

    Maps the columns of `Features.inputs` to vectors of user and item; see `NextItem`.

    Args:
        features, candidate, dim, positions, dropout, normalize: see `NextItem`.
        layers: number of layers.
        heads: number of attention heads in each layer; it must divide the width.

    Raises:
        ConfigurationError: as in `NextItem`, or `heads` does not divide the width.
    """

    def __init__(
        self,
        features: Features,
        candidate: str | Sequence[str] | None = None,
        dim: int = 64,
        layers: int = 2,
        heads: int = 1,
        positions: int = 50,
        dropout: float = 0.2,
        normalize: bool = False,
    ) -> None:
        super().__init__(features, candidate, dim, positions, dropout, normalize)
        for name, value in (("layers", layers), ("heads", heads)):
            whole(f"HSTU({name}=...)", value)
        if self.width % heads:
            raise ConfigurationError(f"HSTU(heads={heads}) does not divide the width {self.width}")
        self.layers = nn.CellList(
            [HSTULayer(self.width, heads, positions, self.make_dropout(layer + 1)) for layer in range(layers)]
        )
        self.norm = LayerNorm(self.width)

    def encode(self, x, kept):
        """Return the state after each item; see `NextItem`."""
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)
