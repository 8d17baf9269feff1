"""Calling a compiled cell without the search for its program at every call."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from mindspore import Tensor, nn

from ..mindspore_internals import execution
from ..mindspore_internals.compilation import compiling
from ..mindspore_internals.execution import await_operators, operator_by_operator
from ..mindspore_internals.messages import LAMBDA, gist, is_of_lambda

if TYPE_CHECKING:
    from ..data.batch_sizes import RowFilling
    from ..data.chunk import Chunk

logger = logging.getLogger(__name__)

MANY_SIZES = 5


class GraphCall:
    """Runs a cell as a graph, by its compiled program at once where the arguments are like those of earlier calls.

    The first call with such arguments compiles, the second finds out whether the program may be run at once, and the
    later ones do so; where it may not, all go through `compile_and_run`.

    Args:
        cell: the cell; only tensors are passed to it.

    Attributes:
        programs: programs looked up or compiled so far.
        seconds: what that took, the first run of each included.
    """

    def __init__(self, cell: nn.Cell) -> None:
        self.cell = cell
        self._programs: dict[Any, str] = {}
        self._unchecked: dict[Any, str | None] = {}
        self.programs = 0
        self.seconds = 0.0

    def __call__(self, *tensors: Tensor, like: Any = None) -> Any:
        """Return what the cell's graph returns; compiles it for arguments of new shapes or dtypes.

        Args:
            tensors: the arguments.
            like: hashable that differs wherever shapes or dtypes differ, if the caller has one at hand.
        """
        cell = self.cell
        key = (cell.phase, like if like is not None else tuple([(tensor.shape, tensor.dtype) for tensor in tensors]))
        program = self._programs.get(key)
        if program is not None:
            return execution.run(program, tensors)
        return self._slowly(key, tensors)

    def _slowly(self, key: Any, tensors: tuple[Tensor, ...]) -> Any:
        if key not in self._unchecked:
            began = time.perf_counter()
            with compiling(self.cell):
                outputs = self.cell.compile_and_run(*tensors)
            self.programs += 1
            self.seconds += time.perf_counter() - began
            program = execution.program_of(self.cell) if execution.available() else None
            self._unchecked[key] = program
            if program in execution.known_good:
                self._programs[key] = program
            return outputs
        program = self._unchecked[key]
        if program is None:
            return self.cell.compile_and_run(*tensors)
        outputs, same = execution.checked(self.cell, program, tensors)
        if same:
            self._programs[key] = program
        self._unchecked[key] = None
        return outputs


class EagerCall:
    """Runs a cell that cannot be compiled operator by operator, behind the interface of `GraphCall`.

    Args:
        cell: the cell.
    """

    programs = 0
    seconds = 0.0

    def __init__(self, cell: nn.Cell) -> None:
        self.cell = cell

    def __call__(self, *tensors: Tensor, like: Any = None) -> Any:
        """Return what the cell returns."""
        with operator_by_operator():
            return self.cell(*tensors)


class EvaluationCall(GraphCall):
    """Runs a user's evaluation cell as a graph, or operator by operator where MindSpore cannot compile it.

    Args:
        cell: the cell; it changes nothing, so that it may run a second time.
    """

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__(cell)
        self._eager: EagerCall | None = None

    def __call__(self, *tensors: Tensor, like: Any = None) -> Any:
        """Return what the cell returns."""
        if self._eager is not None:
            return self._eager(*tensors)
        try:
            return super().__call__(*tensors, like=like)
        except Exception as error:
            if self.programs:  # the cell compiles: the data are wrong
                raise
            eager = EagerCall(self.cell)
            try:
                outputs = eager(*tensors)
                _wait_for(outputs)
            except Exception:
                await_operators()
                raise error from None
            logger.warning(
                "eval_network %s cannot be compiled and runs operator by operator, many times slower: %s",
                type(self.cell).__name__,
                LAMBDA if is_of_lambda(error) else gist(str(error)),
            )
            self._eager = eager
            return outputs


def _wait_for(outputs: Any) -> None:
    """Wait until eager outputs are there; the failure of an operator surfaces here."""
    for output in outputs if isinstance(outputs, tuple | list) else (outputs,):
        if isinstance(output, tuple | list):
            _wait_for(output)
        elif isinstance(output, Tensor):
            output.asnumpy()


Call = GraphCall | EagerCall


class BatchSizes:
    """Tells once when batches of many sizes are each compiled anew.

    Args:
        run: what compiles.
        filling: why batches are not filled up to a few sizes, or None.

    Attributes:
        programs: programs compiled up to the last `note`.
    """

    def __init__(self, run: Call, filling: RowFilling | None = None) -> None:
        self.run = run
        self.filling = filling
        self.programs = 0
        self._rows: list[int] = []

    def note(self, chunk: Chunk) -> None:
        """Look at a chunk that has been compiled for: `programs` is not what it was."""
        self.programs = self.run.programs
        rows = chunk.arrays[0].shape[1 if chunk.stacked else 0]
        if rows not in self._rows:
            self._rows.append(rows)
            if len(self._rows) == MANY_SIZES:
                reason = "" if self.filling is None else self.filling.reason
                logger.warning(
                    "a program is compiled for every size of batch%s: %s rows so far, %.1f s; make batches equally "
                    "large (for a stream, batch_size= puts rows together)",
                    f", because {reason}" if reason else "",
                    ", ".join(map(str, self._rows)),
                    self.run.seconds,
                )
