"""Calling a compiled cell without the search for its program at every call."""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
from typing import TYPE_CHECKING, Any

from mindspore import Tensor, nn

if TYPE_CHECKING:
    from ..data.feed import Chunk

logger = logging.getLogger(__name__)

MANY_SIZES = 5


# `Cell.compile_and_run` looks the program up at every call and notes it in each sub-cell while doing so: hundreds of
# Python calls, more than half of the host time of a small step. MindSpore has no public name for running a program that
# is known to be compiled.
def _find() -> tuple[Any, Any] | None:
    for module in ("mindspore.graph.api", "mindspore.common.api"):  # since 2.9 and before
        with contextlib.suppress(ImportError, AttributeError):
            api = importlib.import_module(module)
            return api._cell_graph_executor._graph_executor, api._convert_python_data
    return None


_found = _find()
_execute, _to_python = _found or (None, None)


class GraphCall:
    """Runs a cell as a graph, by its compiled program at once where the arguments are like those of an earlier call.

    Args:
        cell: the cell; only tensors are passed to it.

    Attributes:
        programs: programs looked up or compiled so far.
        seconds: what that took, the first run of each included.
    """

    def __init__(self, cell: nn.Cell) -> None:
        self.cell = cell
        self._programs: dict[Any, str] = {}
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
            outputs = _execute(tensors, program)
            return outputs if _are_tensors(outputs) else _to_python(outputs)
        began = time.perf_counter()
        outputs = cell.compile_and_run(*tensors)
        self.programs += 1
        self.seconds += time.perf_counter() - began
        if _execute is not None:
            with contextlib.suppress(AttributeError, KeyError, TypeError):
                self._programs[key] = cell.phase_cache[cell.phase]
        return outputs


class BatchSizes:
    """Tells once when batches of many sizes are each compiled anew.

    Args:
        run: what compiles.
    """

    def __init__(self, run: GraphCall) -> None:
        self.run = run
        self._programs = 0
        self._rows: list[int] = []

    def note(self, chunk: Chunk) -> None:
        """Look at the chunk trained on last."""
        if self.run.programs == self._programs:
            return
        self._programs = self.run.programs
        rows = chunk.arrays[0].shape[1 if chunk.stacked else 0]
        if rows not in self._rows:
            self._rows.append(rows)
            if len(self._rows) == MANY_SIZES:
                logger.warning(
                    "a program is compiled for every size of batch: %s rows so far, %.1f s; make batches equally large "
                    "(for a stream, batch_size= puts rows together)",
                    ", ".join(map(str, self._rows)),
                    self.run.seconds,
                )


def _are_tensors(outputs: Any) -> bool:
    """Return whether there is nothing to convert; to find that out, MindSpore's own conversion takes 20 calls."""
    if type(outputs) is not tuple:
        return False
    for output in outputs:  # noqa: SIM110 (a generator would cost as much as all of this)
        if type(output) is not Tensor:
            return False
    return True
