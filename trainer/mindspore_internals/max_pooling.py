"""Max pooling on a CPU whose gradient is not slow.

Relied on: what `child_cells` and `patched_methods` say, so a cell's `construct` may be another one while a program is
compiled; an `nn.MaxPool2d` has its operator in `max_pool`.

With AVX2, to which convolutions limit oneDNN (`onednn`), `MaxPool` and its gradient take 10.6 ms for 64 images of 16
channels of 28 x 28, nine of them the gradient; 5.0 ms with AVX-512. `AdaptiveMaxPool2D`, MindSpore's own, takes 3.4 to
4.6 ms with either, nearly all of it for the maxima: so it is for training alone. It gives the same maxima where windows
neither overlap nor leave anything over.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator

import mindspore
from mindspore import dtype as mstype
from mindspore import nn, ops

from .child_cells import hide


@contextlib.contextmanager
def fast_max_pooling(network: nn.Cell) -> Iterator[None]:
    """Let programs compiled meanwhile pool by `AdaptiveMaxPool2D` in training, wherever it gives the same maxima."""
    cells = _replaceable(network) if mindspore.get_context("device_target") == "CPU" else []
    for cell in cells:
        hide(cell, "window", _pair(cell.kernel_size))
        hide(cell, "construct", types.MethodType(_construct, cell))
    try:
        yield
    finally:
        for cell in cells:
            del vars(cell)["construct"], vars(cell)["window"]


def _replaceable(network: nn.Cell) -> list[nn.Cell]:
    """Return the max pooling cells whose windows do not overlap and that pad nothing if none is cut."""
    return [
        cell
        for _, cell in network.cells_and_names()
        if type(cell) is nn.MaxPool2d
        and _pair(cell.kernel_size) == _pair(cell.stride)
        and isinstance(cell.max_pool, ops.MaxPool)
        and cell.format == "NCHW"
        and not {"construct", "window"} & set(vars(cell))
    ]


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _construct(self, x):
    """Return what `nn.MaxPool2d.construct` returns."""
    if x.ndim == 3:
        return self.max_pool(x.unsqueeze(0)).squeeze(0)
    height, width = self.window
    whole = x.shape[2] % height == 0 and x.shape[3] % width == 0
    if self.training and whole and x.dtype in (mstype.float16, mstype.float32):
        return ops.adaptive_max_pool2d(x, (x.shape[2] // height, x.shape[3] // width))
    return self.max_pool(x)
