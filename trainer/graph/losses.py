"""Loss cells of MindSpore whose gradient can be had with fewer operators."""

from __future__ import annotations

from mindspore import nn, ops


class FusedBCEWithLogits(nn.Cell):
    """The value of `nn.BCEWithLogitsLoss()` and its gradient, (sigmoid(x) - y) / n.

    MindSpore's own gradient provides for weights and takes ten operators, some of them multiplications by one; for a
    small network that is a sixth of the step.

    Inputs:
        logits, labels: float tensors of one shape.

    Outputs:
        Scalar, the mean over all elements.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def construct(self, logits, labels):
        """Return the mean loss."""
        return ops.binary_cross_entropy_with_logits(logits, labels, None, None, "mean")

    def bprop(self, logits, labels, out, dout):
        """Return the gradients; none for the labels, which are data."""
        return (ops.sigmoid(logits) - labels) * (dout * (1.0 / logits.size)), ops.zeros_like(labels)


def fused_loss(loss_fn: nn.Cell | None) -> nn.Cell | None:
    """Return what computes the same as `loss_fn` in fewer operators where there is such a cell, else `loss_fn`."""
    plain = type(loss_fn) is nn.BCEWithLogitsLoss and loss_fn.weight is None and loss_fn.pos_weight is None
    return FusedBCEWithLogits() if plain and loss_fn.reduction == "mean" else loss_fn
