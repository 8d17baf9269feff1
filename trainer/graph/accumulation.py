"""Access to accumulated gradients between two calls of the program."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter

from ..mindspore_internals.shared_memory import overwrite
from .custom_step import CustomStep
from .program import TrainStep


class OpenAccumulation:
    """The gradients that a step has accumulated and not yet applied."""

    def __init__(self, step: TrainStep | CustomStep | None) -> None:
        self._step = step if isinstance(step, TrainStep) and step.accumulate > 1 else None

    @property
    def is_open(self) -> bool:
        """Whether micro-batches wait for an update; copies a number from the device."""
        return self.count is not None and int(self.count.asnumpy()) > 0

    @property
    def count(self) -> Parameter | None:
        """Number of accumulated micro-batches, int32, or None without accumulation."""
        return None if self._step is None else self._step.micro_step

    @property
    def gradient_sums(self) -> tuple[Parameter, ...]:
        """Weighted gradient sums; excludes rows if tables are divided over processes."""
        step = self._step
        if step is None:
            return ()
        return step.gradient_sum[: step.dense_count] if step.by_owner else step.gradient_sum

    def parameters(self) -> dict[str, Parameter]:
        """Return the gradient sums and saved moving statistics for a snapshot, by name.

        Gradient sums of sparse tables are not included; `trainer.embedding.layers.open_accumulation` saves them by row.
        """
        step = self._step
        if step is None:
            return {}
        return {parameter.name: parameter for parameter in (*step.gradient_sum[: step.dense_count], *step.saved)}

    def clear(self, *, keep_count: bool = False) -> None:
        """Discard the gradients; with `keep_count`, keep the number of micro-batches."""
        step = self._step
        if step is None:
            return
        for parameter in (step.weight_sum, *step.gradient_sum, *(() if keep_count else (step.micro_step,))):
            overwrite(parameter, np.zeros(parameter.shape, parameter.asnumpy().dtype))
        for saved, buffer in zip(step.saved, step.buffers, strict=True):
            overwrite(saved, buffer.asnumpy())
        if step.tables is not None and not keep_count:
            step.tables.discard_accumulation()
