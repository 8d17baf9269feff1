"""Losses with one value per row: weighted mean and its denominator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from ..data.column_checks import label_columns
from ..errors import ConfigurationError
from ..mindspore_internals.execution import eager_mode, wait_for_operators
from .denominators import COUNTED, ONE, ClassWeights, Declared, RowCount, denominator_of, name_of, reduction_of
from .losses import broadcasting

# Class of a loss -> function that builds the same loss without a reduction.
_UNREDUCED: dict[type, Callable[[Any], nn.Cell]] = {
    nn.BCELoss: lambda loss: nn.BCELoss(None, "none") if loss.weight is None else broadcasting(loss, "none"),
    nn.BCEWithLogitsLoss: lambda loss: nn.BCEWithLogitsLoss("none", loss.weight, loss.pos_weight),
    nn.CrossEntropyLoss: lambda loss: nn.CrossEntropyLoss(loss.weight, loss.ignore_index, "none", loss.label_smoothing),
    nn.FocalLoss: lambda loss: nn.FocalLoss(loss.weight, loss.gamma, "none"),
    nn.HingeEmbeddingLoss: lambda loss: nn.HingeEmbeddingLoss(loss.margin, "none"),
    nn.HuberLoss: lambda loss: nn.HuberLoss("none", loss.delta),
    nn.L1Loss: lambda loss: nn.L1Loss("none"),
    nn.MAELoss: lambda loss: nn.MAELoss("none"),
    nn.MSELoss: lambda loss: nn.MSELoss("none"),
    nn.MultiLabelSoftMarginLoss: lambda loss: nn.MultiLabelSoftMarginLoss(loss.weight, "none"),
    nn.NLLLoss: lambda loss: nn.NLLLoss(loss.weight, loss.ignore_index, "none"),
    nn.PoissonNLLLoss: lambda loss: nn.PoissonNLLLoss(loss.log_input, loss.full, loss.eps, "none"),
    nn.SmoothL1Loss: lambda loss: nn.SmoothL1Loss(loss.beta, "none"),
    nn.SoftmaxCrossEntropyWithLogits: lambda loss: nn.SoftmaxCrossEntropyWithLogits(loss.sparse, "none"),
}
# (prediction shape, label shape, label dtype) of the two rows with which `_reduces` calls a loss of an unknown class.
_PROBES = (((2, 1), (2, 1), np.float32), ((2,), (2,), np.float32), ((2, 3), (2,), np.int32))
TINY = 1e-30


class RowLoss(nn.Cell):
    """The weighted mean of a loss over rows, sum(w l) / sum(w), or the weighted sum.

    If a row has several values, for example one per output, they are averaged. Class weights and ignored labels count
    as in MindSpore's own mean. The label of a row of weight 0 may be NaN. If all weights are 0, the loss is 0.

    Args:
        each: function of (prediction, labels...) that returns one value per row, or several.
        divisor: denominator of the loss (`trainer.graph.denominators`).
    """

    def __init__(self, each: Any, divisor: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.each = each
        self.divisor = divisor
        self.kind = ONE if divisor.kind == ONE else COUNTED  # kind of the denominator
        self.of_classes = isinstance(divisor, ClassWeights)
        self.name = name_of(each)

    def construct(self, prediction, labels, weights):
        """Return the loss; `labels` is a tuple, the weights are float32 [rows]."""
        rows, known = weights.shape[0], ()
        for label in labels:
            if ops.is_floating_point(label):  # replace it before the loss, because NaN times 0 is NaN
                counts = ops.reshape(weights, (rows,) + (1,) * (label.ndim - 1)) > 0
                label = ops.select(ops.broadcast_to(counts, label.shape), label, ops.zeros_like(label))
            known += (label,)
        values = self._row_values(prediction, known)
        values = ops.reshape(ops.cast(values, mstype.float32), _shape_of_rows(self.name, values.shape, rows))
        counts = ops.broadcast_to(ops.reshape(weights, (rows, 1)) > 0, values.shape)
        total = ops.sum(ops.select(counts, values, ops.zeros_like(values)) * ops.reshape(weights, (rows, 1)))
        if self.kind == ONE:
            return total
        elements = 1 if self.of_classes and labels[0].ndim < prediction.ndim else values.shape[1]
        return total / (ops.maximum(self.divisor(labels, weights), TINY) * elements)

    def _row_values(self, prediction, labels):
        return self.each(prediction, *labels)


@ops.constexpr
def _shape_of_rows(name, shape, rows):
    if shape[:1] != (rows,):
        given = f"the shape {list(shape)}" if shape else "one number"
        raise ConfigurationError(
            f"{name} returns {given} for a batch of {rows} rows, so they cannot be weighed; {_REMEDY}"
        )
    return rows, -1


_REMEDY = (
    "let it return one value per row (reduction='none'), which the trainer weighs, or take the weight as its last "
    "argument: construct(self, prediction, label, weight)"
)


def row_loss(loss_fn: Any) -> RowLoss | None:
    """Return a MindSpore loss as a `RowLoss`, or None for any other loss.

    A loss that returns one value per row (``reduction="none"``) becomes a weighted mean.
    """
    make = _UNREDUCED.get(type(loss_fn))
    if make is None:
        return None
    return RowLoss(make(loss_fn), denominator_of(loss_fn))


def weighable(loss_fn: Any, weight: str, what: str = "") -> RowLoss:
    """Return any loss as a `RowLoss`.

    Raises:
        ConfigurationError: the loss returns one number for all rows, or has its own method `denominator`.
    """
    known = row_loss(loss_fn)
    if known is not None:
        return known
    if _reduces(loss_fn):
        raise ConfigurationError(
            f"Features(weight={weight!r}): {what}{name_of(loss_fn)} returns one number for a batch, so the weights "
            f"of its rows cannot be applied; {_REMEDY}"
        )
    divisor = denominator_of(loss_fn) or RowCount()
    if isinstance(divisor, Declared):
        raise ConfigurationError(
            f"Features(weight={weight!r}): {what}{name_of(loss_fn)}.denominator knows the labels of a batch and not "
            "the weights of its rows; leave it out, for sum(w l) / sum(w), or take the weight as the last argument"
        )
    return RowLoss(loss_fn, divisor)


def _reduces(loss_fn: Any) -> bool:
    """Return whether a loss of an unknown class returns one number for a batch.

    Calls the loss with two rows of common shapes. If all calls fail, the answer follows from its `reduction`; if that
    is unknown too, False is returned and the compilation of the step checks the loss.
    """
    if getattr(type(loss_fn), "rows_depend", False):
        return True
    call = loss_fn.construct if isinstance(loss_fn, nn.Cell) else loss_fn
    for predicted, labelled, dtype in _PROBES:
        prediction = Tensor(np.linspace(0.3, 0.7, int(np.prod(predicted)), dtype=np.float32).reshape(predicted))
        labels = [Tensor(np.array([0, 1], dtype).reshape(labelled))] * label_columns(loss_fn)
        try:
            with eager_mode():
                return call(prediction, *labels).ndim == 0
        except Exception:
            wait_for_operators()
    return reduction_of(loss_fn) not in (None, "none")
