"""MindSpore's own losses with row weights, so that padding weighs exactly nothing; the forward that has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import dtype as mstype
from mindspore import nn, ops

from .program import Forward, to_float32

# The values that a loss of each class averages or adds up.
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


class FilledForward(nn.Cell):
    """A `Forward` for padded batches: its loss is that of the rows that count, its prediction has all rows.

    The last column, after the label, has the row weights: float32 [rows], 1 or 0.

    Args:
        forward: of a network with one label.
        rows_loss: its loss, as `row_loss` returns it.
    """

    several = False

    def __init__(self, forward: Forward, rows_loss: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = forward.network
        self.label_cast = forward.label_cast
        self.cast_outputs = forward.cast_outputs
        self.rows_loss = rows_loss
        self.label = -2

    def construct(self, *columns):
        """Return (loss [], prediction)."""
        prediction = self._apply_network(columns[:-2])
        if self.cast_outputs:
            prediction = to_float32(prediction)
        label = self.label_cast(columns[-2], prediction)
        return self.rows_loss(prediction, label, columns[-1]), prediction

    def _apply_network(self, inputs):
        return self.network(*inputs)

    def rows(self, columns):
        """Return the number of rows that count; graph code."""
        return ops.sum(columns[-1])


def filled_forward(forward: Forward, loss_fn: Any) -> FilledForward | None:
    """Return the forward for padded batches; None if the loss cannot leave rows out."""
    rows_loss = row_loss(loss_fn) if forward.has_loss_fn and forward.labels == 1 else None
    return None if rows_loss is None else FilledForward(forward, rows_loss)


def unfillable(loss_fn: Any) -> str:
    """Return why batches with this loss cannot be padded, for the log."""
    kind = type(loss_fn).__name__ if isinstance(loss_fn, nn.Cell) else "the loss"
    return f"{kind} is not known to give a loss for each row" if loss_fn is not None else "the network returns its loss"
