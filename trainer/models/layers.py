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
        outputs: width of a final layer without activation; None for no final layer.
        activation: class of the activation after each hidden layer.
        last_init: initializer of the final layer. Use "zeros" if the output is added to that of other layers, which
            then begin training without it. None: MindSpore's default.
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


_LINEAR = "linear."  # prefix of the table names of a linear part


class Linear(nn.Cell):
    """First-order terms: a weight per category and per number, and a bias.

    Maps the columns of `Features.inputs` to float32 [N], or [N, outputs] for several outputs.
    """

    def __init__(self, features: Features, outputs: int = 1) -> None:
        super().__init__()
        self.weights = pooled_embedding(features, outputs, prefix=_LINEAR, initializer="zeros")
        self.numbers = nn.Dense(self.weights.number_width, outputs, weight_init="zeros")
        self.outputs = outputs

    def initialize_from(self, model: LinearModel, units: LabelUnits | None = None) -> None:
        """Initialize the weights from a regression fitted on the same features.

        Tables that admit or evict ids, and numbers with embedding vectors, keep their initial weights.

        Args:
            model: the regression, with the same number of outputs.
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
    """Scales outputs to the units of the label: deviation * output + mean.

    Adam changes a weight by about its learning rate in each step, whatever the unit of the label. Without this layer, a
    network for labels in the thousands would spend its first epochs growing its outputs.

    Args:
        mean: mean of the labels.
        deviation: standard deviation of the labels, above 0.
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

    Computed as half of (square of the sum - sum of the squares); see S. Rendle, ICDM 2010. Maps float [N, F, D] to [N].
    """

    def construct(self, vectors):
        total = vectors.sum(axis=1)
        return 0.5 * (ops.square(total) - ops.square(vectors).sum(axis=1)).sum(axis=1)


def _assign(parameter: Parameter, values: np.ndarray) -> None:
    ops.assign(parameter, Tensor(np.ascontiguousarray(values), parameter.dtype))


_PRECISIONS = ("fp16", "bf16", "fp32")


class Float32Cell(nn.Cell):
    """A cell that mixed precision (amp) leaves in float32.

    Use it for cells with a handwritten gradient, which must have the dtypes of the inputs; amp would change them.
    """

    def add_flags_recursive(self, **flags):
        """Set flags other than precision flags; see `nn.Cell`."""
        return super().add_flags_recursive(**{name: on for name, on in flags.items() if name not in _PRECISIONS})


class LayerNorm(nn.Cell):
    """Layer normalization over the last axis (J. Ba, J. Kiros, G. Hinton, 2016)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = Parameter(initializer("ones", (width,)), name="gamma")
        self.beta = Parameter(initializer("zeros", (width,)), name="beta")
        self.scaled = _ScaledNormalization(width)

    def construct(self, x):
        # Compute in float32, because squares overflow float16.
        return ops.cast(self.scaled(as_float32(x), as_float32(self.gamma), as_float32(self.beta))[0], x.dtype)


class _ScaledNormalization(Float32Cell):
    """Compute the values of `LayerNorm`, and two arrays that the gradient reuses.

    On CPU, MindSpore's LayerNorm is 10 to 30 times slower. The mean is computed by a matrix product, which is faster
    than a reduction.
    """

    def __init__(self, width: int) -> None:
        super().__init__(auto_prefix=False)
        mean = np.full((width, width), 1 / width, np.float32)
        self.mean, self.centering = Tensor(mean), Tensor(np.eye(width, dtype=np.float32) - mean)

    def construct(self, x, gamma, beta):
        # amp may have lowered the precision of these constants
        mean, centering = as_float32(self.mean), as_float32(self.centering)
        centered = ops.matmul(x, centering)
        inverse = inverse_root(ops.matmul(ops.square(centered), mean) + 1e-5, self.training)
        normalized = centered * inverse
        return normalized * gamma + beta, normalized, inverse

    def bprop(self, x, gamma, beta, out, dout):
        mean, centering = as_float32(self.mean), as_float32(self.centering)
        normalized, inverse, scaled = out[1], out[2], dout[0] * gamma
        x_grad = inverse * (ops.matmul(scaled, centering) - normalized * ops.matmul(scaled * normalized, mean))
        return x_grad, column_sums(dout[0] * normalized), column_sums(dout[0])


def as_float32(x):
    """Convert to float32; graph code."""
    return ops.cast(x, mstype.float32)


def column_sums(x):
    """Sum over all axes but the last; graph code.

    Uses a matrix product, which is faster on CPU than a reduction.
    """
    rows = x.reshape(-1, x.shape[-1])
    return ops.matmul(ops.ones((1, rows.shape[0]), x.dtype), rows).reshape(-1)


def item_dense(inputs: int, outputs: int, **options: Any) -> nn.Dense:
    """Return a dense layer for items of sequences, float [N, L, inputs].

    The gradient of its bias is fast on CPU.
    """
    layer = nn.Dense(inputs, outputs, **options)
    layer.bias_add = _ItemBias()
    return layer


class _ItemBias(nn.Cell):
    """Add a bias, float [width], to float [rows, width].

    On CPU, MindSpore's BiasAddGrad takes several times as long as the layer's matrix product for many rows (2.7 ms for
    [20480, 64] on one core of a Xeon, the sum by a matrix product 0.2 ms).
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.sum = _BiasSum()

    def construct(self, x, bias):
        return self.sum(x, ops.cast(bias, x.dtype))


class _BiasSum(Float32Cell):
    """Add a bias of the same dtype."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.add = ops.BiasAdd()

    def construct(self, x, bias):
        return self.add(x, bias)

    def bprop(self, x, bias, out, dout):
        return dout, ops.cast(column_sums(as_float32(dout)), bias.dtype)


def row_sums(x):
    """Sum over the last axis, kept with length 1; graph code.

    Uses a matrix product, which is faster on CPU than a reduction.
    """
    width = x.shape[-1]
    return ops.matmul(x.reshape(-1, width), ops.ones((width, 1), x.dtype)).reshape(*x.shape[:-1], 1)


def inverse_root(x, training):
    """Return 1 / sqrt(x); graph code.

    Training uses Rsqrt. Inference uses other operators, because MindSpore cannot export Rsqrt to ONNX; nor can it
    export Reciprocal, which a scalar divided by an array becomes. The results differ only in the last digits.
    """
    if training:
        return ops.rsqrt(x)
    return ops.ones_like(x) / ops.sqrt(x)


def pooled_embedding(features: Features, dim: int, **options: Any) -> FeatureEmbedding:
    """Return the embedding for a model that does not support sequences.

    Raises:
        ConfigurationError: a list feature has no pooling.
    """
    embedding = FeatureEmbedding(features, dim, **options)
    if embedding.sequence_names:
        raise ConfigurationError(
            f"this model takes pooled lists, and {embedding.sequence_names[0]!r} has pooling=None; give it "
            "pooling='mean', or take a model of histories, DIN or BST"
        )
    return embedding


def tasks_of(features: Features, model: str, tasks: Sequence[str] | None, most: float = math.inf) -> tuple[str, ...]:
    """Return the names of a model's tasks: `tasks`, or the labels if it is None."""
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
