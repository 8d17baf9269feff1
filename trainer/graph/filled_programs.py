"""The programs for filled-up batches of one builder, and the trials that show whether they may be used."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.as_columns import Columns
from ..data.row_padding import RowFilling, filled_up, row_weights
from ..mindspore_internals.compiled_programs import count_programs
from ..mindspore_internals.moving_statistics import moving_statistics
from ..mindspore_internals.shared_memory import overwrite
from .boost import share_state
from .dropout import drops
from .filled_rows import FilledBatches, filled_forward, host_copies, tells, unfillable, without_made_up
from .graph_call import GraphCall
from .inference_programs import LARGE, EvalStep, TrialStep
from .modes import modes_put_back
from .runners import TrainRunner, single_runner
from .sunk_steps import OneStep

if TYPE_CHECKING:
    from mindspore import Parameter

    from ..data.chunk import Chunk
    from .builder import StepBuilder
    from .program import StepOptions, TrainStep


class FilledPrograms:
    """See the module's text.

    Args:
        builder: what builds the programs for batches as they are.

    Attributes:
        training: which batches the training program is given filled up.
    """

    def __init__(self, builder: StepBuilder) -> None:
        self._builder = builder
        self._forward = filled_forward(builder.forward, builder.loss_fn)
        reason = "" if self._forward is not None else unfillable(builder.loss_fn)
        self._evaluation = RowFilling(reason, few=True)
        if not reason and moving_statistics(builder.network):
            reason = "the network normalizes over the rows of a batch"
        self.training = RowFilling(reason)
        self._evaluate: EvalStep | None = None
        self._odd: tuple[Columns, Any] | None = None  # a batch of the evaluation under way, and its outputs
        self._step: TrainStep | OneStep | None = None
        self._tried = 0

    @property
    def programs(self) -> int:
        """Number of programs compiled so far, for trials as well."""
        return self._tried + sum(count_programs(cell) for cell in (self._evaluate, self._step) if cell is not None)

    def forget_step(self) -> None:
        """Build the training step anew when it is needed, because the one for batches as they are was."""
        self._step = None

    # -- evaluation ------------------------------------------------------------------------------------------------

    @property
    def evaluation(self) -> RowFilling | None:
        """Which batches of evaluations are filled up; None where the program is not ours, or not compiled.

        None with several processes as well: each would decide by batches of its own, but tables ask all of them.
        """
        builder = self._builder
        ours = builder.eval_network is None and builder.make_call is GraphCall and not builder.forward.several
        return self._evaluation if ours and builder.options.exchange is None else None

    def evaluate_cell(self) -> EvalStep:
        """Return the evaluation program for batches that were filled up."""
        if self._evaluate is None:
            self._evaluate = EvalStep(self._forward, self._builder.table_inputs)
        self._evaluate.set_train(False)
        return self._evaluate

    def begin_evaluation(self) -> None:
        """Forget a batch that an evaluation which failed has left."""
        self._odd = None

    def keep_for_trial(self, chunk: Chunk, outputs: Any) -> None:
        """Keep an evaluated batch and its outputs if it is one to try filling up with."""
        filling = self.evaluation
        if filling is None or filling.exact is not None or self._odd is not None:
            return
        if filling.odd(chunk.num_samples) and tells(chunk):
            self._odd = chunk.arrays, host_copies(outputs)

    def try_evaluation(self) -> None:
        """Find out, once, whether filled-up batches are evaluated to the same; after an evaluation, in its mode."""
        if self._odd is None:
            return
        (columns, plain), self._odd = self._odd, None
        rows = len(columns[0])
        self._try(self._evaluation, plain, self.evaluate_cell(), columns, rows)

    def _try(self, filling: RowFilling, plain: Any, cell: EvalStep | TrialStep, columns: Columns, rows: int) -> None:
        size = filling.size_for(rows)
        try:
            outputs = self._builder.apply(cell, (*filled_up(columns, size), row_weights(rows, size)))
        except Exception as error:  # a network for this number of rows only
            filling.refuse(f"batches of {size} rows fail: {type(error).__name__}")
            return
        outputs, gradients = without_made_up(outputs[:3], rows, size), outputs[3:]  # whose axis 0 is not that of rows
        filling.decide(plain, host_copies((*outputs, *gradients)))

    # -- training --------------------------------------------------------------------------------------------------

    def train(self, run: TrainRunner, options: StepOptions) -> FilledBatches:
        """Return what trains single batches: odd ones filled up, all others by `run`."""
        tables = self._builder.tables
        inputs = 0 if tables is None else tables.input_count
        return FilledBatches(run, lambda: self._runner(options), self._try_training, self.training, inputs)

    def _runner(self, options: StepOptions) -> TrainRunner:
        """Return what trains a batch that was filled up, by a step that counts and accumulates where the whole does."""
        builder = self._builder
        whole = builder.train_step(options)
        if self._step is None:
            step = builder.make_step(self._forward, builder.optimizer, options, tables=builder.tables)
            share_state(step, whole, 0)
            self._step = step if options.accumulate > 1 else OneStep(step)
        return builder.with_tables(single_runner(builder.make_call(self._step), options))

    def _try_training(self, chunk: Chunk) -> None:
        """Find out whether loss, prediction and gradients are the same for a batch that is filled up; trains nothing.

        Without dropout, which draws other masks each time. What the network changes by itself is put back, except
        parameters of more than `LARGE` entries: that they change is noticed.
        """
        builder, network = self._builder, self._builder.network
        own = [(p, _kept(p)) for p in network.get_parameters() if not p.requires_grad]
        rows = [] if builder.tables is None else builder.tables.read_params
        cells = [
            TrialStep(forward, builder.optimizer.parameters, rows, builder.table_inputs)
            for forward in (builder.forward, self._forward)
        ]
        with modes_put_back(network):
            for cell in cells:
                cell.set_train(True)
            for _, cell in network.cells_and_names():
                if drops(cell):
                    cell.set_train(False)
            try:
                plain = host_copies(builder.apply(cells[0], chunk.arrays))
            except Exception:  # the step itself will fail too, and say so
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
    return value.tobytes() if value.size <= LARGE else zlib.crc32(value)
