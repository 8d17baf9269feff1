"""Calling a compiled step on chunks: what gives it its inputs, and what is made of its outputs."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
from mindspore import Tensor
from mindspore import dtype as mstype

from ..data.chunk import Chunk
from ..state import StepOutputs
from .graph_call import BatchSizes, Call
from .graph_errors import to_graph_error
from .program import StepOptions
from .sunk_steps import OneStep

TrainRunner = Callable[[Chunk], StepOutputs]


def inputs_of(options: StepOptions) -> Callable[[Chunk], tuple[Tensor, ...]]:
    """Return what gives the inputs of a program from a chunk: its tensors and, among processes, what rows they have."""
    if options.exchange is None:
        return operator.attrgetter("tensors")

    def inputs(chunk: Chunk) -> tuple[Tensor, ...]:
        rows = np.array([chunk.num_samples, chunk.all_samples], np.float32) / chunk.num_batches
        if chunk.stacked:
            rows = np.tile(rows, (len(chunk.arrays[0]), 1))
        return (*chunk.tensors, Tensor(rows))

    return inputs


def single_runner(
    run: Call, options: StepOptions, sizes: BatchSizes | None = None, *, returns: bool = False
) -> TrainRunner:
    """Return what trains one batch.

    Args:
        run: calls the step.
        options: those of the step.
        sizes: is shown what was compiled for, or None.
        returns: whether all that the step returned is handed on.
    """
    run.cell.set_train(True)
    leading = ((), ()) if isinstance(run.cell, OneStep) else ((Tensor(False),), (Tensor(True),))
    keep, inputs = options.keep_predictions, inputs_of(options)

    def train(chunk: Chunk) -> StepOutputs:
        try:
            loss, prediction = run(*leading[chunk.flush], *inputs(chunk), like=chunk.signature)
        except Exception as error:
            raise to_graph_error(error, chunk) from None
        if sizes is not None and sizes.programs != run.programs:
            sizes.note(chunk)
        outputs = StepOutputs(loss, prediction if keep else None, chunk, 1, chunk.all_samples)
        if returns:
            outputs.returned = prediction
        return outputs

    return train


def sunk_runner(run: Call, options: StepOptions) -> TrainRunner:
    """Return what trains the batches of a stacked chunk."""
    run.cell.set_train(True)
    keep, inputs = options.keep_predictions, inputs_of(options)
    flags = (Tensor(False), Tensor(True))
    counts = [Tensor(n, mstype.int32) for n in range(run.cell.size + 1)]
    sizes = BatchSizes(run)

    def train(chunk: Chunk) -> StepOutputs:
        try:
            count, flush = counts[chunk.num_batches], flags[chunk.flush]
            losses, predictions = run(count, flush, *inputs(chunk), like=chunk.signature)
        except Exception as error:
            raise to_graph_error(error, chunk) from None
        if sizes.programs != run.programs:
            sizes.note(chunk)
        return StepOutputs(losses, predictions if keep else None, chunk, chunk.num_batches, chunk.all_samples)

    return train
