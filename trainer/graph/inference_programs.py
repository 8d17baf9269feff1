"""The evaluation and prediction programs, and sample outputs of the network."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, nn

from ..data.as_columns import Columns
from ..data.batch_sizes import RowPadding
from ..data.chunk import Chunk
from ..data.feed import to_tensor
from ..errors import ConfigurationError
from ..mindspore_internals.cell_structure import cells_and_names
from ..mindspore_internals.compilation import count_programs
from ..mindspore_internals.dict_networks import by_position
from .forward import EvalStep, PredictStep
from .graph_call import Call, compile_for, to_graph_error
from .network_checks import is_training_step
from .padded_programs import preserve_modes, without_padding

if TYPE_CHECKING:
    from .builder import StepBuilder


class InferencePrograms:
    """The evaluation and prediction programs of one builder, each built once."""

    def __init__(self, builder: StepBuilder, eval_network: nn.Cell | None) -> None:
        self._builder = builder
        self._network = builder.network
        self.eval_network = eval_network
        self.row_padding = RowPadding(builder.network)
        self._evaluate: nn.Cell | None = None
        self._sampling: EvalStep | None = None
        self._predict: nn.Cell | None = None
        self._calls: dict[int, Call] = {}

    @property
    def programs(self) -> int:
        """Number of programs compiled so far."""
        cells = (self._evaluate, self._sampling, self._predict)
        return sum(count_programs(cell) for cell in cells if cell is not None)

    @property
    def table_inputs(self) -> int:
        """Number of inputs for sparse tables; they follow the columns."""
        return 0 if self._builder.tables is None else self._builder.tables.reading_input_count

    def is_eval_network(self, cell: nn.Cell) -> bool:
        """Return whether `cell` evaluates with the user's evaluation network."""
        return self.eval_network is not None and cell is self._evaluate

    def run(self, cell: nn.Cell, chunk: Chunk) -> Any:
        """Run an evaluation or prediction program on one batch; return device outputs."""
        if chunk.sparse is not None and self._builder.tables is not None:
            self._builder.tables.load(chunk.sparse)
        if chunk.is_padded:
            cell = self._builder.padded.evaluate_cell()
        run = self._calls.get(id(cell))  # the call keeps the cell alive, so the id stays unique
        if run is None:
            run = self._calls[id(cell)] = self._builder.make_call(cell)
        if self._builder.class_range and (cell is self._evaluate or chunk.is_padded):
            # a user's cell has no label cast that records the shapes to check
            compiles = self.eval_network is None and self._builder.compiled
            build = functools.partial(compile_for, chunk, cell, chunk.tensors, for_one_core=self._builder.for_one_core)
            self._builder.class_range(chunk, build if compiles else None)
        try:
            outputs = run(*chunk.tensors, signature=chunk.signature)
        except Exception as error:
            raise to_graph_error(error, chunk) from None
        if chunk.is_padded:
            return without_padding(outputs, chunk.num_samples, len(chunk.tensors[0]))
        return outputs

    def apply(self, cell: nn.Cell, columns: Columns) -> Any:
        """Run an inference program on host columns; return device outputs."""
        if self._builder.tables is not None:
            columns, plan = self._builder.tables.planner.plan(columns, False, 1, train=False)
            self._builder.tables.load(plan)
            columns = (*columns, *plan.inputs)
        return self._builder.make_call(cell)(*(to_tensor(column) for column in columns))

    def row_shape(self, sample: Chunk, output: int) -> tuple[int, ...]:
        """Return the row shape of the predictions to keep; runs a forward pass.

        `output` is the index of the network's output that is kept; a negative index keeps all outputs.
        """
        outputs = self.sample_outputs(sample)
        if output < 0 and (len(outputs) > 1 or self._builder.forward.is_multi_task):
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
        """Return the network's outputs for a chunk's first batch, copied to the host.

        An output that is no tensor is an empty array.
        """
        columns = tuple(array[0] for array in sample.arrays) if sample.stacked else sample.arrays
        if self._sampling is None:
            self._sampling = EvalStep(self._builder.forward, self.table_inputs)
        self._sampling.set_train(False)
        try:
            prediction = self.apply(self._sampling, columns)[1]
        except Exception as error:
            raise to_graph_error(error, sample) from None
        finally:
            (self._builder.step or self._network).set_train(True)
        if isinstance(prediction, dict):
            prediction = tuple(prediction.values())
        parts = prediction if isinstance(prediction, tuple | list) else (prediction,)
        return tuple(np.array(part.asnumpy() if isinstance(part, Tensor) else ()) for part in parts)

    def use_eval_network(self, cell: nn.Cell | None) -> None:
        """Use `cell` for evaluation; None builds a program from network and loss."""
        self.eval_network, self._evaluate = cell, None
        self._calls.clear()

    def evaluate_cell(self) -> nn.Cell:
        """Return the user's evaluation program, or one built from network and loss."""
        if self._evaluate is None:
            if self.eval_network is not None:
                self._evaluate = by_position(self.eval_network)
            elif is_training_step(self._network):
                raise ConfigurationError(
                    f"evaluate: {type(self._network).__name__} is a whole training step, so evaluating it would train "
                    "it; pass eval_network="
                )
            else:
                self._evaluate = EvalStep(self._builder.forward, self.table_inputs, returns_denominator=True)
        return self._evaluate

    def predict_cell(self) -> nn.Cell:
        """Return the prediction program."""
        if self._predict is None:
            if is_training_step(self._network):
                raise ConfigurationError(
                    f"predict: {type(self._network).__name__} is a whole training step, so applying it would train it; "
                    "make a Trainer of the inner network"
                )
            self._predict = PredictStep(self._network, cast=self._builder.cast, table_inputs=self.table_inputs)
        return self._predict

    @contextlib.contextmanager
    def mode(self, cell: nn.Cell) -> Iterator[None]:
        """Put `cell` and the network in inference mode; restore their modes on exit."""
        inside = any(part is self._network for _, part in cells_and_names(cell))
        roots = [cell] if inside else [cell, self._network]
        with preserve_modes(*roots):
            for root in roots:
                root.set_train(False)
            yield
