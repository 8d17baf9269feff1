"""DIN (G. Zhou et al., KDD 2018).

"Deep Interest Network for Click-Through Rate Prediction".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mindspore import dtype as mstype
from mindspore import nn, ops
from mindspore.common.initializer import HeNormal

from ..checks import choice
from ..features import FeatureEmbedding, Features
from .activations import ACTIVATIONS
from .layers import check_hidden, flat, flat_width, item_dense
from .sequences import PairLayer, candidate_and_history, candidates_of


class ActivatedPerceptron(nn.Cell):
    """Dense layers with activations, followed by a linear layer.

    Maps `x`, float [N, inputs], and `counted`, float32 [1, N] (see `Dice`), to float [N, 1].

    Args:
        inputs: width of the input.
        hidden: widths of the hidden layers.
        activation: "dice", "relu" or "leaky_relu".
    """

    def __init__(self, inputs: int, hidden: Sequence[int], activation: str) -> None:
        super().__init__()
        widths = [inputs, *check_hidden(hidden)]
        layers = [item_dense(*pair, weight_init=HeNormal(nonlinearity="relu")) for pair in pairwise(widths)]
        make = ACTIVATIONS[choice("DIN(activation=...)", activation, ACTIVATIONS)]
        activations = [make(width) for width in widths[1:]]
        self.layers, self.activations = nn.CellList(layers), nn.CellList(activations)
        self.last = nn.Dense(widths[-1], 1)

    def construct(self, x, counted):
        return self.from_first(self.layers[0](x), counted)

    def from_first(self, x, counted):
        """Return the final output, given the output of the first layer; graph code."""
        x = self.activations[0](x, counted)
        for index in range(1, len(self.layers)):
            x = self.activations[index](self.layers[index](x), counted)
        return self.last(x)


class ActivationUnit(nn.Cell):
    """Weights the items of a history by their relevance to the candidate.

    A perceptron computes the weight from (item, candidate, difference, product). The interest is the weighted sum of
    the items (equation 3). Weights are not normalized, so that their sum expresses the strength of the interest.
    Padding does not count in the statistics of Dice.

    Maps candidate float [N, dim], history float [N, L, dim] and mask bool [N, L] to the interest, float [N, dim].
    """

    def __init__(self, dim: int, hidden: Sequence[int], activation: str = "dice") -> None:
        super().__init__()
        self.pairs = PairLayer()
        self.weight = ActivatedPerceptron(4 * dim, hidden, activation)

    def construct(self, candidate, history, mask):
        batch, length, dim = history.shape
        counted = ops.cast(mask, mstype.float32).reshape(1, batch * length)
        first = self.weight.layers[0]
        if self.training:
            kernel, bias = ops.cast(first.weight, history.dtype), ops.cast(first.bias, history.dtype)
            x = self.pairs(history, candidate, kernel, bias)
        else:  # only this form can be exported to ONNX with a variable number of rows
            candidates = ops.broadcast_to(ops.expand_dims(candidate, 1), history.shape)
            pairs = ops.concat((history, candidates, history - candidates, history * candidates), 2)
            x = first(pairs.reshape(batch * length, 4 * dim))
        weights = self.weight.from_first(x, counted)
        weights = weights.reshape(batch, 1, length) * ops.cast(ops.expand_dims(mask, 1), history.dtype)
        return ops.matmul(weights, history).reshape(batch, dim)


class DIN(nn.Cell):
    """Pools a history by relevance to the candidate and applies a perceptron.

    By default, all hidden layers are followed by Dice (equation 9). The paper's mini-batch aware regularization
    (equation 5) is not included.

    Maps the columns of `Features.inputs` to logits, float32 [N].

    Args:
        features: the declared columns. A list without pooling is the history, and a categorical feature that shares its
            table is the candidate. Several such lists must be aligned columns of one sequence (items and their shops);
            their vectors are concatenated, as in section 4.1.
        candidate: name of the candidate feature; for several lists, one name for each. None: the features that share
            the lists' tables.
        dim: length of the embedding vectors.
        hidden: widths of the perceptron's layers.
        attention_hidden: widths of the activation unit's layers.
        activation: activation of the hidden layers, "dice" (equation 9; normalizes over the batch), "relu" or
            "leaky_relu".

    Raises:
        ConfigurationError: no history, or no candidate.
    """

    def __init__(
        self,
        features: Features,
        candidate: str | Sequence[str] | None = None,
        dim: int = 16,
        hidden: Sequence[int] = (200, 80),
        attention_hidden: Sequence[int] = (64, 32),
        activation: str = "dice",
    ) -> None:
        super().__init__()
        candidates = candidates_of(features, "DIN", candidate)
        self.embedding = FeatureEmbedding(features, dim)
        self.candidates = tuple(self.embedding.field_index(name) for name in candidates)
        width = dim * len(candidates)
        self.attention = ActivationUnit(width, attention_hidden, activation)
        self.rows_are_independent = activation != "dice"  # Dice normalizes over the rows of a batch
        self.top = ActivatedPerceptron(flat_width(self.embedding) + width, hidden, activation)

    def construct(self, *columns):
        fields, numbers, sequences = self.embedding(*columns)
        candidate, history, mask = candidate_and_history(fields, sequences, self.candidates)
        interest = self.attention(candidate, history, mask)
        x = ops.concat((flat(fields, numbers), interest), 1)
        return self.top(x, ops.ones((1, x.shape[0]), mstype.float32)).reshape(-1)
