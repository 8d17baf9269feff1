"""Averages of a network's weights over training: exponential (EMA) or plain (SWA)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..checkpoint.content import AVERAGES
from ..checks import whole
from ..mindspore_internals.shared_memory import overwrite
from ..state import Stateful


@dataclass(frozen=True)
class AverageRule:
    """Rule by which weights are averaged over updates.

    With `decay`, averages are exponential: avg = d avg + (1 - d) w. After n updates d = min(decay, n / (9 + n)), so the
    first weights soon lose their influence (TensorFlow's `ExponentialMovingAverage` with `num_updates`). Without
    `decay`, averages are plain means (Izmailov et al. 2018, equation 1 of "Averaging Weights Leads to Wider Optima").
    """

    decay: float | None = None
    start: int = 0  # number of updates before averaging begins
    every: int = 1  # number of updates between two samples of a plain mean


class WeightAverage(nn.Cell, Stateful):
    """Float32 averages of parameters, updated in the graph after each optimizer step.

    Skipped updates (overflow or a non-finite value) do not count.
    """

    def __init__(self, parameters: Sequence[Parameter], rule: AverageRule) -> None:
        super().__init__(auto_prefix=False)
        self.rule = rule
        self.sources = tuple(parameters)
        self.averages = tuple(
            Parameter(Tensor(p.asnumpy().astype(np.float32)), name=f"{AVERAGES}{p.name}", requires_grad=False)
            for p in parameters
        )
        self.updates = Parameter(Tensor(0, mstype.int32), name=f"{AVERAGES}updates", requires_grad=False)
        self.decay, self.start, self.every = rule.decay, rule.start, rule.every
        self._applied = False

    def construct(self):
        """Add the weights of this update to the averages."""
        done = self.updates - self.start
        counted = ops.cast(ops.maximum(done, 0), mstype.float32)
        if self.decay is None:
            rate = ops.cast(done % self.every == 0, mstype.float32) / (counted / self.every + 1.0)
        else:
            rate = 1.0 - ops.minimum(counted / (counted + 9.0), self.decay)
        # Until averaging begins, the averages equal the weights.
        rate = ops.maximum(rate, ops.cast(done <= 0, mstype.float32))
        for index, average in enumerate(self.averages):
            ops.assign_add(average, rate * (ops.cast(self.sources[index], mstype.float32) - average))
        ops.assign_add(self.updates, 1)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights by their averages inside the block; may be nested."""
        if self._applied:
            yield
            return
        kept = [np.array(source.asnumpy()) for source in self.sources]
        self._applied = True
        try:
            self._put(average.asnumpy() for average in self.averages)
            yield
        finally:
            self._put(kept)
            self._applied = False

    def restart(self) -> None:
        """Begin anew: the averages take the values of the weights."""
        for source, average in zip(self.sources, self.averages, strict=True):
            overwrite(average, source.asnumpy())
        overwrite(self.updates, np.array(0, np.int32))

    def replace_weights(self) -> None:
        """Replace the weights by their averages permanently."""
        self._put(average.asnumpy() for average in self.averages)

    def _put(self, values: Any) -> None:
        for source, value in zip(self.sources, values, strict=True):
            overwrite(source, value)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, the number of updates and the rule."""
        arrays = {source.name: average.asnumpy() for source, average in zip(self.sources, self.averages, strict=True)}
        return {"json": {"updates": int(self.updates.asnumpy()), "rule": asdict(self.rule)}, "arrays": arrays}

    def continues(self, state: Mapping[str, Any]) -> bool:
        """Return whether a state has the same rule; the value of `decay` may differ."""
        saved, own = state["json"].get("rule"), asdict(self.rule)
        return isinstance(saved, Mapping) and _without_value_of_decay(saved) == _without_value_of_decay(own)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`.

        Raises:
            ValueError: the averages do not fit the network's parameters, or are those of another rule.
        """
        if "rule" in state["json"] and not self.continues(state):  # states of earlier releases have no rule
            raise ValueError(f"averages by the rule {state['json']['rule']} cannot go on by {asdict(self.rule)}")
        arrays = state["arrays"]
        values = [arrays.get(source.name) for source in self.sources]
        for source, value in zip(self.sources, values, strict=True):
            if value is None or tuple(value.shape) != tuple(source.shape):
                raise ValueError(f"the average of {source.name} is missing or of another shape")
        updates = whole("updates", state["json"]["updates"], 0)
        for average, value in zip(self.averages, values, strict=True):
            overwrite(average, value)
        overwrite(self.updates, np.array(updates, np.int32))


def _without_value_of_decay(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {**rule, "decay": rule.get("decay") is not None}
