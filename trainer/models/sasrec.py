"""SASRec (W. Kang and J. McAuley, ICDM 2018).

"Self-Attentive Sequential Recommendation".
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import nn

from ..checks import whole
from ..errors import ConfigurationError
from ..features import Features
from .attention import Attention
from .layers import LayerNorm
from .next_item import NextItem


class SASRecBlock(nn.Cell):
    """Causal self-attention and a perceptron, each as x + Dropout(g(LayerNorm(x))).

    The block computes equations 2 to 5 of the paper: S = softmax(Q K^T / sqrt(d / heads)) V with a causal mask and
    linear projections Q, K and V of x, then F = ReLU(S W1 + b1) W2 + b2. Maps x float [N, L, width] to the same shape.
    """

    def __init__(self, width: int, heads: int, drop_attended: nn.Cell, drop_perceptron: nn.Cell) -> None:
        super().__init__()
        self.attention = Attention(heads, float(width // heads) ** -0.5, causal=True)
        self.query, self.key, self.value = (nn.Dense(width, width, has_bias=False) for _ in range(3))
        self.norm, self.second_norm = LayerNorm(width), LayerNorm(width)
        self.first, self.second = nn.Dense(width, width), nn.Dense(width, width)
        self.activation = nn.ReLU()
        self.drop_attended, self.drop_perceptron = drop_attended, drop_perceptron

    def construct(self, x):
        normalized = self.norm(x)
        x = x + self.drop_attended(self.attention(self.query(normalized), self.key(normalized), self.value(normalized)))
        return x + self.drop_perceptron(self.second(self.activation(self.first(self.second_norm(x)))))


class SASRec(NextItem):
    """Self-attention over the history; the newest item's state is the user's vector.

    The score of item i is r = F . M_i (equation 6), where M is the embedding table of the history. The paper's loss is
    a binary cross-entropy with one negative for each item; `GBCE(items, calibration=0)` is the same with more
    negatives. `GBCE` with a calibration above 0 is the loss of gSASRec (A. Petrov and C. Macdonald, RecSys 2023), and
    `InBatchSoftmax(1.0)` is a softmax over sampled negatives.

    Maps the columns of `Features.inputs` to vectors of user and item; see `NextItem`.

    Args:
        features, candidate, dim, positions, dropout, normalize: see `NextItem`.
        blocks: number of blocks.
        heads: number of attention heads in each block; it must divide the width.

    Raises:
        ConfigurationError: as in `NextItem`, or `heads` does not divide the width.
    """

    def __init__(
        self,
        features: Features,
        candidate: str | Sequence[str] | None = None,
        dim: int = 64,
        blocks: int = 2,
        heads: int = 1,
        positions: int = 50,
        dropout: float = 0.2,
        normalize: bool = False,
    ) -> None:
        super().__init__(features, candidate, dim, positions, dropout, normalize)
        for name, value in (("blocks", blocks), ("heads", heads)):
            whole(f"SASRec({name}=...)", value)
        if self.width % heads:
            raise ConfigurationError(f"SASRec(heads={heads}) does not divide the width {self.width}")
        self.blocks = nn.CellList(
            [
                SASRecBlock(self.width, heads, self.make_dropout(2 * block + 1), self.make_dropout(2 * block + 2))
                for block in range(blocks)
            ]
        )
        self.norm = LayerNorm(self.width)

    def encode(self, x, kept):
        """Return the state after each item; see `NextItem`."""
        for block in self.blocks:
            x = block(x)
        return self.norm(x)
