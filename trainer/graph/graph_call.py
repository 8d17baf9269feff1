"""Run compiled programs on chunks, and explain MindSpore's errors."""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from ..data.batch_sizes import MANY_SIZES, warn_of_sizes
from ..data.chunk import Chunk
from ..errors import GraphError, TrainerError
from ..mindspore_internals import execution
from ..mindspore_internals.compilation import compiling, release_failed
from ..mindspore_internals.execution import eager_mode, wait_for_operators
from ..mindspore_internals.messages import (
    LAMBDA,
    cannot_be_compiled,
    failed_assertion,
    is_of_lambda,
    location_in_network,
    main_message,
)
from ..state import StepOutputs
from .optimizers import why_out_of_rates
from .program import StepOptions

if TYPE_CHECKING:
    from ..data.batch_sizes import RowFilling
    from ..data.chunk import Chunk

logger = logging.getLogger(__name__)


class GraphCall:
    """Run a cell as a graph; known shapes and dtypes call its program directly.

    The first call with new shapes or dtypes compiles a program with `Cell.compile_and_run`, and checks that running the
    program directly gives the same outputs. If it does, later calls run it directly, which is faster.

    Args:
        cell: the cell to compile.
        for_one_core: compute sums as one core would, so that results do not depend on the number of cores.
    """

    def __init__(self, cell: nn.Cell, *, for_one_core: bool = False) -> None:
        self.cell = cell
        self._for_one_core = for_one_core
        self._programs: dict[Any, str | None] = {}  # None if the program cannot be run directly
        self.programs = 0  # number of programs

    def __call__(self, *tensors: Tensor, signature: Any = None) -> Any:
        """Return the cell's outputs.

        `signature` is a hashable key of the tensors' shapes and dtypes, computed here if not given.
        """
        try:
            return self._run(tensors, signature)
        except Exception:
            self._programs.clear()
            release_failed(self.cell)
            raise

    def _run(self, tensors: tuple[Tensor, ...], signature: Any) -> Any:
        cell = self.cell
        if signature is None:
            signature = tuple([(tensor.shape, tensor.dtype) for tensor in tensors])
        key = (cell.phase, signature)
        program = self._programs.get(key)
        if program is not None:
            return execution.run(program, tensors)
        if key in self._programs:
            return cell.compile_and_run(*tensors)
        with compiling(cell, for_one_core=self._for_one_core):
            outputs, self._programs[key] = execution.compiled(cell, tensors)
        self.programs += 1
        return outputs


class EagerCall:
    """Run a cell operator by operator, with the interface of `GraphCall`."""

    programs = 0

    def __init__(self, cell: nn.Cell) -> None:
        self.cell = cell

    def __call__(self, *tensors: Tensor, signature: Any = None) -> Any:
        """Return the cell's outputs; `signature` is ignored."""
        with eager_mode():
            return self.cell(*tensors)


class EvaluationCall(GraphCall):
    """Run a user's evaluation cell as a graph, or eagerly if it cannot be compiled."""

    def __init__(self, cell: nn.Cell, *, for_one_core: bool = False) -> None:
        super().__init__(cell, for_one_core=for_one_core)
        self._eager: EagerCall | None = None

    def __call__(self, *tensors: Tensor, signature: Any = None) -> Any:
        """Return the cell's outputs; see `GraphCall.__call__`."""
        if self._eager is not None:
            return self._eager(*tensors)
        try:
            return super().__call__(*tensors, signature=signature)
        except Exception as error:
            if self.programs:  # the cell has compiled before, so the data are at fault
                raise
            eager = EagerCall(self.cell)
            try:
                outputs = eager(*tensors)
                _wait_for(outputs)
            except Exception:
                wait_for_operators()
                raise error from None
            logger.warning(
                "eval_network %s cannot be compiled and runs operator by operator, many times slower: %s",
                type(self.cell).__name__,
                LAMBDA if is_of_lambda(error) else main_message(str(error)),
            )
            self._eager = eager
            return outputs


def _wait_for(outputs: Any) -> None:
    """Wait for eager outputs, so that a failed operator raises here."""
    if isinstance(outputs, tuple | list):
        for output in outputs:
            _wait_for(output)
    elif isinstance(outputs, Tensor):
        outputs.asnumpy()


Call = GraphCall | EagerCall


class BatchSizes:
    """Warns once that every new batch size compiles another program.

    The warning includes `filling.reason`: why batches are not padded to fewer sizes.
    """

    def __init__(self, run: Call, filling: RowFilling | None = None) -> None:
        self.run = run
        self.filling = filling
        self.programs = 0
        self._rows: list[int] = []

    def note(self, chunk: Chunk) -> None:
        """Record that a program was compiled for a chunk."""
        self.programs = self.run.programs
        rows = chunk.arrays[0].shape[1 if chunk.stacked else 0]
        if rows not in self._rows:
            self._rows.append(rows)
            if len(self._rows) == MANY_SIZES:
                warn_of_sizes("train", self._rows, "" if self.filling is None else self.filling.reason)


_TYPES = re.compile(r"\b(U?Int\d+|dtype|data type)\b", re.IGNORECASE)
_COMPILE_HINT = "; Trainer(..., compile=False) runs what cannot be compiled operator by operator, many times slower"


def to_graph_error(error: Exception, chunk: Chunk) -> Exception:
    """Return a `GraphError` with MindSpore's message, source line and batch columns.

    The trainer's own errors are returned unchanged. They reach this function because MindSpore passes on exceptions of
    Python operators, for example when the exchange of rows loses a process.
    """
    if isinstance(error, TrainerError):
        return error
    shapes = [list(array.shape[1:] if chunk.stacked else array.shape) for array in chunk.arrays]
    columns = ", ".join(
        f"{name}: {array.dtype}{shape}" for name, array, shape in zip(chunk.names, chunk.arrays, shapes, strict=False)
    )
    logger.debug("MindSpore's whole message: %s", error)
    text = str(error)
    location = location_in_network(text)
    where = f" [{location}]" if location else ""
    of_lambda = is_of_lambda(error)
    reason = LAMBDA if of_lambda else failed_assertion(text) or main_message(text) or type(error).__name__
    hint = _COMPILE_HINT if of_lambda or cannot_be_compiled(text) else _integer_hint(text, chunk, shapes)
    return GraphError(f"MindSpore could not compile or run the network on columns ({columns}): {reason}{where}{hint}")


def _integer_hint(text: str, chunk: Chunk, shapes: Sequence[Sequence[int]]) -> str:
    """Return a hint to cast integer columns to float if MindSpore rejects a dtype."""
    columns = zip(chunk.names, chunk.arrays, shapes, strict=False)
    names = [f"{name} ({array.dtype})" for name, array, shape in columns if array.dtype.kind in "iu" and len(shape) > 1]
    if not names or not _TYPES.search(text):
        return ""
    return f"; layers compute with floats, and {', '.join(names)} holds integers: x.astype(np.float32)"


def compile_for(chunk: Chunk, cell: nn.Cell, tensors: Sequence[Tensor], *, for_one_core: bool = False) -> None:
    """Compile a cell for the shapes and dtypes of a chunk."""
    try:
        with compiling(cell, for_one_core=for_one_core):
            cell.compile(*tensors)
    except Exception as error:
        raise to_graph_error(error, chunk) from None


TrainRunner = Callable[[Chunk], StepOutputs]


def inputs_of(options: StepOptions) -> Callable[[Chunk], tuple[Tensor, ...]]:
    """Return a function from a chunk to its tensors and, with an exchange, row counts."""
    if options.exchange is None:
        return operator.attrgetter("tensors")

    def inputs(chunk: Chunk) -> tuple[Tensor, ...]:
        rows = np.array([chunk.num_samples, chunk.all_samples], np.float32) / chunk.num_batches
        if chunk.stacked:
            rows = np.tile(rows, (len(chunk.arrays[0]), 1))
        return (*chunk.tensors, Tensor(rows))

    return inputs


def make_runner(
    run: Call, options: StepOptions, sizes: BatchSizes | None = None, *, keep_returned: bool = False
) -> TrainRunner:
    """Return a function that trains chunks by running a step or `SunkSteps`.

    With `keep_returned`, `StepOutputs.returned` holds the network's output.
    """
    run.cell.set_train(True)
    flags = (Tensor(False), Tensor(True))
    leading: list[tuple[tuple[Tensor, ...], ...]]  # inputs before the columns, by number of batches and flush
    if isinstance(run.cell, SunkSteps):
        counts = [Tensor(n, mstype.int32) for n in range(run.cell.batches_per_call + 1)]
        leading = [tuple((count, flag) for flag in flags) for count in counts]
    else:
        leading = [(), ((), ()) if isinstance(run.cell, OneStep) else tuple((flag,) for flag in flags)]
    keep, inputs, has_denominators = options.keep_predictions, inputs_of(options), run.cell.returns_denominator

    def train(chunk: Chunk) -> StepOutputs:
        count = chunk.num_batches
        try:
            losses, prediction = run(*leading[count][chunk.flush], *inputs(chunk), signature=chunk.signature)
        except Exception as error:
            step = getattr(run.cell, "step", run.cell)
            if reason := why_out_of_rates(getattr(step, "optimizer", None)):
                raise GraphError(reason) from None
            raise to_graph_error(error, chunk) from None
        if sizes is not None and sizes.programs != run.programs:
            sizes.note(chunk)
        kept, returned = prediction if keep else None, prediction if keep_returned else None
        return StepOutputs(losses, kept, chunk, count, chunk.all_samples, returned, has_denominators)

    return train


class OneStep(nn.Cell):
    """A step without the `flush` input, which costs 0.1 ms per call on CPU."""

    def __init__(self, step: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.step = step
        self.returns_denominator = step.returns_denominator

    def construct(self, *columns):
        """Train one batch; return (loss, prediction)."""
        return self._apply_step(columns)

    def _apply_step(self, columns):
        return self.step(False, *columns)


class SunkSteps(nn.Cell):
    """A graph loop over stacked batches, bit-identical to single calls."""

    def __init__(
        self, step: nn.Cell, batches_per_call: int, row_shape: tuple[int, ...] | None = None, row_column: int = 0
    ) -> None:
        super().__init__(auto_prefix=False)
        self.step = step
        self.batches_per_call = batches_per_call  # leading length of the stacked columns
        self.row_shape = row_shape  # shape of one row's prediction, if predictions are kept
        self.row_column = row_column  # index of a column whose first axis has the rows of a batch
        # primitives and constants compile faster than `ops.gather` and `ops.zeros`; see `program`
        self.map, self.gather, self.expand = ops.HyperMap(), ops.Gather(), ops.ExpandDims()
        self.scatter = ops.TensorScatterUpdate()
        self.returns_denominator = step.returns_denominator
        shape = (batches_per_call, 2) if step.returns_denominator else batches_per_call
        self.initial_losses = Tensor(np.zeros(shape, np.float32))
        self.zero = Tensor(0, mstype.int32)

    def construct(self, count, flush, *stacked):
        """Train the first `count` (int32) batches; `flush` then ends an accumulation.

        Returns (losses, predictions). Losses have the shape [batches_per_call], or [batches_per_call, 2] with
        denominators. Predictions have the shape [batches_per_call, batch, ...]; if none are kept, the losses are
        returned twice.
        """
        losses, index = self.initial_losses, self.zero
        last = count - 1
        # Two loops, because a branch on the shape inside one loop would change MindSpore's order of side effects.
        # Explicit gather and scatter, because indexing adds eight operators per step to handle negative indices.
        if self.row_shape is None:
            while index < count:
                columns = self.map(ops.partial(self._batch_of, index), stacked)
                loss = self._apply_step(ops.logical_and(flush, index == last), columns)[0]
                losses = self._put(losses, index, loss)
                index = index + 1
            return losses, losses
        predictions = ops.zeros(
            (self.batches_per_call, stacked[self.row_column].shape[1], *self.row_shape), mstype.float32
        )
        while index < count:
            columns = self.map(ops.partial(self._batch_of, index), stacked)
            loss, prediction = self._apply_step(ops.logical_and(flush, index == last), columns)
            losses = self._put(losses, index, loss)
            predictions = self._put(predictions, index, prediction)
            index = index + 1
        return losses, predictions

    def _batch_of(self, index, column):
        return self.gather(column, index, 0)

    def _apply_step(self, flush, columns):
        return self.step(flush, *columns)

    def _put(self, stacked, index, value):
        """Return `stacked` with row `index` replaced by `value`."""
        row = self.expand(ops.cast(value, stacked.dtype), 0)
        return self.scatter(stacked, self.expand(self.expand(index, 0), 0), row)
