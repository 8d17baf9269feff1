"""Activations that papers name and that MindSpore lacks or computes slowly on CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from .layers import Float32Cell, as_float32, column_sums, inverse_root

MOMENTUM, EPSILON = 0.9, 1e-8


class LeakyReLU(nn.Cell):
    """The input where it is positive, else the input times a slope.

    Computed as slope * x + (1 - slope) * relu(x). Forward and backward take 1.0 to 1.6 times as long as ReLU on CPU;
    `nn.LeakyReLU` takes 2.3 to 3.2 times as long (2 cores, [1024, 200] and [20480, 64], medians of 15 interleaved
    windows).
    """

    def __init__(self, slope: float = 0.01) -> None:
        super().__init__()
        self.slope, self.rest = slope, 1.0 - slope

    def construct(self, x):
        return self.slope * x + self.rest * ops.relu(x)


class Dice(nn.Cell):
    """Apply Dice (equation 9 of the DIN paper): p x + (1 - p) alpha x.

    p = sigmoid((x - E[x]) / sqrt(Var[x] + 1e-8)).
    Training uses the mean and variance of the batch, inference their moving averages; alpha is learned per column.
    Because of the batch statistics, training batches are not padded with rows. MindSpore's BatchNorm1d takes 1.0 to 2.5
    times as long on CPU as the products here.

    Maps x float [N, width] and counted float32 [1, N], 1 for a row that counts in mean and variance and else 0, to
    float [N, width].
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = Parameter(Tensor(np.zeros(width, np.float32)), name="alpha")
        # The guard against non-finite steps finds them by these names.
        self.moving_mean = Parameter(Tensor(np.zeros((1, width), np.float32)), name="moving_mean", requires_grad=False)
        ones = np.ones((1, width), np.float32)
        self.moving_variance = Parameter(Tensor(ones), name="moving_variance", requires_grad=False)

        self.of_batch = _DiceOfBatch()

    def construct(self, x, counted):
        dtype, x = x.dtype, as_float32(x)  # squares overflow float16
        alpha = as_float32(self.alpha)
        if self.training:
            counted = as_float32(counted)
            share = counted / ops.clamp(counted.sum(), 1.0, None)
            activated, mean, variance, _, _, _, _ = self.of_batch(x, alpha, share)
            ops.assign(self.moving_mean, moved(self.moving_mean, mean))
            ops.assign(self.moving_variance, moved(self.moving_variance, variance))
            return ops.cast(activated, dtype)
        mean, variance = as_float32(self.moving_mean), as_float32(self.moving_variance)
        gate = ops.sigmoid((x - mean) * inverse_root(variance + EPSILON, self.training))
        return ops.cast(x * (alpha + gate * (1 - alpha)), dtype)


class _DiceOfBatch(Float32Cell):
    """Compute Dice with the batch's mean and variance; only output 1 has a gradient."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def construct(self, x, alpha, share):  # share float32 [1, N]: weight of a row in mean and variance
        mean = ops.matmul(share, x)
        centered = x - mean
        variance = ops.matmul(share, ops.square(centered))
        inverse = ops.rsqrt(variance + EPSILON)
        normalized = centered * inverse
        gate = ops.sigmoid(normalized)
        slope = 1 - (1 - gate) * (1 - alpha)  # p + (1 - p) alpha, with one array that is repeated per row
        return x * slope, mean, variance, inverse, normalized, gate, slope

    def bprop(self, x, alpha, share, out, dout):
        inverse, normalized, gate, slope, gradient = out[3], out[4], out[5], out[6], dout[0]
        of_alpha = x * gradient * (1 - gate)
        of_gate = of_alpha * gate  # times 1 - alpha
        scale = (1 - alpha) * inverse
        # Through mean and variance a row receives its share of these sums.
        common = scale * column_sums(of_gate) + normalized * (scale * column_sums(of_gate * normalized))
        of_x = gradient * slope + of_gate * scale - share.reshape(-1, 1) * common
        return of_x, column_sums(of_alpha), ops.zeros_like(share)


def moved(average, value):
    """Update a moving average with a value; graph code."""
    return MOMENTUM * average + (1 - MOMENTUM) * ops.cast(ops.stop_gradient(value), average.dtype)


class Ungated(nn.Cell):
    """An activation that ignores `counted`, with the interface of `Dice`."""

    def __init__(self, activation: nn.Cell) -> None:
        super().__init__()
        self.activation = activation

    def construct(self, x, counted):
        return self.activation(x)


ACTIVATIONS: dict[str, Callable[[int], nn.Cell]] = {  # name -> function of the width: a cell of (x, counted)
    "dice": Dice,
    "relu": lambda width: Ungated(nn.ReLU()),
    "leaky_relu": lambda width: Ungated(LeakyReLU()),
}
