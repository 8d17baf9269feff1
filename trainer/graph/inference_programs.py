"""The programs that train nothing: one evaluation batch, one batch of predictions."""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import Parameter, nn, ops
from mindspore import dtype as mstype

from ..mindspore_internals.dict_networks import by_position
from .program import Forward, to_float32
from .row_losses import FilledForward

LARGE = 1 << 20  # entries of what a trial does not copy to the host


class EvalStep(nn.Cell):
    """One evaluation batch: columns in, (loss, prediction, label) out."""

    def __init__(self, forward: Forward | FilledForward, table_inputs: int = 0) -> None:
        super().__init__(auto_prefix=False)
        self.forward = forward
        self.label = forward.label
        self.several = forward.several
        self.table_inputs = table_inputs

    def construct(self, *columns):
        """Return (loss [], prediction, label), the label being the first column that goes to the loss.

        Of several tasks: (loss, predictions, labels, losses [T], rows [T]), predictions and labels in their order.
        """
        if self.table_inputs:
            columns = columns[: -self.table_inputs]
        loss, prediction = self._apply_forward(columns)
        if self.several:
            labels = columns[self.label :]
            losses, rows = self.forward.loss_fn.task_losses(prediction, labels)
            return loss, prediction, labels, losses, rows
        return loss, prediction, columns[self.label]

    def _apply_forward(self, columns):
        return self.forward(*columns)


class TrialStep(nn.Cell):
    """A training forward with its gradients, to see what they depend on; nothing is trained.

    Args:
        forward: of a network with one label.
        parameters: the parameters to differentiate.
        table_rows: what tables' rows are read from; their number and order change with that of the rows.
        table_inputs: number of inputs after the columns.
    """

    def __init__(
        self,
        forward: Forward | FilledForward,
        parameters: Sequence[Parameter],
        table_rows: Sequence[Parameter],
        table_inputs: int,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.forward = forward
        self.label = forward.label
        self.table_inputs = table_inputs
        self.dense = len(parameters)
        self.value_and_grad = ops.value_and_grad(forward, None, [*parameters, *table_rows], has_aux=True)

    def construct(self, *columns):
        """Return (loss [], prediction, label, gradients...), float32: norms along axis 0 for large ones and rows."""
        if self.table_inputs:
            columns = columns[: -self.table_inputs]
        (loss, prediction), gradients = self._differentiate(columns)
        outputs = (loss, prediction, columns[self.label])
        for index, gradient in enumerate(gradients):
            gradient = ops.cast(gradient, mstype.float32)
            if index >= self.dense or gradient.size > LARGE:
                gradient = ops.sqrt(ops.sum(gradient * gradient, 0))
            outputs += (gradient,)
        return outputs

    def _differentiate(self, columns):
        return self.value_and_grad(*columns)


class PredictStep(nn.Cell):
    """The network alone: input columns in, predictions out, float32 whatever the amp level."""

    def __init__(self, network: nn.Cell, *, cast: bool = False, table_inputs: int = 0) -> None:
        super().__init__(auto_prefix=False)
        self.network = by_position(network)
        self.cast_outputs = cast
        self.table_inputs = table_inputs

    def construct(self, *inputs):
        """Return the network's output."""
        if self.table_inputs:
            inputs = inputs[: -self.table_inputs]
        outputs = self._apply_network(inputs)
        if self.cast_outputs:
            outputs = to_float32(outputs)
        return outputs

    def _apply_network(self, inputs):
        return self.network(*inputs)
