"""A ResNet of three basic blocks (He et al. 2016), 16, 32 and 64 channels, the same in MindSpore and PyTorch."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from benchmarks.nets import dense_weights

CHANNELS = (16, 32, 64)
CLASSES = 10


def _kernels() -> Generator[np.ndarray, tuple[int, ...], None]:
    """Yield first weights [out, in, k, k] in the order the layers are made, the same every time."""
    rng = np.random.default_rng(5)
    shape = yield np.empty(0, np.float32)
    while True:
        bound = (6 / np.prod(shape[1:])) ** 0.5
        shape = yield rng.uniform(-bound, bound, shape).astype(np.float32)


def mindspore_resnet(side: int) -> Any:
    """Return the network in MindSpore."""
    from mindspore import Tensor, nn

    kernels = _kernels()
    next(kernels)

    def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Cell]:
        weight = Tensor(kernels.send((outputs, inputs, kernel, kernel)))
        padding = {"pad_mode": "pad", "padding": kernel // 2}
        layer = nn.Conv2d(inputs, outputs, kernel, stride, **padding, has_bias=False, weight_init=weight)
        return [layer, nn.BatchNorm2d(outputs)]

    class Block(nn.Cell):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            first, second = convolution(inputs, outputs, 3, stride), convolution(outputs, outputs, 3, 1)
            self.body = nn.SequentialCell([*first, nn.ReLU(), *second])
            self.skip = nn.SequentialCell(convolution(inputs, outputs, 1, stride))
            self.relu = nn.ReLU()

        def construct(self, x):
            return self.relu(self.body(x) + self.skip(x))

    class Mean(nn.Cell):
        def construct(self, x):
            return x.mean((2, 3))

    blocks = [Block(a, b, s) for a, b, s in zip((CHANNELS[0], *CHANNELS), CHANNELS, (1, 2, 2), strict=False)]
    ((weight, bias),) = dense_weights((CHANNELS[-1], CLASSES))
    stem = [*convolution(1, CHANNELS[0], 3, 1), nn.ReLU()]
    last = nn.Dense(CHANNELS[-1], CLASSES, weight_init=Tensor(weight), bias_init=Tensor(bias))
    return nn.SequentialCell([*stem, *blocks, Mean(), last])


def torch_resnet(side: int) -> Any:
    """Return the network in PyTorch."""
    import torch
    from torch import nn

    kernels = _kernels()
    next(kernels)

    def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(kernels.send((outputs, inputs, kernel, kernel))))
        return [layer, nn.BatchNorm2d(outputs)]

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            first, second = convolution(inputs, outputs, 3, stride), convolution(outputs, outputs, 3, 1)
            self.body = nn.Sequential(*first, nn.ReLU(), *second)
            self.skip = nn.Sequential(*convolution(inputs, outputs, 1, stride))

        def forward(self, x):
            return torch.relu(self.body(x) + self.skip(x))

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean((2, 3))

    blocks = [Block(a, b, s) for a, b, s in zip((CHANNELS[0], *CHANNELS), CHANNELS, (1, 2, 2), strict=False)]
    ((weight, bias),) = dense_weights((CHANNELS[-1], CLASSES))
    stem = [*convolution(1, CHANNELS[0], 3, 1), nn.ReLU()]
    last = nn.Linear(CHANNELS[-1], CLASSES)
    with torch.no_grad():
        last.weight.copy_(torch.from_numpy(weight))
        last.bias.copy_(torch.from_numpy(bias))
    return nn.Sequential(*stem, *blocks, Mean(), last)
