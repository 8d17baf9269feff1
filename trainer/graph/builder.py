"""Build the training programs of a trainer, and run them on chunks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore import dtype as mstype

from ..data.batch_sizes import RowFilling
from ..data.chunk import Chunk
from ..data.ragged import ListTypes
from ..embedding.layers.embedding_cells import reads_ids
from ..errors import ConfigurationError
from ..mindspore_internals.cell_structure import (
    hide,
    moving_statistics,
    parameters_of,
    patched_overflow_status,
    share_parameters,
)
from ..mindspore_internals.compilation import count_programs, drop_programs, release_with_owner
from ..mindspore_internals.cpu_kernels import limit_for_convolutions
from ..mindspore_internals.device import claim_training
from ..mindspore_internals.execution import eager_mode
from ..mindspore_internals.shared_memory import addresses_of, overwrite
from ..state import StepOutputs
from .accumulation import OpenAccumulation
from .averaging import WeightAverage
from .boost import Boost, share_state, slice_optimizer
from .custom_step import CustomStep
from .forward import Forward, WeightedForward
from .graph_call import (
    BatchSizes,
    Call,
    EagerCall,
    EvaluationCall,
    GraphCall,
    OneStep,
    SunkSteps,
    TrainRunner,
    compile_for,
    inputs_of,
    make_runner,
)
from .inference_programs import InferencePrograms
from .labels import CLASSES, ClassRangeCheck
from .multi_task import MultiTaskLoss
from .padded_programs import PaddedPrograms, preserve_modes
from .program import StepOptions, TrainStep
from .roles import LossColumns

if TYPE_CHECKING:
    from ..embedding.layers.network_tables import SparseTables


@dataclass(eq=False, repr=False)
class StepBuilder:
    """Builds and caches one trainer's training programs; `inference` has the others."""

    network: nn.Cell  # already converted to its precision
    loss_fn: nn.Cell | None
    optimizer: nn.Cell | None
    cast: bool  # whether outputs are cast to float32 (some cells compute in low precision)
    eval_network: InitVar[nn.Cell | None]  # returns loss, prediction and label; None to build one
    options: StepOptions  # common to all steps; `keep_predictions`, `guard` and `halt` are set per run
    boost: Boost
    steps_done: Callable[[], int]  # number of optimizer steps, which decides how many layers are frozen
    compiled: bool  # if False, cells run operator by operator
    loss_columns: LossColumns  # columns that go to the loss
    for_one_core: bool = False  # see `GraphCall`
    tables: SparseTables | None = None
    step: TrainStep | CustomStep | None = None
    average: WeightAverage | None = None
    _step_options: StepOptions | None = None
    _cells: dict[int, nn.Cell] = field(default_factory=dict)  # the trainer's cells that have programs, by id
    _frozen: dict[int, TrainStep] = field(default_factory=dict)
    _programs: dict[Any, nn.Cell] = field(default_factory=dict)  # for training, by depth or `_sunk_steps` key
    _trained: list[Parameter] = field(default_factory=list)  # parameters of network and optimizer in a training
    _addresses: list[int] = field(default_factory=list)  # of the trained parameters after the latest call or training

    def __post_init__(self, eval_network: nn.Cell | None) -> None:
        network = self.network
        loss_fn: Any = self.loss_fn
        release_with_owner(self, self._cells)
        # Context in which steps are created. A gradient function created in graph mode would compile its arguments.
        self.creation_context: Callable[[], Any] = contextlib.nullcontext if self.compiled else eager_mode
        limit_for_convolutions(network)
        is_multi_task = isinstance(loss_fn, MultiTaskLoss)
        columns = self.loss_columns
        self.label_count = columns.count
        if columns.applies_weight:
            self.forward: Forward = WeightedForward(
                network, loss_fn, columns.weighted_loss, labels=columns.count, kind=columns.kind, cast=self.cast
            )
        else:
            self.forward = Forward(network, loss_fn, labels=columns.count, cast=self.cast)
        self.list_types = ListTypes(lambda: np.int64 if reads_ids(network) else np.float32)
        self.inference = InferencePrograms(self, eval_network)
        self.padded = PaddedPrograms(self)
        losses, casts = [loss_fn], [self.forward.label_cast]
        if is_multi_task:
            losses, casts = loss_fn.losses, loss_fn.label_casts
        # Denominators of parts or weighted rows count integer labels as class numbers, so refuse other integer labels.
        parts = self.options.accumulate > 1 or self.options.exchange is not None or columns.applies_weight
        for cast in casts:
            cast.requires_class_numbers = parts and cast.kind == CLASSES
        if self.label_count - columns.applies_weight != len(losses):  # the loss takes other columns
            losses, casts = [], []
        self.class_range = ClassRangeCheck(
            losses,
            casts,
            ignores=not is_multi_task or loss_fn.ignores_labels,
            after=int(columns.applies_weight),
            counted=loss_fn.rows if is_multi_task else None,
        )

    @property
    def training_program(self) -> nn.Cell | None:
        """Cell of the newest training program, or None."""
        return next(reversed(self._programs.values()), self.step)

    @property
    def programs(self) -> int:
        """Number of programs compiled so far, for all purposes."""
        training = sum(map(count_programs, self._programs.values()))
        return training + self.padded.programs + self.inference.programs

    def train_step(self, options: StepOptions) -> TrainStep | CustomStep:
        """Return the cell that trains one batch.

        It is rebuilt if options or tables changed, or if parameters were replaced, as by `load_param_into_net`.
        """
        options = dataclasses.replace(options, keep_predictions=False)  # the step always returns predictions
        previous = self.step
        same_tables = not isinstance(previous, TrainStep) or previous.tables is self.tables
        same_memory = not self._addresses or self._addresses == addresses_of(self._trained_parameters())
        if previous is not None and options == self._step_options and same_tables and same_memory:
            return previous
        self._addresses = []
        if self.optimizer is None:
            if self.loss_fn is not None:
                raise ConfigurationError("fit: the loss_fn was given without an optimizer; pass optimizer= as well")
            if options.average is not None:
                raise ConfigurationError(
                    "EMA and SWA average after the optimizer's update, and the network is a whole training step; give "
                    "Trainer the inner network, its loss and its optimizer"
                )
            if options.guard:
                raise ConfigurationError(
                    "TerminateOnNaN and SkipNonFinite leave out the optimizer's update, and the network is a whole "
                    "training step; give Trainer the inner network, its loss and its optimizer"
                )
            self.step = CustomStep(self.network, options.exchange)
        else:
            self._use_average(options)
            claim_training(self)
            self.step = self.make_step(self.forward, self.optimizer, options, tables=self.tables)
            if isinstance(previous, TrainStep):
                self._continue_counting(previous, self.step)
        self._step_options = options
        self.padded.forget_step()
        drop_programs(self._cells.pop(id(cell), cell) for cell in self._programs.values())
        self._frozen.clear()
        self._programs.clear()
        return self.step

    def _use_average(self, options: StepOptions) -> None:
        """Create or drop the weight averages; keep them if the rule is unchanged."""
        if self.boost.freezing is not None and options.average is not None:
            raise ConfigurationError(
                "EMA and SWA average all weights after each update, and boost freezes some; use "
                "boost_config={'gradient_freezing': False}"
            )
        if options.average is None:
            self.average = None
        elif self.average is None or self.average.rule != options.average:
            statistics = [p for p in moving_statistics(self.network) if str(p.dtype).startswith("Float")]
            trained = () if self.optimizer is None else self.optimizer.parameters
            weights = {id(p): p for p in (*trained, *statistics)}
            self.average = WeightAverage(list(weights.values()), options.average)

    def _continue_counting(self, previous: TrainStep, step: TrainStep) -> None:
        """Make `step` use the counters of `previous`; renumber bad steps by global step."""
        share_parameters(step, previous)
        if step.accumulate > 1 and step.tables is previous.tables:
            hide(step, "gradient_sum", previous.gradient_sum)  # an accumulation may be open
        bad_steps, done = step.bad_steps.asnumpy(), self.steps_done()
        shift = self._bad_step_offset(previous, done) - 1
        overwrite(step.bad_steps, np.where(bad_steps < 0, bad_steps, bad_steps + shift).astype(bad_steps.dtype))
        overwrite(step.steps_done, np.array(done, np.int32))

    @staticmethod
    def _bad_step_offset(step: TrainStep, global_step: int) -> int:
        """Return what to add to a recorded bad step to get its global step.

        A step without a guard does not count its steps; its offset is 1.
        """
        return global_step - int(step.steps_done.asnumpy()) + 1 if step.guard else 1

    def make_step(
        self, forward: nn.Cell, optimizer: nn.Cell, options: StepOptions, *, tables: SparseTables | None = None
    ) -> TrainStep:
        """Return a step that trains the parameters of `optimizer` on `forward`."""
        statistics = moving_statistics(self.network)
        with self.creation_context():
            return TrainStep(forward, optimizer, optimizer.parameters, options, statistics, tables, self.average)

    def make_call(self, cell: nn.Cell) -> Call:
        """Return a callable that runs `cell`, compiled or operator by operator."""
        if cell is not self.inference.eval_network:  # a user's own cell releases its programs itself
            self._cells[id(cell)] = cell
        if not self.compiled:
            return EagerCall(cell)
        may_run_eagerly = self.inference.is_eval_network(cell) and self.tables is None
        return (EvaluationCall if may_run_eagerly else GraphCall)(cell, for_one_core=self.for_one_core)

    def _frozen_step(self, options: StepOptions, depth: int) -> TrainStep | CustomStep:
        """Return a step that freezes the first `depth` parameters; counters are shared."""
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
        self, options: StepOptions, batches_per_call: int | None, sample: Chunk, filling: RowFilling | None = None
    ) -> TrainRunner:
        """Return a function that trains up to `batches_per_call` batches in one graph.

        If `batches_per_call` is None, the function trains one batch, padded if `filling` says so (`padded.training`;
        None never pads).
        """
        runners = {0: self._runner(options, batches_per_call, sample, 0)}
        freezing = self.boost.freezing
        if freezing is None:
            run = self.with_tables(runners[0])
            run = run if filling is None or batches_per_call is not None else self.padded.train(run, options)
            return self._with_class_range(run, options, batches_per_call)

        def train(chunk: Chunk) -> StepOutputs:
            depth = freezing.next(self.steps_done(), bool(chunk.position.micro_batches))
            if depth not in runners:
                runners[depth] = self._runner(options, batches_per_call, sample, depth)
            return runners[depth](chunk)

        return self._with_class_range(train, options, batches_per_call)

    def _with_class_range(self, run: TrainRunner, options: StepOptions, batches_per_call: int | None) -> TrainRunner:
        """Return a runner that checks a chunk's class numbers before it trains."""
        check = self.class_range
        if not check:
            return run

        def train(chunk: Chunk) -> StepOutputs:
            check(chunk, lambda: self.compile(options, batches_per_call, chunk) if self.compiled else None)
            return run(chunk)

        return train

    def _runner(self, options: StepOptions, batches_per_call: int | None, sample: Chunk, depth: int) -> TrainRunner:
        if batches_per_call is None:
            run = self.make_call(self._one_step(options, depth))
            return make_runner(run, options, BatchSizes(run, self.padded.training), keep_returned=self.loss_fn is None)
        run = self.make_call(self._sunk_steps(options, batches_per_call, sample, depth))
        return make_runner(run, options, BatchSizes(run))

    def compile(self, options: StepOptions, batches_per_call: int | None, sample: Chunk) -> None:
        """Compile the programs that `train` would run on chunks like `sample`."""
        if self.tables is not None:  # shapes in the program depend on the chunk's number of table rows
            self.tables.load(sample.sparse)
        for depth in self._depths:
            cell: nn.Cell = self._one_step(options, depth)
            leading = () if isinstance(cell, OneStep) else (Tensor(False),)
            if batches_per_call is not None:
                cell = self._sunk_steps(options, batches_per_call, sample, depth)
                self._cells[id(cell)] = cell
                leading = (Tensor(batches_per_call, mstype.int32), Tensor(False))
            with self.training():
                cell.set_train(True)
                tensors = (*leading, *inputs_of(options)(sample))
                compile_for(sample, cell, tensors, for_one_core=self.for_one_core)

    def _one_step(self, options: StepOptions, depth: int) -> nn.Cell:
        step = self._frozen_step(options, depth)
        if options.accumulate > 1:
            return step
        if depth not in self._programs:
            self._programs[depth] = OneStep(step)
        return self._programs[depth]

    def _sunk_steps(self, options: StepOptions, batches_per_call: int, sample: Chunk, depth: int) -> nn.Cell:
        shape = self.inference.row_shape(sample, options.output) if options.keep_predictions else None
        # Find a column that has the rows on axis 0; a ragged column has its values there.
        row_column = next((i for i, a in enumerate(sample.arrays) if len(a[0]) == sample.batch_rows), 0) if shape else 0
        key = (batches_per_call, shape, depth, row_column)
        if key not in self._programs:
            self._programs[key] = SunkSteps(self._frozen_step(options, depth), batches_per_call, shape, row_column)
        return self._programs[key]

    def with_tables(self, run: TrainRunner) -> TrainRunner:
        """Return a runner that loads a chunk's table rows and writes them back."""
        tables = self.tables
        if tables is None:
            return run

        def train(chunk: Chunk) -> StepOutputs:
            tables.load(chunk.sparse)
            outputs = run(chunk)
            tables.write_back(chunk.sparse)
            return outputs

        return train

    @property
    def accumulation(self) -> OpenAccumulation:
        """The step's accumulated gradients."""
        return OpenAccumulation(self.step)

    def read_counters(self) -> dict[str, int]:
        """Copy the counts of skipped updates to the host; see `Trainer.read_counters`."""
        names = ("skipped", "fatal", "consecutive", "longest_run")
        if not isinstance(self.step, TrainStep):
            return dict.fromkeys(names, 0)
        return {name: int(getattr(self.step, name).asnumpy()) for name in names}

    def forget_fatal_steps(self) -> None:
        """Forget the fatal steps of earlier runs, which `StepOptions.halt` would heed."""
        if isinstance(self.step, TrainStep):
            overwrite(self.step.fatal, np.array(0, np.int32))

    def read_bad_steps(self, global_step: int) -> list[int]:
        """Return the global steps of the last 16 skipped updates, counted from 1.

        Copies from the device.
        """
        if not isinstance(self.step, TrainStep):
            return []
        offset = self._bad_step_offset(self.step, global_step)
        return sorted(int(index) + offset for index in self.step.bad_steps.asnumpy() if index >= 0)

    @contextlib.contextmanager
    def preserve_step_numbers(self) -> Iterator[None]:
        """Preserve the step count and recorded bad steps while the block restores state."""
        step = self.step
        counters = (step.steps_done, step.bad_steps) if isinstance(step, TrainStep) else ()
        values = [counter.asnumpy().copy() for counter in counters]
        yield
        for counter, value in zip(counters, values, strict=True):
            overwrite(counter, value)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Set training mode; restore the network's own modes on exit."""
        with patched_overflow_status(self.network if self.optimizer is None else None), preserve_modes(self.network):
            (self.step or self.network).set_train(True)
            self._trained = self._trained_parameters()
            try:
                yield
            finally:
                self.note_memory()

    def note_memory(self) -> None:
        """Record during a training where its parameters are; see `addresses_of`."""
        self._addresses = addresses_of(self._trained)

    @property
    def has_other_memory(self) -> bool:
        """Whether parameters were replaced since `note_memory`."""
        return self._addresses != addresses_of(self._trained)

    def _trained_parameters(self) -> list[Parameter]:
        return [part for cell in (self.network, self.optimizer) if cell is not None for part in parameters_of(cell)]
