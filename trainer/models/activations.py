"""Activations that papers name and that MindSpore lacks or computes slowly on CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..checks import choice

MOMENTUM, EPSILON = 0.9, 1e-8


class LeakyReLU(nn.Cell):
    """The input where it is positive, else the input times a slope.

    Computed as slope * x + (1 - slope) * relu(x): with the gradient 1.0 to 1.6 times ReLU's time on CPU, where
    `nn.LeakyReLU` takes 2.3 to 3.2 times (2 cores, [1024, 200] and [20480, 64], medians of 15 interleaved windows).

    Args:
        slope: of the negative side.
    """

    def __init__(self, slope: float = 0.01) -> None:
        super().__init__()
        self.slope, self.rest = slope, 1.0 - slope

    def construct(self, x):
        """Return the activations."""
        return self.slope * x + self.rest * ops.relu(x)


class Dice(nn.Cell):
    """Dice (equation 9 of the DIN paper): p x + (1 - p) alpha x, p = sigmoid((x - E[x]) / sqrt(Var[x] + 1e-8)).

    Mean and variance are those of the batch in training, and their moving averages otherwise; alpha is learned, one for
    each column. Training batches are therefore not padded with rows. MindSpore's BatchNorm1d in place of the products
    here takes 1.0 to 2.5 times as long on CPU.

    Args:
        width: number of columns.

    Inputs:
        x float [N, width]; counted float32 [1, N]: 1 for a row that counts in mean and variance, else 0.

    Outputs:
        float [N, width].
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = Parameter(Tensor(np.zeros(width, np.float32)), name="alpha")
        # by these names the guard against non-finite steps knows them
        self.moving_mean = Parameter(Tensor(np.zeros((1, width), np.float32)), name="moving_mean", requires_grad=False)
        ones = np.ones((1, width), np.float32)
        self.moving_variance = Parameter(Tensor(ones), name="moving_variance", requires_grad=False)

    def construct(self, x, counted):
        """Return the activations."""
        dtype, x = x.dtype, ops.cast(x, mstype.float32)  # squares leave the range of float16
        if self.training:
            counted = ops.cast(counted, mstype.float32)
            share = counted / ops.clamp(counted.sum(), 1.0, None)
            mean = ops.matmul(share, x)
            variance = ops.matmul(share, ops.square(x - mean))
            ops.assign(self.moving_mean, moved(self.moving_mean, mean))
            ops.assign(self.moving_variance, moved(self.moving_variance, variance))
        else:
            mean, variance = ops.cast(self.moving_mean, mstype.float32), ops.cast(self.moving_variance, mstype.float32)
        gate = ops.sigmoid((x - mean) * ops.rsqrt(variance + EPSILON))
        alpha = ops.cast(self.alpha, mstype.float32)
        return ops.cast(x * (alpha + gate * (1 - alpha)), dtype)


def moved(average, value):
    """Return a moving average after another value; graph code."""
    return MOMENTUM * average + (1 - MOMENTUM) * ops.cast(ops.stop_gradient(value), average.dtype)


class Ungated(nn.Cell):
    """An activation of the value alone, taking the arguments of `Dice`."""

    def __init__(self, activation: nn.Cell) -> None:
        super().__init__()
        self.activation = activation

    def construct(self, x, counted):
        """Return the activations."""
        return self.activation(x)


ACTIVATIONS: dict[str, Callable[[int], nn.Cell]] = {
    "dice": Dice,
    "relu": lambda width: Ungated(nn.ReLU()),
    "leaky_relu": lambda width: Ungated(LeakyReLU()),
}


def activation_of(place: str, name: str, width: int) -> nn.Cell:
    """Return the activation of a name, taking (x, counted).

    Raises:
        ConfigurationError: there is none of this name.
    """
    return ACTIVATIONS[choice(place, name, tuple(ACTIVATIONS))](width)
