"""DIN (G. Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018)."""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import nn, ops

from ..features import FeatureEmbedding, Features
from .layers import Perceptron, flat, flat_width
from .sequences import history_of


class ActivationUnit(nn.Cell):
    """A weight for each item of a history by a perceptron of (item, candidate, difference, product).

    The interest is the sum of the weighted items (equation 3).

    Weights are not normalized: their sum says how strong the interest is.

    Args:
        dim: length of the vectors.
        hidden: widths of the perceptron's layers.

    Inputs:
        candidate float [N, dim]; history float [N, L, dim]; mask bool [N, L].

    Outputs:
        float [N, dim]: the weighted sum of the history.
    """

    def __init__(self, dim: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.weight = Perceptron(4 * dim, hidden, 1)

    def construct(self, candidate, history, mask):
        """Return the interest in the candidate."""
        batch, length, dim = history.shape
        candidate = ops.broadcast_to(ops.expand_dims(candidate, 1), (batch, length, dim))
        pairs = ops.concat((history, candidate, history - candidate, history * candidate), 2)
        weights = self.weight(pairs.reshape(batch * length, 4 * dim)).reshape(batch, 1, length)
        weights = weights * ops.cast(ops.expand_dims(mask, 1), history.dtype)
        return ops.matmul(weights, history).reshape(batch, dim)


class DIN(nn.Cell):
    """A history summed up by its relevance to the candidate, and a perceptron.

    Args:
        features: the declared columns; one list without pooling is the history, and a categorical feature that shares
            its table the candidate.
        candidate: name of the candidate's feature; None: the one that shares the history's table.
        dim: length of the vectors.
        hidden: widths of the perceptron's layers.
        attention_hidden: widths of the activation unit's layers.

    Inputs:
        the columns of `Features.inputs`.

    Outputs:
        Logits, float32 [N].

    Raises:
        ConfigurationError: no history, or no candidate.
    """

    def __init__(
        self,
        features: Features,
        candidate: str | None = None,
        dim: int = 16,
        hidden: Sequence[int] = (200, 80),
        attention_hidden: Sequence[int] = (64, 32),
    ) -> None:
        super().__init__()
        candidate = history_of(features, "DIN", candidate)
        self.embedding = FeatureEmbedding(features, dim)
        self.candidate = self.embedding.field_index(candidate)
        self.attention = ActivationUnit(dim, attention_hidden)
        self.top = Perceptron(flat_width(self.embedding) + dim, hidden, 1)

    def construct(self, *columns):
        """Return the logits."""
        fields, numbers, sequences = self.embedding(*columns)
        history, mask = sequences[0]
        interest = self.attention(fields[:, self.candidate], history, mask)
        return self.top(ops.concat((flat(fields, numbers), interest), 1)).reshape(-1)
