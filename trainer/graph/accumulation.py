"""The gradients that wait for an optimizer update, as seen between two calls of the program."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter

from ..mindspore_internals.shared_memory import overwrite
from .program import CustomStep, TrainStep


class OpenAccumulation:
    """The gradients that a step has accumulated and not yet applied, read between two calls.

    Args:
        step: the step; one that does not accumulate never has any.
    """

    def __init__(self, step: TrainStep | CustomStep | None) -> None:
        self._step = step if isinstance(step, TrainStep) and step.accumulate > 1 else None

    @property
    def is_open(self) -> bool:
        """Whether micro-batches wait for their optimizer update; copies a number to the host."""
        return self.count is not None and int(self.count.asnumpy()) > 0

    @property
    def count(self) -> Parameter | None:
        """The number of micro-batches that wait, int32; None for a step that does not accumulate."""
        return None if self._step is None else self._step.micro_step

    @property
    def gradient_sums(self) -> tuple[Parameter, ...]:
        """Sums of the weighted gradients that the processes have of the same parameters, those of row groups last."""
        step = self._step
        if step is None:
            return ()
        return step.gradient_sum[: step.dense] if step.by_owner else step.gradient_sum

    def parameters(self) -> dict[str, Parameter]:
        """Return what a snapshot must hold, by name: gradient sums, and moving statistics from before them.

        Gradients of sparse tables are not among them: they belong to rows, see
        `trainer.embedding.layers.open_accumulation`.
        """
        step = self._step
        if step is None:
            return {}
        return {parameter.name: parameter for parameter in (*step.gradient_sum[: step.dense], *step.saved)}

    def clear(self, *, keep_count: bool = False) -> None:
        """Discard the accumulated gradients.

        Args:
            keep_count: end the accumulation at the same batch, with the gradients still to come; otherwise the next
                batch begins a new one.
        """
        step = self._step
        if step is None:
            return
        for parameter in (step.weight_sum, *step.gradient_sum, *(() if keep_count else (step.micro_step,))):
            overwrite(parameter, np.zeros(parameter.shape, parameter.asnumpy().dtype))
        for saved, buffer in zip(step.saved, step.buffers, strict=True):
            overwrite(saved, buffer.asnumpy())
        if step.tables is not None and not keep_count:
            step.tables.resume_accumulation({})
