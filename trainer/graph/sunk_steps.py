"""What one call of a training program runs: one step, or up to K of them in a loop of the graph."""

from __future__ import annotations

from mindspore import dtype as mstype
from mindspore import nn, ops


class OneStep(nn.Cell):
    """A step without accumulation, and so without `flush`: on CPU an input nobody reads costs 0.1 ms per call.

    Args:
        step: a `TrainStep` or `CustomStep`.
    """

    def __init__(self, step: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.step = step

    def construct(self, *columns):
        """Train one batch; returns (loss, prediction)."""
        return self._apply_step(columns)

    def _apply_step(self, columns):
        return self.step(False, *columns)


class SunkSteps(nn.Cell):
    """Up to `size` batches in one call: a graph loop over stacked columns, bit-identical to single calls.

    Args:
        step: a `TrainStep` or `CustomStep`.
        size: leading length of the stacked columns.
        row_shape: shape of one row's prediction when predictions are to be kept, else None.
        counted: a column whose first axis is that of the rows.
    """

    def __init__(self, step: nn.Cell, size: int, row_shape: tuple[int, ...] | None = None, counted: int = 0) -> None:
        super().__init__(auto_prefix=False)
        self.step = step
        self.size = size
        self.row_shape = row_shape
        self.counted = counted

    def construct(self, count, flush, *stacked):
        """Train the first `count` (int32 scalar) batches; `flush` closes an accumulation window after the last.

        Returns (losses [size], predictions [size, batch, ...] or the losses once more).
        """
        losses = ops.zeros((self.size,), mstype.float32)
        index = ops.zeros((), mstype.int32)
        last = count - 1
        # gather and scatter by name: brackets would add eight operators per step, for indices that may be negative
        if self.row_shape is None:
            while index < count:
                columns = ()
                for column in stacked:
                    columns += (ops.gather(column, index, 0),)
                loss = self._apply_step(ops.logical_and(flush, index == last), columns)[0]
                losses = _put(losses, index, loss)
                index = index + 1
            return losses, losses
        predictions = ops.zeros((self.size, stacked[self.counted].shape[1], *self.row_shape), mstype.float32)
        while index < count:
            columns = ()
            for column in stacked:
                columns += (ops.gather(column, index, 0),)
            loss, prediction = self._apply_step(ops.logical_and(flush, index == last), columns)
            losses = _put(losses, index, loss)
            predictions = _put(predictions, index, prediction)
            index = index + 1
        return losses, predictions

    def _apply_step(self, flush, columns):
        return self.step(flush, *columns)


def _put(stacked, index, value):
    """Return `stacked` with `value` in place of its row `index`, a scalar; graph code."""
    row = ops.expand_dims(ops.cast(value, stacked.dtype), 0)
    return ops.tensor_scatter_update(stacked, ops.reshape(index, (1, 1)), row)
