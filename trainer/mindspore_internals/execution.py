"""Run compiled programs directly, run cells eagerly, and detect forked processes.

`Cell.compile_and_run` looks up the program at every call and records it in each sub-cell. These hundreds of Python
calls take more than half of a small step's host time. MindSpore has no public way to run a compiled program directly.

This module relies on the following behaviour of MindSpore:
- `_cell_graph_executor._graph_executor` takes (arguments, name of the program) and returns the graph's outputs;
  `_convert_python_data` converts them to Python objects. `compiled` verifies for every program that `compile_and_run`
  does the same.
- In graph mode, calling a cell compiles it. `set_context` changes the mode at once for the whole process.
- If an operator fails in eager mode, a later operator reports the error.
- MindSpore runs graphs on threads that a fork does not copy, and it does not start new ones. In a child forked after
  the first graph, a graph waits forever (2.10).
"""

from __future__ import annotations

import contextlib
import logging
import operator
import os
from collections.abc import Iterator
from typing import Any

import mindspore
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from ..errors import ConfigurationError
from . import public_only, warn_of_fallback
from .compiler_modules import api


class _Recorder:
    """Wraps the executor during one call; records its arguments and outputs."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.calls: list[tuple[Any, str, Any]] = []

    def __call__(self, arguments: Any, program: str) -> Any:
        outputs = self.executor(arguments, program)
        self.calls.append((arguments, program, outputs))
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)


def available() -> bool:
    """Return whether the private names exist and the user allows their use."""
    names_exist = hasattr(getattr(api, "_cell_graph_executor", None), "_graph_executor") and hasattr(
        api, "_convert_python_data"
    )
    return names_exist and not public_only()


def compiled(cell: nn.Cell, tensors: tuple[Tensor, ...]) -> tuple[Any, str | None]:
    """Call `compile_and_run`; return its outputs and the name of the program it ran.

    The name is None if running the program by name does not give the same outputs.

    The name is recorded during the call, because a name from an earlier call may be outdated. MindSpore numbers the
    shapes of arguments, and drops the number of some shapes when it deletes a network that was called with them. The
    next call of any network with these shapes compiles a program with another name.
    """
    if not available():
        return cell.compile_and_run(*tensors), None
    owner = api._cell_graph_executor
    recorder = _Recorder(owner._graph_executor)
    try:
        owner._graph_executor = recorder
    except (AttributeError, TypeError):
        return cell.compile_and_run(*tensors), None
    try:
        outputs = cell.compile_and_run(*tensors)
    finally:
        owner._graph_executor = recorder.executor
    if len(recorder.calls) == 1:
        arguments, program, raw = recorder.calls[0]
        same_arguments = len(arguments) == len(tensors) and all(map(operator.is_, arguments, tensors))
        if same_arguments and _same(_convert(raw), outputs):
            return outputs, program
    warn_of_fallback("a compiled program cannot be run by its name", "each call takes some 0.3 ms longer")
    return outputs, None


def run(program: str, tensors: tuple[Tensor, ...]) -> Any:
    """Run the program with a name returned by `compiled`."""
    return _convert(api._cell_graph_executor._graph_executor(tensors, program))


def _convert(outputs: Any) -> Any:
    return outputs if _are_tensors(outputs) else api._convert_python_data(outputs)


def _are_tensors(outputs: Any) -> bool:
    """Return whether the outputs are a tuple of tensors and need no conversion.

    MindSpore's conversion takes 20 Python calls.
    """
    if type(outputs) is not tuple:
        return False
    for output in outputs:  # noqa: SIM110 (a generator would cost as much as all of this)
        if type(output) is not Tensor:
            return False
    return True


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Tensor):
        if one is other:
            return True
        same_form = isinstance(other, Tensor) and (one.dtype, one.shape) == (other.dtype, other.shape)
        return same_form and one.asnumpy().tobytes() == other.asnumpy().tobytes()
    return type(one) is type(other) and one == other


_logger = logging.getLogger(__name__)
_MAX_LATE_FAILURES = 100  # limit of pending errors from one eager run


@contextlib.contextmanager
def eager_mode() -> Iterator[None]:
    """Run cells operator by operator; restore the user's mode on exit."""
    mode = mindspore.get_context("mode")
    if mode == mindspore.PYNATIVE_MODE:
        yield
        return
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    try:
        yield
    finally:
        mindspore.set_context(mode=mode)


def wait_for_operators() -> None:
    """Wait for pending eager operators, so that their errors do not surface later."""
    for _ in range(_MAX_LATE_FAILURES):
        try:
            # The queue is first in, first out, so this operator runs last.
            (ops.zeros((1,), mstype.float32) + 1).asnumpy()
        except Exception as error:
            _logger.debug("an operator failed late: %s", error)
        else:
            return


_graph_process: int | None = None  # the process that ran the first graph


def check_not_forked() -> None:
    """Record that this process runs graphs; refuse it in a forked child.

    Raises:
        ConfigurationError: the process was forked after its parent ran graphs.
    """
    global _graph_process
    _graph_process = _graph_process or os.getpid()
    if _graph_process != os.getpid():
        raise ConfigurationError(
            f"this process was forked from process {_graph_process}, which has run MindSpore graphs: none can run "
            "here. Start it by multiprocessing's 'spawn' or 'forkserver', or fork before the first graph"
        )
