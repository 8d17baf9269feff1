"""Adapter for a training step written by the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..distributed.step_reducer import replace_reducers
from ..mindspore_internals.cell_structure import hide, moving_statistics
from ..mindspore_internals.dict_networks import by_position
from .denominators import ROWS, RowCount, denominator_of


class CustomStep(nn.Cell):
    """A user's training step (`nn.TrainOneStepCell`) with `TrainStep`'s interface.

    The user's step returns the loss, or a tuple that begins with the loss. With several processes, its gradient
    reducers are replaced: they weight the gradients of each process by the loss's denominator, or by the number of rows
    if that is unknown. The returned loss is then the loss over the rows of all processes. `exchange` is that of
    `StepOptions`.
    """

    returns_denominator = False

    def __init__(self, step: nn.Cell, exchange: Callable[..., nn.Cell] | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.step = by_position(step)
        self.exchange: Any = None
        if exchange is not None:
            self.exchange = exchange(0, moving_statistics(step))
            for name, value in (("rows", np.ones(2, np.float32)), ("loss", np.float32(0))):
                hide(self, name, Parameter(Tensor(value), name=f"trainer.step_{name}", requires_grad=False))
            self.denominator = denominator_of(step) or RowCount()
            self.kind = self.denominator.kind
            replace_reducers(step, self.exchange, self.rows)

    def construct(self, flush, *columns):
        """Train one batch; return (loss, outputs of the user's step)."""
        if self.exchange is not None:
            return self._apply_together(columns[:-1], columns[-1])
        outputs = self._apply_step(columns)
        loss = outputs[0] if isinstance(outputs, tuple) else outputs
        return ops.mean(loss), outputs

    def _apply_together(self, columns, rows):
        if self.kind != ROWS:
            rows = self.exchange.begin(rows, self.denominator(columns[-1:]))
        ops.assign(self.rows, rows)
        self.exchange.save_buffers()
        outputs = self._apply_step(columns)
        self.exchange.restore_buffers(rows)
        loss = outputs[0] if isinstance(outputs, tuple) else outputs
        # Pass the loss through a parameter, so that every process sums it after the step's updates, in the same order.
        ops.assign(self.loss, ops.cast(ops.mean(loss), mstype.float32))
        return self.exchange.mean_loss(self.loss, rows), outputs

    def _apply_step(self, columns):
        return self.step(*columns)
