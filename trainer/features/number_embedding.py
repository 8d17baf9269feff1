"""Vectors of numbers by AutoDis or a perceptron; a missing number has its own."""

from __future__ import annotations

from typing import Any

from mindspore import Parameter, nn, ops
from mindspore.common.initializer import Normal, initializer

from .feature import NumberVector

LEAK = 0.01  # slope of the leaky ReLU for negative numbers


class NumberEmbedding(nn.Cell):
    """Vectors of several numbers, each with its own parameters.

    AutoDis (H. Guo, B. Chen, R. Tang, W. Zhang, Z. Li, X. He, "An Embedding Learning Framework for Numerical Features
    in CTR Prediction", KDD 2021, section 3.2), for number x of feature j with H meta-embeddings M_j [H, dim]:

        h = leaky_relu(w_j x),  s = W_j h + skip h,  a = softmax(s / temperature),  e = sum_k a_k M_jk.

    The perceptron: e = V_j relu(w_j x + b_j) + c_j, with H hidden units.

    Args:
        options: the settings that the features share.

    Inputs:
        numbers: float [N, 2 features]: per feature the number, then 1 if it is missing, else 0.

    Outputs:
        [N, features, dim].
    """

    def __init__(self, features: int, dim: int, options: NumberVector) -> None:
        super().__init__()
        hidden = options.buckets
        self.features, self.is_autodis = features, options.kind == "autodis"
        self.temperature, self.skip = options.temperature, options.skip

        def weights(name: str, shape: tuple[int, ...], init: Any) -> Parameter:
            return Parameter(initializer(init, shape), name=name)

        self.first = weights("first", (features, hidden), Normal(1.0))
        self.missing = weights("missing", (features, dim), Normal(0.01))
        scale = hidden**-0.5
        self.second = weights("second", (features, hidden, hidden if self.is_autodis else dim), Normal(scale))
        if self.is_autodis:
            self.meta = weights("meta", (features, hidden, dim), Normal(0.01))
        else:
            self.first_bias = weights("first_bias", (features, hidden), "zeros")
            self.second_bias = weights("second_bias", (features, 1, dim), "zeros")

    def construct(self, numbers):
        pairs = numbers.reshape(-1, self.features, 2)
        missing = pairs[:, :, 1:]
        hidden = pairs[:, :, :1] * ops.expand_dims(self.first, 0)  # [N, features, H]
        if self.is_autodis:
            hidden = ops.maximum(hidden, LEAK * hidden).transpose(1, 0, 2)
            scores = ops.bmm(hidden, self.second) + self.skip * hidden
            vectors = ops.bmm(ops.softmax(scores / self.temperature, -1), self.meta)
        else:
            hidden = ops.relu(hidden + ops.expand_dims(self.first_bias, 0)).transpose(1, 0, 2)
            vectors = ops.bmm(hidden, self.second) + self.second_bias
        return vectors.transpose(1, 0, 2) * (1 - missing) + ops.expand_dims(self.missing, 0) * missing
