"""The one place that builds programs from a trainer's parts, and runs them on chunks."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, nn
from mindspore import dtype as mstype

from ..data.as_columns import Columns
from ..data.batch_sizes import RowFilling, RowPadding
from ..data.chunk import Chunk
from ..data.column_checks import label_columns
from ..data.feed import to_tensor
from ..data.ragged import ListTypes
from ..embedding.layers.embedding_cells import reads_ids
from ..errors import ConfigurationError
from ..mindspore_internals.cell_structure import finite_check_on_cpu, moving_statistics, share_parameters
from ..mindspore_internals.compilation import compiling, count_programs, drop_programs, drop_with
from ..mindspore_internals.cpu_kernels import limit_for_convolutions
from ..mindspore_internals.dict_networks import by_position
from ..mindspore_internals.execution import operator_by_operator
from ..mindspore_internals.shared_memory import overwrite
from ..state import StepOutputs
from .boost import Boost, share_state, slice_optimizer
from .filled_programs import FilledPrograms, modes_put_back, without_padding
from .forward import EvalStep, Forward, PredictStep
from .graph_call import (
    BatchSizes,
    Call,
    EagerCall,
    EvaluationCall,
    GraphCall,
    OneStep,
    SunkSteps,
    TrainRunner,
    inputs_of,
    single_runner,
    sunk_runner,
    to_graph_error,
)
from .labels import ClassRange
from .multi_task import MultiTaskLoss
from .network_checks import is_training_step
from .program import CustomStep, OpenWindow, StepOptions, TrainStep

if TYPE_CHECKING:
    from ..embedding.layers.network_tables import SparseTables

logger = logging.getLogger(__name__)


class StepBuilder:
    """Builds the training, evaluation and prediction programs of one trainer, each once.

    Args:
        network: the user's network, already converted to its precision.
        loss_fn: loss cell, or None when the network returns the loss.
        optimizer: optimizer, or None when the network is a whole training step.
        cast: whether outputs are cast to float32 (some cells compute in low precision).
        eval_network: cell returning loss, prediction and label, or None to build one.
        options: what each step does; `keep_predictions`, `guard` and `halt` are set per run.
        boost: which layers freeze when; see `trainer.graph.boost`.
        steps_done: returns the number of optimizer steps done, which decides what is frozen.
        compiled: whether programs are compiled; else cells run operator by operator.
    """

    def __init__(
        self,
        network: nn.Cell,
        loss_fn: nn.Cell | None,
        optimizer: nn.Cell | None,
        *,
        cast: bool = False,
        eval_network: nn.Cell | None = None,
        options: StepOptions | None = None,
        boost: Boost | None = None,
        steps_done: Callable[[], int] = lambda: 0,
        compiled: bool = True,
    ) -> None:
        self.network = network
        self.loss_fn = loss_fn
        self.optimizer = optimizer
        self.cast = cast
        self.eval_network = eval_network
        self.options = options or StepOptions()
        self.boost = boost or Boost()
        self.steps_done = steps_done
        self.compiled = compiled
        self._cells: dict[int, nn.Cell] = {}  # of our own, by id: those with programs
        drop_with(self, self._cells)
        # gradient functions that are made in graph mode compile what they are given
        self.making: Callable[[], Any] = contextlib.nullcontext if compiled else operator_by_operator
        limit_for_convolutions(network)
        several = isinstance(loss_fn, MultiTaskLoss)
        self.label_count = len(loss_fn.tasks) if several else label_columns(loss_fn)
        self.forward = Forward(network, loss_fn, labels=self.label_count, cast=cast)
        self.tables: SparseTables | None = None
        self.step: TrainStep | CustomStep | None = None
        self._step_options: StepOptions | None = None
        self._frozen: dict[int, TrainStep] = {}
        self._single: dict[int, OneStep] = {}
        self._sunk: dict[Any] = {}
        self._evaluate: nn.Cell | None = None
        self._sampling: EvalStep | None = None
        self._predict: nn.Cell | None = None
        self.row_padding = RowPadding()
        self.list_types = ListTypes(lambda: np.int64 if reads_ids(network) else np.float32)
        self.filled = FilledPrograms(self)
        self._inferring: dict[int, Call] = {}
        of_tasks = (loss_fn.losses, loss_fn.label_casts) if several else ([loss_fn], [self.forward.label_cast])
        self._class_range = ClassRange(*of_tasks) if self.label_count == len(of_tasks[0]) else None

    @property
    def training_program(self) -> nn.Cell | None:
        """Cell of the training program built last, or None."""
        return next(reversed([*self._single.values(), *self._sunk.values()]), self.step)

    @property
    def programs(self) -> int:
        """Number of programs compiled so far: for training, evaluation and prediction together."""
        cells = (*self._single.values(), *self._sunk.values(), self._evaluate, self._sampling, self._predict)
        return self.filled.programs + sum(count_programs(cell) for cell in cells if cell is not None)

    @property
    def table_inputs(self) -> int:
        """Number of inputs that programs which only read take for the sparse tables, after the columns."""
        return 0 if self.tables is None else self.tables.reading_input_count

    def train_step(self, options: StepOptions) -> TrainStep | CustomStep:
        """Return the cell that trains one batch; rebuilt when options or tables changed, its counters kept."""
        options = dataclasses.replace(options, keep_predictions=False)  # the step returns them in any case
        previous = self.step
        same_tables = not isinstance(previous, TrainStep) or previous.tables is self.tables
        if previous is not None and options == self._step_options and same_tables:
            return previous
        if self.optimizer is None:
            if self.loss_fn is not None:
                raise ConfigurationError("fit: the loss_fn was given without an optimizer; pass optimizer= as well")
            self.step = CustomStep(self.network)
        else:
            self.step = self.make_step(self.forward, self.optimizer, options, tables=self.tables)
            if isinstance(previous, TrainStep):
                self._continue_counting(previous, self.step)
        self._step_options = options
        self.filled.forget_step()
        unused = [cell for programs in (self._single, self._sunk) for cell in programs.values()]
        drop_programs(self._cells.pop(id(cell), cell) for cell in unused)
        self._frozen.clear()
        self._single.clear()
        self._sunk.clear()
        return self.step

    def _continue_counting(self, previous: TrainStep, step: TrainStep) -> None:
        """Let `step` count where `previous` did; bad steps become numbers of optimizer steps from the first one on."""
        share_parameters(step, previous)
        bad_steps, done = step.bad_steps.asnumpy(), self.steps_done()
        shift = self._bad_step_offset(previous, done) - 1
        overwrite(step.bad_steps, np.where(bad_steps < 0, bad_steps, bad_steps + shift).astype(bad_steps.dtype))
        overwrite(step.steps_done, np.array(done, np.int32))

    @staticmethod
    def _bad_step_offset(step: TrainStep, global_step: int) -> int:
        """Return what to add to the recorded bad steps; a step without a guard counts none, so they do not move."""
        return global_step - int(step.steps_done.asnumpy()) + 1 if step.guard else 1

    def make_step(
        self, forward: nn.Cell, optimizer: nn.Cell, options: StepOptions, *, tables: SparseTables | None = None
    ) -> TrainStep:
        """Return a step that differentiates `forward` and trains the parameters of `optimizer`."""
        statistics = moving_statistics(self.network)
        with self.making():
            return TrainStep(forward, optimizer, optimizer.parameters, options, statistics, tables)

    def make_call(self, cell: nn.Cell) -> Call:
        """Return what runs `cell`, compiled or operator by operator."""
        if cell is not self.eval_network:  # programs of a user's own cell are released with that
            self._cells[id(cell)] = cell
        if not self.compiled:
            return EagerCall(cell)
        own = self.eval_network is not None and cell is self._evaluate and self.tables is None
        return EvaluationCall(cell) if own else GraphCall(cell)

    def _frozen_step(self, options: StepOptions, depth: int) -> TrainStep | CustomStep:
        """Return the step that leaves the first `depth` parameters as they are; it counts where the whole one does."""
        whole = self.train_step(options)
        if not depth:
            return whole
        if depth not in self._frozen:
            options = dataclasses.replace(options, transform=self.boost.transform(depth))
            step = self.make_step(self.forward, slice_optimizer(self.optimizer, depth), options)
            share_state(step, whole, depth)
            self._frozen[depth] = step
        return self._frozen[depth]

    @property
    def _depths(self) -> tuple[int, ...]:
        return (0,) if self.boost.freezing is None else (0, *self.boost.freezing.depths)

    def train(
        self, options: StepOptions, size: int | None, sample: Chunk, filling: RowFilling | None = None
    ) -> TrainRunner:
        """Return a function that trains a chunk: `size` batches at most in one graph, or one batch when None.

        Single batches are filled up as `filling`, which is None or that of `filled`, says.
        """
        runners = {0: self._runner(options, size, sample, 0)}
        if len(self._depths) == 1:
            run = self.with_tables(runners[0])
            run = run if filling is None or size is not None else self.filled.train(run, options)
            return self._with_class_range(run, options, size)

        def train(chunk: Chunk) -> StepOutputs:
            depth = self.boost.freezing.next(self.steps_done(), bool(chunk.position.micro_batches))
            if depth not in runners:
                runners[depth] = self._runner(options, size, sample, depth)
            return runners[depth](chunk)

        return self._with_class_range(train, options, size)

    def _with_class_range(self, run: TrainRunner, options: StepOptions, size: int | None) -> TrainRunner:
        """Return what checks the class numbers of a chunk before it is trained on."""
        check = self._class_range
        if not check:
            return run

        def train(chunk: Chunk) -> StepOutputs:
            check(chunk, lambda: self.compile(options, size, chunk) if self.compiled else None)
            return run(chunk)

        return train

    def _runner(self, options: StepOptions, size: int | None, sample: Chunk, depth: int) -> TrainRunner:
        if size is None:
            run = self.make_call(self._one_step(options, depth))
            sizes = BatchSizes(run, self.filled.training)
            return single_runner(run, options, sizes, returns=self.loss_fn is None)
        return sunk_runner(self.make_call(self._sunk_steps(options, size, sample, depth)), options)

    def compile(self, options: StepOptions, size: int | None, sample: Chunk) -> None:
        """Compile what `train` would run on chunks like `sample`, without running it.

        Raises:
            GraphError: MindSpore could not compile it.
        """
        if self.tables is not None:  # their rows in the graph have the sizes of this chunk
            self.tables.load(sample.sparse)
        for depth in self._depths:
            cell: nn.Cell = self._one_step(options, depth)
            leading = () if isinstance(cell, OneStep) else (Tensor(False),)
            if size is not None:
                cell = self._sunk_steps(options, size, sample, depth)
                self._cells[id(cell)] = cell
                leading = (Tensor(size, mstype.int32), Tensor(False))
            with self.training(), compiling(cell):
                cell.set_train(True)
                try:
                    cell.compile(*leading, *inputs_of(options)(sample))
                except Exception as error:
                    raise to_graph_error(error, sample) from None

    def _one_step(self, options: StepOptions, depth: int) -> nn.Cell:
        step = self._frozen_step(options, depth)
        if options.accumulate > 1:
            return step
        if depth not in self._single:
            self._single[depth] = OneStep(step)
        return self._single[depth]

    def _sunk_steps(self, options: StepOptions, size: int, sample: Chunk, depth: int) -> SunkSteps:
        shape = self.row_shape(sample, options.output) if options.keep_predictions else None
        # of a column that is handed over with offsets the first axis is not that of the rows
        counted = next((i for i, a in enumerate(sample.arrays) if len(a[0]) == sample.batch_rows), 0) if shape else 0
        key = (size, shape, depth, counted)
        if key not in self._sunk:
            self._sunk[key] = SunkSteps(self._frozen_step(options, depth), size, shape, counted)
        return self._sunk[key]

    def with_tables(self, run: TrainRunner) -> TrainRunner:
        """Return what brings a chunk's rows of the sparse tables before the graph, and takes them back."""
        tables = self.tables
        if tables is None:
            return run

        def train(chunk: Chunk) -> StepOutputs:
            tables.load(chunk.sparse)
            outputs = run(chunk)
            tables.write_back(chunk.sparse)
            return outputs

        return train

    def infer(self, cell: nn.Cell, chunk: Chunk) -> Any:
        """Run an evaluation or prediction program on a chunk of one batch and return its device outputs.

        Raises:
            GraphError: MindSpore could not compile or run it.
        """
        if chunk.sparse is not None:
            self.tables.load(chunk.sparse)
        if chunk.filled:
            cell = self.filled.evaluate_cell()
        run = self._inferring.get(id(cell))  # which keeps the cell, so no other one gets its id
        if run is None:
            run = self._inferring[id(cell)] = self.make_call(cell)
        if self._class_range and cell is self._evaluate:
            ours = self.eval_network is None  # a user's own cell does not tell the shapes that are checked
            self._class_range(chunk, (lambda: self._compile_inference(cell, chunk)) if ours else None)
        try:
            outputs = run(*chunk.tensors, like=chunk.signature)
        except Exception as error:
            raise to_graph_error(error, chunk) from None
        if chunk.filled:
            return without_padding(outputs, chunk.num_samples, len(chunk.tensors[0]))
        if cell is self._evaluate:
            self.filled.keep_for_trial(chunk, outputs)
        return outputs

    def _compile_inference(self, cell: nn.Cell, chunk: Chunk) -> None:
        if not self.compiled:
            return
        try:
            with compiling(cell):
                cell.compile(*chunk.tensors)
        except Exception as error:
            raise to_graph_error(error, chunk) from None

    def apply(self, cell: nn.Cell, columns: Columns) -> Any:
        """Return, on the device, what a program that only reads gives for host columns."""
        if self.tables is not None:
            columns, plan = self.tables.planner.plan(columns, False, 1, train=False)
            self.tables.load(plan)
            columns = (*columns, *plan.inputs)
        return self.make_call(cell)(*(to_tensor(column) for column in columns))

    def row_shape(self, sample: Chunk, output: int) -> tuple[int, ...]:
        """Return the shape of one row of what is kept of the prediction, found by one forward without training.

        Raises:
            ConfigurationError: the prediction does not have the rows of the batch on axis 0.
        """
        outputs = self.sample_outputs(sample)
        if output < 0 and len(outputs) > 1:
            return (sum(int(np.prod(part.shape[1:])) for part in outputs),)
        kept = outputs[output if len(outputs) > 1 else 0]
        rows = sample.batch_rows
        if kept.shape[:1] != (rows,):
            raise ConfigurationError(
                "progressive validation needs predictions with the rows of the batch on axis 0; "
                f"received {list(kept.shape)} for {rows} rows"
            )
        return kept.shape[1:]

    def sample_outputs(self, sample: Chunk) -> tuple[np.ndarray, ...]:
        """Return host copies of the network's outputs for the first batch of a chunk; nothing is trained."""
        columns = tuple(array[0] for array in sample.arrays) if sample.stacked else sample.arrays
        if self._sampling is None:
            self._sampling = EvalStep(self.forward, self.table_inputs)
        self._sampling.set_train(False)
        try:
            prediction = self.apply(self._sampling, columns)[1]
        except Exception as error:
            raise to_graph_error(error, sample) from None
        finally:
            (self.step or self.network).set_train(True)
        parts = prediction if isinstance(prediction, tuple | list) else (prediction,)
        return tuple(np.array(part.asnumpy()) for part in parts)

    def use_eval_network(self, cell: nn.Cell | None) -> None:
        """Evaluate by `cell` from now on; None: by a program built from network and loss."""
        self.eval_network, self._evaluate = cell, None
        self._inferring.clear()

    def evaluate_cell(self) -> nn.Cell:
        """Return the evaluation program: the user's, or one built from network and loss."""
        if self._evaluate is None:
            if self.eval_network is not None:
                self._evaluate = by_position(self.eval_network)
            elif is_training_step(self.network):
                raise ConfigurationError(
                    f"evaluate: {type(self.network).__name__} is a whole training step, so evaluating it would train "
                    "it; pass eval_network="
                )
            else:
                self._evaluate = EvalStep(self.forward, self.table_inputs)
        return self._evaluate

    def predict_cell(self) -> nn.Cell:
        """Return the prediction program."""
        if self._predict is None:
            if is_training_step(self.network):
                raise ConfigurationError(
                    f"predict: {type(self.network).__name__} is a whole training step, so applying it would train it; "
                    "make a Trainer of the inner network"
                )
            self._predict = PredictStep(self.network, cast=self.cast, table_inputs=self.table_inputs)
        return self._predict

    @property
    def window(self) -> OpenWindow:
        """The accumulation window of the step."""
        return OpenWindow(self.step)

    def read_counters(self) -> dict[str, int] | None:
        """Return the step's counts of skipped updates (see `Trainer.read_counters`), copied to the host, or None."""
        if not isinstance(self.step, TrainStep):
            return None
        names = ("skipped", "fatal", "consecutive", "longest_run")
        return {name: int(getattr(self.step, name).asnumpy()) for name in names}

    def read_bad_steps(self, global_step: int) -> list[int]:
        """Return the newest skipped steps, at most 16, as values of `global_step` after them; copies to the host."""
        if not isinstance(self.step, TrainStep):
            return []
        offset = self._bad_step_offset(self.step, global_step)
        return sorted(int(index) + offset for index in self.step.bad_steps.asnumpy() if index >= 0)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Put network and step into training mode and put the network's own modes back afterwards."""
        with finite_check_on_cpu(self.network if self.optimizer is None else None), modes_put_back(self.network):
            (self.step or self.network).set_train(True)
            yield

    @contextlib.contextmanager
    def inference(self, cell: nn.Cell) -> Iterator[None]:
        """Put `cell` and the network into inference mode for a while."""
        with modes_put_back(cell, self.network):
            cell.set_train(False)
            self.network.set_train(False)
            self.filled.begin_evaluation()
            yield
