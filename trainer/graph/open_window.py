"""What an accumulation window has gathered between two calls of the program: how it is saved, and how forgotten."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter

from ..mindspore_internals.shared_memory import overwrite
from .program import CustomStep, TrainStep


class OpenWindow:
    """The accumulation window of a step, looked at between two calls.

    Args:
        step: the step; one that does not accumulate never has an open window.
    """

    def __init__(self, step: TrainStep | CustomStep | None) -> None:
        self._step = step if isinstance(step, TrainStep) and step.accumulate > 1 else None

    @property
    def is_open(self) -> bool:
        """Whether batches have been gathered that no optimizer update has used yet; copies a number to the host."""
        return self.count is not None and int(self.count.asnumpy()) > 0

    @property
    def count(self) -> Parameter | None:
        """The number of batches that it has."""
        return None if self._step is None else self._step.micro_step

    @property
    def gradient_sums(self) -> tuple[Parameter, ...]:
        """What the gradients are added up in, those of row groups last."""
        return () if self._step is None else self._step.gradient_sum

    def parameters(self) -> dict[str, Parameter]:
        """Return what holds the gathered gradients, and the moving statistics from before them, by name.

        Gradients of sparse tables are not among them: they belong to rows, see
        `trainer.embedding.layers.open_accumulation`.
        """
        step = self._step
        if step is None:
            return {}
        return {parameter.name: parameter for parameter in (*step.gradient_sum[: step.dense], *step.saved)}

    def forget(self, *, keep_count: bool = False) -> None:
        """Forget the gradients that were gathered, whether or not they have been used.

        Args:
            keep_count: let the window close where it would have, with the gradients of the batches still to come;
                otherwise the next batch begins one.
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
