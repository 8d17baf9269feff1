"""Layers shared by several models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import HeNormal, initializer

from ..checks import any_number, number, refuse, whole
from ..embedding.layers.embedding_cells import embedding_cells, head_cells
from ..errors import ConfigurationError
from ..features import FeatureEmbedding, Features
from .linear_model import LinearModel


class Perceptron(nn.Cell):
    """Dense layers with an activation.

    Maps float [N, inputs] to float [N, outputs], or [N, last hidden width].

    Args:
        inputs: width of the input.
        hidden: widths of the layers.
        outputs: width of a last layer without activation; None: no such layer.
        activation: class of the cell after each hidden layer.
        last_init: first weights of that last layer: "zeros" for a part that is added to others, which first learn
            without it; None: MindSpore's.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int | None = None,
        activation: Callable[[], nn.Cell] = nn.ReLU,
        last_init: str | None = None,
    ) -> None:
        super().__init__()
        widths = [inputs, *check_hidden(hidden)]
        layers: list[nn.Cell] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Dense(fan_in, fan_out, weight_init=HeNormal(nonlinearity="relu")), activation()]
        if outputs is not None:
            layers.append(nn.Dense(widths[-1], outputs, weight_init=last_init, bias_init=last_init))
        self.layers = nn.SequentialCell(layers)

    def construct(self, x):
        return self.layers(x)


def check_hidden(hidden: Sequence[int]) -> tuple[int, ...]:
    """Check the widths of hidden layers and return them as a tuple."""
    if not isinstance(hidden, list | tuple) or not hidden:
        refuse("hidden", "a list of widths, as [400, 400]", hidden)
    return tuple(whole("hidden", width) for width in hidden)


_LINEAR = "linear."  # begins the names of a linear part's tables


class Linear(nn.Cell):
    """First-order terms: a weight per category and per number, and a bias.

    Maps the columns of `Features.inputs` to float32 [N], or [N, outputs] for several outputs.
    """

    def __init__(self, features: Features, outputs: int = 1) -> None:
        super().__init__()
        self.weights = pooled_embedding(features, outputs, prefix=_LINEAR, initializer="zeros")
        self.numbers = nn.Dense(self.weights.number_width, outputs, weight_init="zeros")
        self.outputs = outputs

    def begin_as(self, model: LinearModel, units: LabelUnits | None = None) -> None:
        """Take the weights of a regression over the same features.

        Tables that admit or evict ids, and numbers with vectors, begin as they are.

        Args:
            model: the regression, of as many outputs.
            units: the layer that scales the network's output, or None.
        """
        mean, deviation = (0.0, 1.0) if units is None else (units.mean, units.deviation)
        if plain := list(self.weights.plain_columns):
            _assign(self.numbers.weight, model.numbers[plain].T / deviation)
        _assign(self.numbers.bias, (model.bias - mean) / deviation)
        for cell in head_cells(embedding_cells(self.weights)):
            ids, weights = model.rows[cell.spec.name.removeprefix(_LINEAR)]
            if cell.is_dense:
                values = cell.weight.asnumpy().copy()
                values[ids] = weights / deviation
                _assign(cell.weight, values)
            elif cell.spec.keeps_every_id:
                cell.host_table().put(ids, (weights / deviation).astype(np.float32))

    def construct(self, *columns):
        fields, numbers, _ = self.weights(*columns)
        if self.outputs > 1:
            return fields.sum(axis=1) + self.numbers(numbers)
        return fields.sum(axis=(1, 2)) + self.numbers(numbers).reshape(-1)


class LabelUnits(nn.Cell):
    """Outputs of deviation about 1 in the label's units: deviation * output + mean.

    Adam changes a weight by about its learning rate in each step, in any unit of the label, so a network would spend
    its first epochs growing to a label of thousands.

    Args:
        mean: mean of the labels.
        deviation: their standard deviation, above 0.
    """

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__(auto_prefix=False)
        self.mean = any_number("mean", mean)
        self.deviation = number("deviation", deviation, above=0)
        self.changes = (mean, deviation) != (0, 1)

    def construct(self, outputs):
        return as_float32(outputs) * self.deviation + self.mean if self.changes else outputs


class PairwiseProducts(nn.Cell):
    """The sum of the inner products of all pairs of vectors, in linear time.

    Half of the square of the sum, less the sum of the squares (S. Rendle, ICDM 2010). Maps float [N, F, D] to [N].
    """

    def construct(self, vectors):
        total = vectors.sum(axis=1)
        return 0.5 * (ops.square(total) - ops.square(vectors).sum(axis=1)).sum(axis=1)


def _assign(parameter: Parameter, values: np.ndarray) -> None:
    ops.assign(parameter, Tensor(np.ascontiguousarray(values), parameter.dtype))


_PRECISIONS = ("fp16", "bf16", "fp32")


class Float32Cell(nn.Cell):
    """A cell that amp leaves in float32: its gradient needs the inputs' dtypes."""

    def add_flags_recursive(self, **flags):
        """Set flags except those of a lower precision; see `nn.Cell`."""
        return super().add_flags_recursive(**{name: on for name, on in flags.items() if name not in _PRECISIONS})


class LayerNorm(nn.Cell):
    """Layer normalization over the last axis (J. Ba, J. Kiros, G. Hinton, 2016)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = Parameter(initializer("ones", (width,)), name="gamma")
        self.beta = Parameter(initializer("zeros", (width,)), name="beta")
        self.scaled = _Scaled(width)

    def construct(self, x):
        # Squares overflow float16.
        return ops.cast(self.scaled(as_float32(x), as_float32(self.gamma), as_float32(self.beta))[0], x.dtype)


class _Scaled(Float32Cell):
    """Compute the values of `LayerNorm`; other outputs are for the gradient.

    MindSpore's LayerNorm is 10 to 30 times slower on CPU, and a product with a matrix is faster than a mean.
    """

    def __init__(self, width: int) -> None:
        super().__init__(auto_prefix=False)
        mean = np.full((width, width), 1 / width, np.float32)
        self.mean, self.centering = Tensor(mean), Tensor(np.eye(width, dtype=np.float32) - mean)

    def construct(self, x, gamma, beta):
        # amp lowers constants of other cells too
        mean, centering = as_float32(self.mean), as_float32(self.centering)
        centered = ops.matmul(x, centering)
        inverse = inverse_root(ops.matmul(ops.square(centered), mean) + 1e-5, self.training)
        normalized = centered * inverse
        return normalized * gamma + beta, normalized, inverse

    def bprop(self, x, gamma, beta, out, dout):
        mean, centering = as_float32(self.mean), as_float32(self.centering)
        normalized, inverse, scaled = out[1], out[2], dout[0] * gamma
        of_x = inverse * (ops.matmul(scaled, centering) - normalized * ops.matmul(scaled * normalized, mean))
        return of_x, column_sums(dout[0] * normalized), column_sums(dout[0])


def as_float32(x):
    """Return the array in float32; graph code."""
    return ops.cast(x, mstype.float32)


def column_sums(x):
    """Sum over all axes but the last by a matrix product, faster on CPU; graph code."""
    rows = x.reshape(-1, x.shape[-1])
    return ops.matmul(ops.ones((1, rows.shape[0]), x.dtype), rows).reshape(-1)


def inverse_root(x, training):
    """Return 1 / sqrt(x); graph code.

    Training and inference use different operators, whose gradients differ only in the last digits. MindSpore can export
    neither Rsqrt to ONNX nor Reciprocal, which a scalar divided by an array becomes.
    """
    if training:
        return ops.rsqrt(x)
    return ops.ones_like(x) / ops.sqrt(x)


def pooled_embedding(features: Features, dim: int, **options: Any) -> FeatureEmbedding:
    """Return the embedding of a model that does not support sequences."""
    embedding = FeatureEmbedding(features, dim, **options)
    if embedding.sequence_names:
        raise ConfigurationError(
            f"this model takes pooled lists, and {embedding.sequence_names[0]!r} has pooling=None; give it "
            "pooling='mean', or take a model of histories, DIN or BST"
        )
    return embedding


def tasks_of(features: Features, model: str, tasks: Sequence[str] | None, most: float = math.inf) -> tuple[str, ...]:
    """Return the names of a model's tasks: those given, or the labels of the features."""
    names = features.labels if tasks is None else tasks
    if isinstance(names, str) or not 2 <= len(names) <= most or len(set(names)) < len(names):
        count = "two" if most == 2 else "two or more"
        refuse(f"{model}(tasks=...)", f"{count} different names, or features with as many labels", names)
    return tuple(names)


def flat(fields, numbers):
    """Concatenate fields [N, F, D] and numbers [N, M] to [N, F * D + M]; graph code."""
    return ops.concat((fields.reshape(fields.shape[0], -1), ops.cast(numbers, fields.dtype)), 1)


def flat_width(embedding: FeatureEmbedding) -> int:
    """Return the width of `flat` applied to the outputs of `embedding`."""
    return max(1, len(embedding.field_names)) * embedding.dim + embedding.number_width
