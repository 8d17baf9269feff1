"""Whether all numbers of a step are finite, in few operators."""

from __future__ import annotations

import mindspore
from mindspore import amp, nn, ops


class AllFinite(nn.Cell):
    """Whether every entry of some tensors is finite.

    `amp.all_finite` asks the environment and the device inside the graph, which takes as long to compile as a layer,
    and makes numbers of the answers before it adds them up. What it knows of other devices than CPU is left to it.

    Inputs:
        tensors: float tensors of any shapes.
        others: bool scalar that has to be true as well.

    Outputs:
        Bool scalar.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.on_cpu = mindspore.get_context("device_target") == "CPU"
        self.is_finite, self.all, self.both = ops.IsFinite(), ops.ReduceAll(), ops.LogicalAnd()

    def construct(self, tensors, others):
        """Return whether all are finite."""
        if not self.on_cpu:
            return self.both(amp.all_finite(tensors), others)
        for tensor in tensors:
            others = self.both(others, self.all(self.is_finite(tensor)))
        return others
