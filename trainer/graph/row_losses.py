"""MindSpore's own losses row by row, so that made-up rows of a batch weigh exactly nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import dtype as mstype
from mindspore import nn, ops

# What gives the values that a loss of each class averages or adds up.
_EACH: dict[type, Callable[[Any], nn.Cell]] = {
    nn.BCELoss: lambda loss: nn.BCELoss(reduction="none"),
    nn.BCEWithLogitsLoss: lambda loss: nn.BCEWithLogitsLoss("none"),
    nn.CrossEntropyLoss: lambda loss: nn.CrossEntropyLoss(None, loss.ignore_index, "none", loss.label_smoothing),
    nn.HuberLoss: lambda loss: nn.HuberLoss("none", loss.delta),
    nn.L1Loss: lambda loss: nn.L1Loss("none"),
    nn.MAELoss: lambda loss: nn.MAELoss("none"),
    nn.MSELoss: lambda loss: nn.MSELoss("none"),
    nn.SmoothL1Loss: lambda loss: nn.SmoothL1Loss(loss.beta, "none"),
    nn.SoftmaxCrossEntropyWithLogits: lambda loss: nn.SoftmaxCrossEntropyWithLogits(loss.sparse, "none"),
}


class RowLoss(nn.Cell):
    """A loss over the rows that count.

    Args:
        each: cell of (prediction, label) -> a value for each row, or for each element of it.
        mean: whether the values are averaged; else they are added up.
        ignored: class number whose labels count for nothing, or None.

    Inputs:
        prediction, label: tensors with the rows on axis 0.
        weights: float32 [rows], 1 for a row that counts and 0 for one that does not.

    Outputs:
        Scalar, float32.
    """

    def __init__(self, each: nn.Cell, *, mean: bool, ignored: int | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.each = each
        self.mean = mean
        self.ignored = ignored

    def construct(self, prediction, label, weights):
        """Return the loss."""
        values = self.each(prediction, label)
        rows = weights.shape[0]
        values = ops.cast(ops.reshape(values, (rows, -1)), mstype.float32)
        counted = ops.reshape(weights, (rows, 1))
        elements = values.shape[1]
        if self.ignored is not None and label.ndim < prediction.ndim:
            # MindSpore leaves ignored labels out of the number that it divides by as well
            counted = counted * ops.cast(ops.reshape(label, (rows, -1)) != self.ignored, mstype.float32)
            elements = 1
        total = ops.sum(values * counted)
        if self.mean:
            return total / (ops.sum(counted) * elements)
        return total


def row_loss(loss_fn: Any) -> RowLoss | None:
    """Return the same loss over the rows that count; None for one that is not MindSpore's own, or that has weights.

    A loss of one value a row (``reduction="none"``) is averaged, as evaluation does.
    """
    make = _EACH.get(type(loss_fn))
    if make is None or any(getattr(loss_fn, name, None) is not None for name in ("weight", "pos_weight")):
        return None
    ignored = loss_fn.ignore_index if type(loss_fn) is nn.CrossEntropyLoss else None
    return RowLoss(make(loss_fn), mean=_reduction(loss_fn) != "sum", ignored=ignored)


def _reduction(loss_fn: Any) -> str:
    stated = getattr(loss_fn, "reduction", None)
    if stated is not None:
        return stated
    return "mean" if loss_fn.average or not loss_fn.reduce else "sum"
