"""Programs for padded batches, and trial runs that check that they are exact.

The layers of a custom network do not show whether rows depend on each other, so a trial does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, nn

from ..data.as_columns import Columns
from ..data.batch_sizes import RowFilling, padded, row_weights, vary
from ..data.feed import to_tensor
from ..mindspore_internals.cell_structure import cells_and_names, moving_statistics, parameters_of
from ..mindspore_internals.compilation import count_programs
from ..mindspore_internals.shared_memory import overwrite
from .boost import share_state
from .dropout import drops
from .forward import LARGE, EvalStep, TrialStep, filled_forward, unfillable
from .graph_call import OneStep, TrainRunner, runner

if TYPE_CHECKING:
    from mindspore import Parameter

    from ..data.chunk import Chunk
    from ..state import StepOutputs
    from .builder import StepBuilder
    from .program import StepOptions, TrainStep


@contextlib.contextmanager
def modes_put_back(*roots: nn.Cell) -> Iterator[None]:
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


class FilledPrograms:
    """The programs for padded batches of one builder."""

    def __init__(self, builder: StepBuilder) -> None:
        self._builder = builder
        self._forward = filled_forward(builder.forward, builder.loss_fn)
        reason = "" if self._forward is not None else unfillable(builder.loss_fn)
        self._evaluation = RowFilling(reason, few=True)
        if not reason and moving_statistics(builder.network):
            reason = "the network normalizes over the rows of a batch"
        self.training = RowFilling(reason)
        self._evaluate: EvalStep | None = None
        self._odd: tuple[Columns, Any] | None = None  # a batch of this evaluation and its outputs, for the trial
        self._step: TrainStep | OneStep | None = None
        self._tried = 0

    @property
    def programs(self) -> int:
        """Number of programs compiled so far, including those of trials."""
        return self._tried + sum(count_programs(cell) for cell in (self._evaluate, self._step) if cell is not None)

    def forget_step(self) -> None:
        """Drop the padded training step after the unpadded step was rebuilt."""
        self._step = None

    # -- evaluation ------------------------------------------------------------------------------------------------

    @property
    def evaluation(self) -> RowFilling | None:
        """Which evaluation batches are padded; None for a user's evaluation network.

        Also None without compilation, and with several processes, which would decide each by its own batches.
        """
        builder = self._builder
        ours = builder.inference.eval_network is None and builder.compiled and not builder.forward.several
        return self._evaluation if ours and builder.options.exchange is None else None

    def evaluate_cell(self) -> EvalStep:
        """Return the evaluation program for padded batches."""
        if self._evaluate is None:
            self._evaluate = EvalStep(self._forward, self._builder.inference.table_inputs)
        self._evaluate.set_train(False)
        return self._evaluate

    def begin_evaluation(self) -> None:
        """Discard the trial batch of an evaluation that failed."""
        self._odd = None

    def keep_for_trial(self, chunk: Chunk, outputs: Any) -> None:
        """Keep an evaluated batch and its outputs if the trial can use them."""
        filling = self.evaluation
        if filling is None or filling.exact is not None or self._odd is not None:
            return
        if filling.odd(chunk.num_samples) and _has_rows(chunk) and vary(chunk.arrays):
            self._odd = chunk.arrays, host_copies(outputs)

    def try_evaluation(self) -> None:
        """Run the evaluation trial once, in inference mode."""
        if self._odd is None:
            return
        (columns, plain), self._odd = self._odd, None
        rows = len(columns[0])
        self._try(self._evaluation, plain, self.evaluate_cell(), columns, rows)

    def _try(self, filling: RowFilling, plain: Any, cell: EvalStep | TrialStep, columns: Columns, rows: int) -> None:
        size = filling.size_for(rows)
        try:
            outputs = self._builder.inference.apply(cell, (*padded(columns, size), row_weights(rows, size)))
        except Exception as error:  # the network takes this number of rows only
            filling.refuse(f"batches of {size} rows fail: {type(error).__name__}")
            return
        # axis 0 of gradients does not count rows
        outputs, gradients = without_padding(outputs[:3], rows, size), outputs[3:]
        filling.decide(plain, host_copies((*outputs, *gradients)))

    # -- training --------------------------------------------------------------------------------------------------

    def train(self, run: TrainRunner, options: StepOptions) -> TrainRunner:
        """Return a runner that pads odd batches if that is exact; else `run` trains them."""
        filling, tables = self.training, self._builder.tables
        table_inputs = 0 if tables is None else tables.input_count
        run_filled: TrainRunner | None = None

        def train(chunk: Chunk) -> StepOutputs:
            nonlocal run_filled
            rows = chunk.num_samples
            if rows in filling.sizes or filling.exact is False or not _has_rows(chunk):
                return run(chunk)
            if filling.exact is None and vary(chunk.arrays):
                self._try_training(chunk)
            if not filling.exact:
                return run(chunk)
            if run_filled is None:
                run_filled = self._runner(options)
            return run_filled(_pad_chunk(chunk, filling.size_for(rows), table_inputs))

        return train

    def _runner(self, options: StepOptions) -> TrainRunner:
        """Return the runner of padded batches; it shares counters and accumulation."""
        builder = self._builder
        whole = builder.train_step(options)
        if self._step is None:
            step = builder.make_step(self._forward, builder.optimizer, options, tables=builder.tables)
            share_state(step, whole, 0)
            self._step = step if options.accumulate > 1 else OneStep(step)
        return builder.with_tables(runner(builder.make_call(self._step), options))

    def _try_training(self, chunk: Chunk) -> None:
        """Compare loss, prediction and gradients of a batch with and without padding.

        Dropout is off, because its masks differ each time. Parameters that the network itself changes are restored,
        unless they have more than `LARGE` entries; any change refuses padding.
        """
        builder, network = self._builder, self._builder.network
        own = [(p, _kept(p)) for p in parameters_of(network) if not p.requires_grad]
        rows = [] if builder.tables is None else builder.tables.read_params
        cells = [
            TrialStep(forward, builder.optimizer.parameters, rows, builder.inference.table_inputs)
            for forward in (builder.forward, self._forward)
        ]
        with modes_put_back(network):
            for cell in cells:
                cell.set_train(True)
            for _, cell in cells_and_names(network):
                if drops(cell):
                    cell.set_train(False)
            try:
                plain = host_copies(builder.inference.apply(cells[0], chunk.arrays))
            except Exception:  # the step itself will raise the same error
                return
            self._try(self.training, plain, cells[1], chunk.arrays, chunk.num_samples)
        self._tried += sum(map(count_programs, cells))
        for parameter, before in own:
            if _kept(parameter) == before:
                continue
            if isinstance(before, bytes):
                overwrite(parameter, np.frombuffer(before, parameter.asnumpy().dtype).reshape(parameter.shape))
            self.training.refuse(f"the network changes its parameter {parameter.name} by itself")


def _kept(parameter: Parameter) -> bytes | int:
    value = np.ascontiguousarray(parameter.asnumpy())
    return value.tobytes() if value.size <= LARGE else zlib.crc32(value.data)


def without_padding(outputs: Any, rows: int, size: int) -> Any:
    """Return the first `rows` of outputs for `size` rows, in tuples of any depth."""
    if isinstance(outputs, tuple | list):
        return tuple([without_padding(output, rows, size) for output in outputs])
    if outputs.shape[:1] != (size,):
        return outputs
    return Tensor.from_numpy(np.array(outputs.asnumpy()[:rows]))


def _has_rows(chunk: Chunk) -> bool:
    """Return whether all columns have their rows on axis 0."""
    return all(column.shape[:1] == (chunk.num_samples,) for column in chunk.arrays)


def host_copies(outputs: Any) -> Any:
    """Copy a program's outputs to the host, in tuples of any depth."""
    if isinstance(outputs, tuple | list):
        return tuple([host_copies(output) for output in outputs])
    return np.array(outputs.asnumpy())


def _pad_chunk(chunk: Chunk, size: int, table_inputs: int) -> Chunk:
    """Return a one-batch chunk padded to `size` rows, with row weights."""
    count = len(chunk.tensors) - table_inputs
    columns = padded(tuple([column.asnumpy() for column in chunk.tensors[:count]]), size)
    columns = (*columns, row_weights(chunk.num_samples, size))
    return dataclasses.replace(
        chunk,
        tensors=(*map(to_tensor, columns), *chunk.tensors[count:]),
        signature=(*[(column.shape, column.dtype) for column in columns], *chunk.signature[count:]),
        filled=True,
    )
