"""Denominators of losses, to combine the losses of parts of a batch.

A mean loss is a total divided by a denominator: the number of rows, the sum of class weights, or the number of labels
that count. If a batch is divided into parts (the rows of each process, or the micro-batches of an update), then

    loss(batch) = sum(loss(part) * denominator(part)) / sum(denominator(part)),

and the same holds for gradients. A loss that is a sum has the denominator 1, and the losses of its parts are added.

A denominator is a cell called with (labels, weights): `labels` is the tuple of the loss's label columns, `weights` are
row weights, float32 [rows], or None. Its `kind` is ROWS (the number of rows, known before the step), ONE (for a sum) or
COUNTED (computed in the graph).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from ..errors import ConfigurationError

ROWS, ONE, COUNTED = "rows", "one", "counted"
_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
_NOT_MEANS = (nn.RMSELoss, nn.DiceLoss, nn.MultiClassDiceLoss)  # a root or a ratio of sums over the batch


class RowCount(nn.Cell):
    """The number of rows, or the sum of their weights."""

    kind = ROWS

    def construct(self, labels, weights=None):
        """Return the denominator; graph code."""
        if weights is not None:
            return ops.sum(weights)
        return labels[0].shape[0] if labels[0].ndim > 0 else 1


class One(nn.Cell):
    """1, for a loss that is a sum."""

    kind = ONE

    def construct(self, labels, weights=None):
        """Return the denominator; graph code."""
        return 1


class ClassWeights(nn.Cell):
    """The sum of the class weights of a batch's labels; ignored labels count 0.

    Labels that are class probabilities count 1 per row.
    """

    kind = COUNTED

    def __init__(self, ignored: int, classes: Tensor | None) -> None:
        super().__init__(auto_prefix=False)
        self.ignored = ignored
        self.has_classes = classes is not None
        self.classes = Tensor(np.ones(1, np.float32) if classes is None else classes.asnumpy().astype(np.float32))
        self.heaviest = int(self.classes.asnumpy().argmax())
        # Primitives compile faster than functions, see the module `program`.
        self.different, self.cast, self.sum = ops.NotEqual(), ops.Cast(), ops.ReduceSum()

    def construct(self, labels, weights=None):
        """Return the denominator, float32 []; graph code."""
        label = labels[0]
        if weights is None and not self.has_classes and not ops.is_floating_point(label):
            known = self.different(self.cast(label, mstype.int32), self.ignored)
            return self.sum(self.cast(known, mstype.float32))
        rows = label.shape[0] if label.ndim > 0 else 1
        if weights is None:
            weights = ops.ones((rows,), mstype.float32)
        if ops.is_floating_point(label):
            return ops.sum(weights)
        label = ops.reshape(ops.cast(label, mstype.int32), (rows, -1))
        known = label != self.ignored
        counted = ops.reshape(weights, (rows, 1)) * ops.cast(known, mstype.float32)
        if self.has_classes:
            counted = counted * ops.gather(self.classes, ops.select(known, label, ops.zeros_like(label)), 0)
        return ops.sum(counted)

    def where_counted(self, label, denominator):
        """Return the label, or the heaviest class if the denominator is 0; graph code.

        A loss divided by 0 has gradients that are NaN, and NaN times 0 is still NaN.
        """
        if not self.has_classes or ops.is_floating_point(label):
            return label
        counts = ops.broadcast_to(denominator > 0, label.shape)
        return ops.select(counts, label, ops.full_like(label, self.heaviest))


class Declared(nn.Cell):
    """Calls the method ``denominator`` of a user's loss with its label columns."""

    kind = COUNTED

    def __init__(self, loss_fn: Any) -> None:
        super().__init__(auto_prefix=False)
        self.loss_fn = loss_fn

    def construct(self, labels, weights=None):
        """Return the denominator, float32 []; graph code."""
        return ops.reshape(ops.cast(self._apply(labels), mstype.float32), ())

    def _apply(self, labels):
        return self.loss_fn.denominator(*labels)


def denominator_of(loss_fn: Any) -> nn.Cell | None:
    """Return the denominator of a loss, or of a cell that returns the loss, or None.

    None means that the denominator is unknown.

    A user's own loss declares it in an attribute ``denominator``: "rows" for a mean over rows, 1 for a sum, or a method
    that returns the denominator for a batch's label columns.

    Raises:
        ConfigurationError: the attribute has another value.
    """
    while isinstance(loss_fn, nn.WithLossCell | nn.TrainOneStepCell) and not hasattr(loss_fn, "denominator"):
        loss_fn = loss_fn.network if isinstance(loss_fn, nn.TrainOneStepCell) else loss_fn._loss_fn
    declared = getattr(loss_fn, "denominator", None)
    if declared is not None:
        if callable(declared):
            return Declared(loss_fn)
        if declared in (ROWS, 1):
            return RowCount() if declared == ROWS else One()
        raise ConfigurationError(
            f"{name_of(loss_fn)}.denominator = {declared!r}: expected 'rows' for a mean over rows, 1 for a sum, or a "
            "method that returns the denominator of a batch from its label columns"
        )
    kind, reduction = type(loss_fn), reduction_of(loss_fn)
    if reduction == "none":
        return RowCount()
    if kind.__module__ != nn.MSELoss.__module__ or kind in _NOT_MEANS:
        return None
    if reduction == "sum":
        return One()
    return ClassWeights(loss_fn.ignore_index, loss_fn.weight) if kind in _CLASSES else RowCount()


def reduction_of(loss_fn: Any) -> str | None:
    """Return a loss's reduction ("mean", "sum" or "none"), or None if unknown."""
    reduction = getattr(loss_fn, "reduction", None)
    if isinstance(reduction, str):
        return reduction
    if not isinstance(loss_fn, nn.LossBase):
        return None
    return "none" if not loss_fn.reduce else "mean" if loss_fn.average else "sum"


def name_of(loss_fn: Any) -> str:
    """Return a loss's name for error messages."""
    return type(loss_fn).__name__ if isinstance(loss_fn, nn.Cell) else getattr(loss_fn, "__name__", str(loss_fn))
