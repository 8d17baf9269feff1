"""`RowOptimizer`: updates the packed rows ``[weight | slots]`` of a step.

The training graph calls it with all distinct rows of a step. Updates are therefore lazy: rows without a gradient do not
change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from mindspore import nn

from ...checks import number

if TYPE_CHECKING:
    from ..tables.kernels import RowKernel


class RowOptimizer(nn.Cell):
    """Base class of row optimizers.

    Args:
        lr: constant learning rate; None follows the Trainer's dense optimizer, schedule included.

    Attributes:
        hyperparameters: names of the attributes that hold hyperparameters.
    """

    hyperparameters: tuple[str, ...] = ("lr",)

    def __init__(self, lr: float | None = None) -> None:
        super().__init__(auto_prefix=False)
        number(f"{type(self).__name__}(lr=...)", lr, minimum=0, optional=True)
        self.lr = lr

    def first_slots(self, dim: int) -> np.ndarray:
        """Return the slots of a new row with `dim` weights, float32 [slot columns]."""
        raise NotImplementedError

    def construct(self, rows, gradients, lr, step):
        """Return the updated rows, float32 [n, dim + slots].

        Args:
            rows: packed rows, float32 [n, dim + slots].
            gradients: gradient of the weights, float32 [n, dim].
            lr: learning rate, float32 scalar.
            step: number of this update, from 1, float32 scalar.
        """
        raise NotImplementedError

    def rate(self, lr, step):
        """Return this update's learning rate, a float32 scalar; graph code."""
        return lr

    def kernel(self) -> tuple[RowKernel, tuple[float, ...]] | None:
        """Return the CPU kernel that updates rows in place, and its hyperparameters.

        The kernel receives the result of `rate`, followed by these hyperparameters. With None, the graph calls
        `construct` instead. The graph also does so for a subclass that overrides only one of `kernel` and `construct`,
        because the two would disagree.
        """
        return None

    def settings(self) -> dict[str, float | bool | str | None]:
        """Return the class name and the hyperparameters.

        Tables with equal settings are updated together.
        """
        return {"name": type(self).__name__, **{name: getattr(self, name) for name in self.hyperparameters}}


def rule_of(optimizer: RowOptimizer) -> str:
    """Return the name of the first class of this package that an optimizer is of.

    Snapshots hold it, because other rules give other meanings to the same slots.
    """
    package = __name__.partition(".")[0]
    return next(kind.__name__ for kind in type(optimizer).__mro__ if kind.__module__.startswith(f"{package}."))
