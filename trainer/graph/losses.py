"""Replacements for MindSpore's losses that compile and run faster."""

from __future__ import annotations

from typing import Any

from mindspore import dtype as mstype
from mindspore import nn, ops


class FusedBCEWithLogits(nn.Cell):
    """`nn.BCEWithLogitsLoss()` with the gradient (sigmoid(x) - y) / n.

    MindSpore's own gradient supports weights and takes ten operators, a sixth of a small network's step.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def construct(self, logits, labels):
        """Return the mean loss."""
        return ops.binary_cross_entropy_with_logits(logits, labels, None, None, "mean")

    def bprop(self, logits, labels, out, dout):
        """Return the gradients; none for the labels, which are data."""
        return (ops.sigmoid(logits) - labels) * (dout * (1.0 / logits.size)), ops.zeros_like(labels)


class FusedCrossEntropy(nn.Cell):
    """`nn.CrossEntropyLoss()` with the gradient (softmax(x) - one_hot(y)) / n.

    MindSpore's own loss supports weights, smoothing and more axes, and takes as long to compile as a small network. It
    is used (`whole`) for inputs other than float32 logits [rows, classes] with int32 labels [rows].
    """

    def __init__(self, whole: nn.CrossEntropyLoss) -> None:
        super().__init__(auto_prefix=False)
        self.whole = whole
        self.fused = _OfClassNumbers(whole.ignore_index)

    def construct(self, logits, labels):
        """Return the mean loss."""
        if logits.ndim == 2 and logits.dtype == mstype.float32 and labels.ndim == 1 and labels.dtype == mstype.int32:
            return self.fused(logits, labels)
        return self.whole(logits, labels)


class _OfClassNumbers(nn.Cell):
    def __init__(self, ignored: int) -> None:
        super().__init__(auto_prefix=False)
        self.ignored = ignored
        # primitives, because the functions of the same names add checks that would be compiled too
        self.logs, self.softmax, self.one_hot = ops.LogSoftmax(1), ops.Softmax(1), ops.OneHot()
        self.gather, self.select, self.different = ops.GatherD(), ops.Select(), ops.NotEqual()
        self.cast, self.reshape, self.zeros = ops.Cast(), ops.Reshape(), ops.ZerosLike()
        self.maximum, self.less = ops.Maximum(), ops.Less()
        self.mul, self.div, self.sub, self.neg, self.sum = ops.Mul(), ops.Div(), ops.Sub(), ops.Neg(), ops.ReduceSum()

    def construct(self, logits, labels):
        counted = self.different(labels, self.ignored)
        known = self.reshape(self.select(counted, labels, self.zeros(labels)), (-1, 1))
        logs = self.reshape(self.gather(self.logs(logits), 1, known), (-1,))
        total = self.sum(self.select(counted, logs, self.zeros(logs)))
        return self.neg(self.div(total, self.sum(self.cast(counted, mstype.float32))))

    def bprop(self, logits, labels, out, dout):
        counted = self.cast(self.different(labels, self.ignored), mstype.float32)
        # at least 1, so that gradients stay finite if every label is ignored (the loss is then NaN)
        rows = self.maximum(self.sum(counted), self.cast(1.0, mstype.float32))
        weights = self.reshape(self.div(self.mul(counted, dout), rows), (-1, 1))
        classes = logits.shape[1]
        known = self.select(self.less(labels, 0), labels + classes, labels)  # -1 is the last class, as in `construct`
        wanted = self.one_hot(known, classes, self.cast(1.0, mstype.float32), self.cast(0.0, mstype.float32))
        return self.mul(self.sub(self.softmax(logits), wanted), weights), self.zeros(labels)


class BroadcastBCE(nn.Cell):
    """`nn.BCELoss` with a weight that broadcasts to the prediction, such as [C].

    MindSpore's CPU kernel reads one weight per predicted value, and so reads past the end of a smaller weight.
    """

    def __init__(self, loss: nn.BCELoss, reduction: str) -> None:
        super().__init__(auto_prefix=False)
        self.weight, self.reduction = loss.weight, reduction

    def construct(self, prediction, labels):
        """Return the loss."""
        weight = ops.broadcast_to(ops.cast(self.weight, prediction.dtype), prediction.shape)
        return ops.binary_cross_entropy(prediction, labels, weight, self.reduction)


def broadcasting(loss_fn: Any, reduction: str | None = None) -> Any:
    """Replace an `nn.BCELoss` that has a weight by `BroadcastBCE`; keep other losses."""
    if type(loss_fn) is not nn.BCELoss or loss_fn.weight is None:
        return loss_fn
    return BroadcastBCE(loss_fn, loss_fn.reduction if reduction is None else reduction)


def fused_loss(loss_fn: nn.Cell | None) -> nn.Cell | None:
    """Return an equivalent of `loss_fn` with fewer operators, or `loss_fn` itself."""
    kind = type(loss_fn)
    if loss_fn is None or kind not in (nn.BCEWithLogitsLoss, nn.CrossEntropyLoss):
        return broadcasting(loss_fn)
    if loss_fn.reduction != "mean" or loss_fn.weight is not None:
        return loss_fn
    if kind is nn.BCEWithLogitsLoss:
        return FusedBCEWithLogits() if loss_fn.pos_weight is None else loss_fn
    return FusedCrossEntropy(loss_fn) if loss_fn.label_smoothing == 0 else loss_fn
