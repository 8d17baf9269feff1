"""Network and loss for batches that were filled up with made-up rows, and the check that this changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, nn, ops

from ..data.feed import to_tensor
from ..data.row_padding import RowFilling, filled_up, row_weights, vary
from .program import Forward, to_float32
from .row_losses import row_loss

if TYPE_CHECKING:
    from ..data.chunk import Chunk
    from ..state import StepOutputs
    from .runners import TrainRunner


class FilledForward(nn.Cell):
    """What a `Forward` computes, with the loss over the rows that count alone; the prediction has them all.

    The last column, after the label, says what each row counts: float32 [rows], 1 or 0.

    Args:
        forward: of a network with one label.
        rows_loss: its loss, as `trainer.graph.row_losses.row_loss` returns it.
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
        prediction = self.network(*columns[:-2])
        if self.cast_outputs:
            prediction = to_float32(prediction)
        label = self.label_cast(columns[-2], prediction)
        return self.rows_loss(prediction, label, columns[-1]), prediction

    def rows(self, columns):
        """Return the number of rows that count; graph code."""
        return ops.sum(columns[-1])


def filled_forward(forward: Forward, loss_fn: Any) -> FilledForward | None:
    """Return the forward for filled-up batches; None where the loss cannot leave rows out."""
    rows_loss = row_loss(loss_fn) if forward.has_loss_fn and forward.labels == 1 else None
    return None if rows_loss is None else FilledForward(forward, rows_loss)


def unfillable(loss_fn: Any) -> str:
    """Return why batches with this loss cannot be filled up, for the log."""
    kind = type(loss_fn).__name__ if isinstance(loss_fn, nn.Cell) else "the loss"
    return f"{kind} is not known to give a loss for each row" if loss_fn is not None else "the network returns its loss"


def without_made_up(outputs: Any, rows: int, size: int) -> Any:
    """Return outputs of a program for `size` rows, in tuples of any depth, as those of the first `rows`."""
    if isinstance(outputs, tuple | list):
        return tuple([without_made_up(output, rows, size) for output in outputs])
    if outputs.shape[:1] != (size,):
        return outputs
    return Tensor.from_numpy(np.array(outputs.asnumpy()[:rows]))


def tells(chunk: Chunk) -> bool:
    """Return whether a batch can show if filling up is exact: its columns have its rows on axis 0, not all alike."""
    return _has_rows(chunk) and vary(chunk.arrays)


def _has_rows(chunk: Chunk) -> bool:
    return all(column.shape[:1] == (chunk.num_samples,) for column in chunk.arrays)


def host_copies(outputs: Any) -> Any:
    """Return copies on the host of a program's outputs, in tuples of any depth."""
    if isinstance(outputs, tuple | list):
        return tuple([host_copies(output) for output in outputs])
    return np.array(outputs.asnumpy())


def fill_chunk(chunk: Chunk, size: int, table_inputs: int) -> Chunk:
    """Return a chunk of one batch with tensors of `size` rows, prepared ids among them, and what each row counts."""
    columns = chunk.tensors[: len(chunk.tensors) - table_inputs]
    made = filled_up(tuple([column.asnumpy() for column in columns]), size)
    made = (*made, row_weights(chunk.num_samples, size))
    signature = tuple([(column.shape, column.dtype) for column in made])
    rest = len(columns)
    return dataclasses.replace(
        chunk,
        tensors=(*map(to_tensor, made), *chunk.tensors[rest:]),
        signature=(*signature, *chunk.signature[rest:]),
        filled=True,
    )


class FilledBatches:
    """Trains batches of odd sizes filled up, where that has proved to be exact, and the others as they are.

    Args:
        run: trains a batch as it is.
        make: returns what trains a batch that was filled up; called once.
        try_out: finds out, by such a batch, whether filling up is exact.
        filling: which batches are odd.
        table_inputs: number of the last tensors of a chunk, those that belong to tables.
    """

    def __init__(
        self,
        run: TrainRunner,
        make: Callable[[], TrainRunner],
        try_out: Callable[[Chunk], None],
        filling: RowFilling,
        table_inputs: int,
    ) -> None:
        self._run, self._make, self._try_out = run, make, try_out
        self._filling, self._table_inputs = filling, table_inputs
        self._run_filled: TrainRunner | None = None

    def __call__(self, chunk: Chunk) -> StepOutputs:
        """Train a chunk of one batch."""
        filling, rows = self._filling, chunk.num_samples
        if rows in filling.sizes or filling.exact is False or not _has_rows(chunk):
            return self._run(chunk)
        if filling.exact is None and vary(chunk.arrays):
            self._try_out(chunk)
        if not filling.exact:
            return self._run(chunk)
        if self._run_filled is None:
            self._run_filled = self._make()
        return self._run_filled(fill_chunk(chunk, filling.size_for(rows), self._table_inputs))
