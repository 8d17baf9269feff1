"""Programs for padded batches of networks whose rows are independent."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, nn

from ..data.batch_sizes import RowFilling, independent_rows, padded_by_weight, undeclared_reason
from ..data.feed import to_tensor
from ..mindspore_internals.cell_structure import cells_and_names, moving_statistics
from ..mindspore_internals.compilation import count_programs
from .boost import share_state
from .forward import EvalStep, padded_forward, why_not_padded
from .graph_call import OneStep, TrainRunner, make_runner

if TYPE_CHECKING:
    from ..data.chunk import Chunk
    from ..state import StepOutputs
    from .builder import StepBuilder
    from .program import StepOptions, TrainStep


@contextlib.contextmanager
def preserve_modes(*roots: nn.Cell) -> Iterator[None]:
    """Restore the training modes of all cells on exit."""
    cells = [cell for root in roots for _, cell in cells_and_names(root)]
    modes = [cell.training for cell in cells]
    try:
        yield
    finally:
        # parents first, so that a child that differs from its parent gets its own mode last
        for cell, mode in zip(cells, modes, strict=True):
            if cell.training != mode:
                cell.set_train(mode)


class PaddedPrograms:
    """The programs for padded batches of one builder."""

    def __init__(self, builder: StepBuilder) -> None:
        self._builder = builder
        self.weighed = builder.loss_columns.applies_weight  # whether the batches have a column of row weights
        self._forward: Any = builder.forward if self.weighed else padded_forward(builder.forward, builder.loss_fn)
        reason = "" if independent_rows(builder.network) else undeclared_reason(builder.network)
        if self._forward is None:
            reason = why_not_padded(builder.loss_fn)
        self._evaluation = RowFilling(reason, few=True)
        if not reason and moving_statistics(builder.network):
            reason = "the network normalizes over the rows of a batch"
        self.training = RowFilling(reason)
        self._evaluate: EvalStep | None = None
        self._step: TrainStep | OneStep | None = None

    @property
    def programs(self) -> int:
        """Number of programs compiled so far."""
        return sum(count_programs(cell) for cell in (self._evaluate, self._step) if cell is not None)

    def forget_step(self) -> None:
        """Drop the padded training step after the unpadded step was rebuilt."""
        self._step = None

    @property
    def evaluation(self) -> RowFilling | None:
        """Rule for padding evaluation batches, or None if they are never padded.

        It is None for a user's evaluation network, for several tasks, without compilation, and with several processes,
        because each process would decide from its own batches.
        """
        builder = self._builder
        ours = builder.inference.eval_network is None and builder.compiled and not builder.forward.is_multi_task
        return self._evaluation if ours and builder.options.exchange is None else None

    def evaluate_cell(self) -> EvalStep:
        """Return the evaluation program for padded batches."""
        if self.weighed:
            return self._builder.inference.evaluate_cell()
        if self._evaluate is None:
            inputs = self._builder.inference.table_inputs
            self._evaluate = EvalStep(self._forward, inputs, returns_denominator=True)
        self._evaluate.set_train(False)
        return self._evaluate

    def train(self, run: TrainRunner, options: StepOptions) -> TrainRunner:
        """Return a function that trains chunks and pads batches of unusual size first.

        `run` trains all other batches.
        """
        filling, tables = self.training, self._builder.tables
        table_inputs = 0 if tables is None else tables.input_count
        run_padded: TrainRunner | None = run if self.weighed else None

        def train(chunk: Chunk) -> StepOutputs:
            nonlocal run_padded
            rows = chunk.num_samples
            if not filling.is_padded(rows) or not all(column.shape[:1] == (rows,) for column in chunk.arrays):
                return run(chunk)
            if run_padded is None:
                run_padded = self._runner(options)
            return run_padded(_pad_chunk(chunk, filling.size_for(rows), table_inputs, has_weights=self.weighed))

        return train

    def _runner(self, options: StepOptions) -> TrainRunner:
        """Return the function that trains padded batches, with the step's own state."""
        builder = self._builder
        whole = builder.train_step(options)
        if self._step is None:
            step = builder.make_step(self._forward, builder.optimizer, options, tables=builder.tables)
            share_state(step, whole, 0)
            self._step = step if options.accumulate > 1 else OneStep(step)
        return builder.with_tables(make_runner(builder.make_call(self._step), options))


def without_padding(outputs: Any, rows: int, size: int) -> Any:
    """Cut outputs of `size` rows, in tuples of any depth, to their first `rows`."""
    if isinstance(outputs, tuple | list):
        return tuple([without_padding(output, rows, size) for output in outputs])
    if outputs.shape[:1] != (size,):
        return outputs
    return Tensor.from_numpy(np.array(outputs.asnumpy()[:rows]))


def _pad_chunk(chunk: Chunk, size: int, table_inputs: int, *, has_weights: bool) -> Chunk:
    """Return a one-batch chunk padded to `size` rows; padding has the weight 0."""
    count = len(chunk.tensors) - table_inputs
    columns = padded_by_weight(tuple([c.asnumpy() for c in chunk.tensors[:count]]), size, has_weights=has_weights)
    sparse = chunk.sparse
    if sparse is not None:
        sparse = dataclasses.replace(sparse, lengths=[size] * len(sparse.lengths))
    return dataclasses.replace(
        chunk,
        sparse=sparse,
        tensors=(*map(to_tensor, columns), *chunk.tensors[count:]),
        signature=(*[(column.shape, column.dtype) for column in columns], *chunk.signature[count:]),
        is_padded=True,
    )
