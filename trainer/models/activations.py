"""Activations of the papers that MindSpore lacks or computes slowly on CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from .layers import Float32Cell, as_float32, column_sums, inverse_root

MOMENTUM, EPSILON = 0.9, 1e-8


class LeakyReLU(nn.Cell):
    """Leaky ReLU, computed as slope * x + (1 - slope) * relu(x).

    On CPU, forward and backward take 1.0 to 1.6 times as long as ReLU; `nn.LeakyReLU` takes 2.3 to 3.2 times as long
    (2 cores, [1024, 200] and [20480, 64], medians of 15 interleaved measurements).
    """

    def __init__(self, slope: float = 0.01) -> None:
        super().__init__()
        self.slope, self.rest = slope, 1.0 - slope

    def construct(self, x):
        return self.slope * x + self.rest * ops.relu(x)


class Dice(nn.Cell):
    """The Dice activation (equation 9 of the DIN paper): p x + (1 - p) alpha x.

    The gate is p = sigmoid((x - E[x]) / sqrt(Var[x] + 1e-8)); alpha is learned per column. Training uses the mean and
    variance of the batch, inference uses their moving averages. Because of the batch statistics, training batches must
    not be padded with rows. On CPU, MindSpore's BatchNorm1d takes 1.0 to 2.5 times as long as the matrix products here.

    Maps x float [N, width] and counted float32 [1, N] to float [N, width]. `counted` is 1 for rows that count in mean
    and variance, and 0 for other rows.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = Parameter(Tensor(np.zeros(width, np.float32)), name="alpha")
        # The guard against non-finite steps looks up these two parameters by name.
        self.moving_mean = Parameter(Tensor(np.zeros((1, width), np.float32)), name="moving_mean", requires_grad=False)
        ones = np.ones((1, width), np.float32)
        self.moving_variance = Parameter(Tensor(ones), name="moving_variance", requires_grad=False)

        self.batch_dice = _BatchDice()

    def construct(self, x, counted):
        dtype, x = x.dtype, as_float32(x)  # squares overflow float16
        alpha = as_float32(self.alpha)
        if self.training:
            counted = as_float32(counted)
            share = counted / ops.clamp(counted.sum(), 1.0, None)
            activated, mean, variance, _, _, _, _ = self.batch_dice(x, alpha, share)
            ops.assign(self.moving_mean, update_average(self.moving_mean, mean))
            ops.assign(self.moving_variance, update_average(self.moving_variance, variance))
            return ops.cast(activated, dtype)
        mean, variance = as_float32(self.moving_mean), as_float32(self.moving_variance)
        gate = ops.sigmoid((x - mean) * inverse_root(variance + EPSILON, self.training))
        return ops.cast(x * (alpha + gate * (1 - alpha)), dtype)


class _BatchDice(Float32Cell):
    """Compute Dice with the batch's mean and variance.

    The first output is the result and the only one with a gradient; `bprop` reuses the others.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.add = ops.BiasAdd()  # faster on CPU than to add by broadcasting

    def construct(self, x, alpha, share):  # share float32 [1, N]: weight of a row in mean and variance
        mean = ops.matmul(share, x)
        centered = self.add(x, -mean.reshape(-1))
        variance = ops.matmul(share, ops.square(centered))
        inverse = ops.rsqrt(variance + EPSILON)
        normalized = centered * inverse
        gate = ops.sigmoid(normalized)
        slope = 1 - (1 - gate) * (1 - alpha)  # equals p + (1 - p) alpha, with fewer broadcasts of alpha over rows
        return x * slope, mean, variance, inverse, normalized, gate, slope

    def bprop(self, x, alpha, share, out, dout):
        inverse, normalized, gate, slope, gradient = out[3], out[4], out[5], out[6], dout[0]
        alpha_grad = x * gradient * (1 - gate)
        gate_grad = alpha_grad * gate  # `scale` adds the factor 1 - alpha
        scale = (1 - alpha) * inverse
        # The gradient through mean and variance gives each row its share of these sums.
        common = normalized * (scale * column_sums(gate_grad * normalized))
        common = self.add(common, (scale * column_sums(gate_grad)).reshape(-1))
        x_grad = gradient * slope + gate_grad * scale - share.reshape(-1, 1) * common
        return x_grad, column_sums(alpha_grad), ops.zeros_like(share)


def update_average(average, value):
    """Return a moving average updated with a value; graph code."""
    return MOMENTUM * average + (1 - MOMENTUM) * ops.cast(ops.stop_gradient(value), average.dtype)


class Ungated(nn.Cell):
    """An activation that ignores `counted`, with the interface of `Dice`."""

    def __init__(self, activation: nn.Cell) -> None:
        super().__init__()
        self.activation = activation

    def construct(self, x, counted):
        return self.activation(x)


ACTIVATIONS: dict[str, Callable[[int], nn.Cell]] = {  # name -> function that builds a cell for a width
    "dice": Dice,
    "relu": lambda width: Ungated(nn.ReLU()),
    "leaky_relu": lambda width: Ungated(LeakyReLU()),
}
