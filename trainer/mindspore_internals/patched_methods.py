"""Methods of single cells that are replaced for a while.

Relied on: a Cell, and the parser of its graph, looks for a method in the instance before the class; calling a cell runs
`construct`. `nn.TrainOneStepWithLossScaleCell` asks its `get_overflow_status` alone whether to skip an update.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterable, Iterator

import mindspore
from mindspore import Parameter, Tensor, amp, nn, ops

from .child_cells import hide


@contextlib.contextmanager
def finite_check_on_cpu(step: nn.Cell | None) -> Iterator[None]:
    """Let `nn.TrainOneStepWithLossScaleCell` check overflow on CPU, where its own check has no kernel."""
    kind = nn.TrainOneStepWithLossScaleCell
    ours = (
        isinstance(step, kind)
        and mindspore.get_context("device_target") == "CPU"
        and type(step).get_overflow_status is kind.get_overflow_status
        and "get_overflow_status" not in vars(step)
    )
    if not ours:
        yield
        return
    hide(step, "get_overflow_status", types.MethodType(_overflow_status, step))
    try:
        yield
    finally:
        del vars(step)["get_overflow_status"]


def _overflow_status(self, status, gradients):
    return ops.logical_not(amp.all_finite(gradients))


@contextlib.contextmanager
def zeros_for_any_id(cells: Iterable[nn.Cell]) -> Iterator[None]:
    """Let the MindSpore embedding cells among `cells` give zeros whatever the ids are, where they run eagerly."""
    lookups = [cell for cell in cells if isinstance(cell, nn.Embedding | nn.EmbeddingLookup)]
    lookups = [cell for cell in lookups if "construct" not in vars(cell)]
    for cell in lookups:
        hide(cell, "construct", _zeros_from(cell.embedding_table))
    try:
        yield
    finally:
        for cell in lookups:
            del vars(cell)["construct"]


def _zeros_from(table: Parameter) -> Callable[[Tensor], Tensor]:
    return lambda ids: ops.zeros((*ids.shape, table.shape[-1]), table.dtype)
