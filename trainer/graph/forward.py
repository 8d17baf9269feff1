"""Network and loss as one cell, for training, evaluation and prediction."""

from __future__ import annotations

import itertools
import math
import weakref
from typing import Any

from mindspore import dtype as mstype
from mindspore import nn, ops

from ..mindspore_internals.dict_networks import by_position
from .denominators import COUNTED, ClassWeights, RowCount, denominator_of
from .labels import LabelCast
from .losses import fused_loss
from .multi_task import MultiTaskLoss
from .row_losses import RowLoss, row_loss

_numbers = itertools.count()
_names: dict[int, tuple[str, ...]] = {}  # number of an `ExportStep` -> keys of the dict that its network returns


class Forward(nn.Cell):
    """Network and loss as one cell: columns in, (loss, prediction) out, both float32.

    A loss function receives the prediction and the last `labels` columns. Without a loss function the network
    receives every column and returns the loss, or a tuple that starts with (loss, prediction).
    """

    returns_denominator = False  # whether the step also returns the loss's denominator; False for several tasks

    def __init__(self, network: nn.Cell, loss_fn: nn.Cell | None, *, labels: int = 1, cast: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.network = by_position(network)
        self.loss_fn: Any = fused_loss(loss_fn)
        self.label_cast = LabelCast(loss_fn)
        self.has_loss_fn = loss_fn is not None
        self.is_multi_task = isinstance(loss_fn, MultiTaskLoss)
        self.separate_losses = False  # while training, return the tasks' losses, [T], instead of their weighted sum
        self.labels = labels
        self.label = -max(1, labels)
        counted: Any = (
            loss_fn if self.is_multi_task else denominator_of(network if loss_fn is None else loss_fn) or RowCount()
        )
        self.kind = counted.kind  # kind of the loss's denominator
        if not self.is_multi_task:
            self.divisor = counted
            self.returns_denominator = counted.kind == COUNTED
            self.of_classes = isinstance(counted, ClassWeights)
        self.cast_outputs = cast
        self.select, self.greater, self.zeros = ops.Select(), ops.Greater(), ops.ZerosLike()  # see `program`

    def construct(self, *columns):
        """Return (loss [], prediction)."""
        if self.has_loss_fn:
            if self.labels == 1:
                *inputs, label = columns
                prediction = self._apply_network(inputs)
            else:
                prediction = self._apply_network(columns[: -self.labels] if self.labels else columns)
            if self.is_multi_task:
                prediction = self.loss_fn.in_order(prediction)
            if self.cast_outputs:
                prediction = to_float32(prediction)
            if self.labels == 1:
                labels = (self.label_cast(label, prediction),)
            elif self.labels == 0:
                labels = ()
            elif self.is_multi_task:
                labels = columns[-self.labels :]
            else:
                labels = self.label_cast.match_shapes(columns[-self.labels :], prediction)
            if self.separate_losses and self.training:
                return self.loss_fn.task_losses(prediction, labels)[0], prediction
            if self.returns_denominator:
                return self._counted_loss(prediction, labels, self.denominator(columns)), prediction
            return self._scalar(self._apply_loss(prediction, labels)), prediction
        outputs = self._apply_network(columns)
        if self.cast_outputs:
            outputs = to_float32(outputs)
        if isinstance(outputs, tuple):
            if len(outputs) > 1:
                return _scalar_loss(outputs[0]), outputs[1]
            return _scalar_loss(outputs[0]), outputs[0]
        return _scalar_loss(outputs), outputs

    def _apply_network(self, inputs):
        return self.network(*inputs)

    def _counted_loss(self, prediction, labels, denominator):
        """Return the loss, or 0 if no label counts, where a mean would be NaN."""
        if self.of_classes:
            labels = (self.divisor.where_counted(labels[0], denominator),)
        loss = self._scalar(self._apply_loss(prediction, labels))
        return self.select(self.greater(denominator, 0), loss, self.zeros(loss))

    def _scalar(self, loss):
        if loss.ndim == 0:
            return loss
        if self.training:
            return _scalar_loss(loss)
        return ops.mean(loss)

    def _apply_loss(self, prediction, labels):
        return self.loss_fn(prediction, *labels)

    def denominator(self, columns):
        """Return the loss's denominator, float32 [], or [T] for tasks; graph code."""
        labels = columns
        if self.has_loss_fn and self.labels > 0:
            labels = columns[-self.labels :]
        if self.is_multi_task:
            return self._task_denominators(labels)
        return self.divisor(labels)

    def _task_denominators(self, labels):
        return self.loss_fn.denominators_of(labels)

    def task_losses(self, prediction, columns):
        """Return losses [T] and denominators [T] of the tasks, and their labels."""
        labels = columns[-self.labels :]
        losses, totals = self.loss_fn.task_losses(prediction, labels)
        return losses, totals, labels


def kept_output(prediction, output):
    """Return the network output that `StepOptions.output` selects; graph code."""
    if isinstance(prediction, dict):
        prediction = tuple([part for _, part in prediction.items()])
    if not isinstance(prediction, (tuple, list)):
        return prediction
    if output >= 0:
        return prediction[output]
    parts = ()
    for part in prediction:
        parts += (ops.cast(ops.reshape(part, (part.shape[0], -1)), mstype.float32),)
    return ops.concat(parts, 1)


def _scalar_loss(loss):
    if loss.ndim == 0:
        return loss
    return ops.reshape(loss, _scalar_shape(loss.shape))


@ops.constexpr
def _scalar_shape(shape):
    if math.prod(shape) != 1:
        raise ValueError(
            f"the loss must be one number, the mean over the batch; received one of shape {shape}; many loss functions "
            "give that with reduction='mean'"
        )
    return ()


def to_float32(value):
    """Cast half-precision outputs, nested or not, to float32; graph code."""
    if isinstance(value, (tuple, list)):
        return tuple([to_float32(item) for item in value])
    if isinstance(value, dict):
        return {key: to_float32(item) for key, item in value.items()}
    if value.dtype in (mstype.float16, mstype.bfloat16):
        return ops.cast(value, mstype.float32)
    return value


class WeightedForward(Forward):
    """A `Forward` whose last column has row weights of the loss, float32 [rows].

    The weights are the declared row weights, or 1 for data and 0 for padding. A mean loss becomes sum(w l) / sum(w).
    `weighted_loss` is None for a `MultiTaskLoss`, which applies the weights itself.
    """

    def __init__(
        self,
        network: nn.Cell,
        loss_fn: nn.Cell,
        weighted_loss: RowLoss | None,
        *,
        labels: int,  # number of columns for the loss, including the weights
        kind: str,  # kind of the denominator; ROWS if the weights only mask padding
        cast: bool = False,
    ) -> None:
        super().__init__(network, loss_fn, labels=labels, cast=cast)
        self.weighted_loss: Any = weighted_loss
        self.kind = kind
        self.returns_denominator = kind == COUNTED and not self.is_multi_task
        if weighted_loss is not None:
            self.divisor = weighted_loss.divisor

    def construct(self, *columns):
        """Return (loss [], prediction)."""
        prediction = self._apply_network(columns[: -self.labels])
        if self.is_multi_task:
            prediction = self.loss_fn.in_order(prediction)
        if self.cast_outputs:
            prediction = to_float32(prediction)
        labels, weights = columns[-self.labels : -1], self._weights(columns)
        if self.is_multi_task:
            losses, totals = self.loss_fn.task_losses(prediction, labels, weights)
            if self.separate_losses and self.training:
                return losses, prediction
            if self.training:
                self.loss_fn.add(losses * totals, totals)
            return self.loss_fn.weighted_sum(losses), prediction
        if self.labels == 2:
            labels = (self.label_cast(labels[0], prediction),)
        else:
            labels = self.label_cast.match_shapes(labels, prediction)
        return self.weighted_loss(prediction, labels, weights), prediction

    def denominator(self, columns):
        """Return the loss's denominator, float32 [], or [T] for tasks; graph code."""
        labels, weights = columns[-self.labels : -1], self._weights(columns)
        if self.is_multi_task:
            return self.loss_fn.denominators_of(labels, weights)
        return self.divisor(labels, weights)

    def task_losses(self, prediction, columns):
        """Return losses [T] and denominators [T] of the tasks, and their labels."""
        labels = columns[-self.labels : -1]
        losses, totals = self.loss_fn.task_losses(prediction, labels, self._weights(columns))
        return losses, totals, labels

    def _weights(self, columns):
        return ops.cast(ops.reshape(columns[-1], (-1,)), mstype.float32)


def padded_forward(forward: Forward, loss_fn: Any) -> WeightedForward | None:
    """Return the forward for padded batches; None if the loss cannot leave rows out."""
    fits = forward.has_loss_fn and forward.labels == 1
    weighted_loss = row_loss(loss_fn) if fits and getattr(loss_fn, "weight", None) is None else None
    if weighted_loss is None:
        return None
    cast, kind = forward.cast_outputs, forward.kind
    weighted = WeightedForward(forward.network, loss_fn, weighted_loss, labels=2, kind=kind, cast=cast)
    weighted.label_cast = forward.label_cast  # `ClassRangeCheck` reads the shapes from it
    weighted.returns_denominator = forward.returns_denominator
    return weighted


def why_not_padded(loss_fn: Any) -> str:
    """Return why batches with this loss cannot be padded and what to do, for the log."""
    if loss_fn is None:
        return "the network returns its loss"
    kind = type(loss_fn).__name__ if isinstance(loss_fn, nn.Cell) else "the loss"
    return f"{kind} is not known to give a loss for each row; return one value per row, and batches may be padded"


class EvalStep(nn.Cell):
    """One evaluation batch: columns in, (loss, prediction, label) out."""

    def __init__(self, forward: Forward, table_inputs: int = 0, *, returns_denominator: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.forward = forward
        self.returns_denominator = returns_denominator and forward.returns_denominator
        self.label = forward.label
        self.is_multi_task = forward.is_multi_task
        self.table_inputs = table_inputs

    def construct(self, *columns):
        """Return (loss [], prediction, label); the label is the loss's first column.

        With `returns_denominator`, the loss's denominator, float32 [], follows. With several tasks, return (loss,
        predictions, labels, losses [T], rows [T]) in the order of the tasks.
        """
        if self.table_inputs:
            columns = columns[: -self.table_inputs]
        loss, prediction = self._apply_forward(columns)
        if self.is_multi_task:
            losses, rows, labels = self.forward.task_losses(prediction, columns)
            return loss, prediction, labels, losses, rows
        if self.returns_denominator:
            return loss, prediction, columns[self.label], self.forward.denominator(columns)
        return loss, prediction, columns[self.label]

    def _apply_forward(self, columns):
        return self.forward(*columns)


class PredictStep(nn.Cell):
    """Only the network: input columns in, float32 predictions out."""

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


class ExportStep(nn.Cell):
    """The network as it is exported: a dict or list of outputs becomes a tuple."""

    def __init__(self, network: nn.Cell, *, cast: bool) -> None:
        super().__init__(auto_prefix=False)
        self.step = PredictStep(network, cast=cast)
        self.number = next(_numbers)
        weakref.finalize(self, _names.pop, self.number, None)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Keys of the dict that the network returned in the last export; else empty."""
        return _names.get(self.number, ())

    def construct(self, *inputs):
        """Return the network's outputs."""
        outputs = self.step(*inputs)
        if isinstance(outputs, dict):
            names = tuple([name for name, _ in outputs.items()])
            return tuple([outputs[name] for name in _noted(self.number, names)])
        if isinstance(outputs, list):
            return tuple(outputs)
        return outputs


@ops.constexpr
def _noted(number, names):
    _names[number] = names
    return names
