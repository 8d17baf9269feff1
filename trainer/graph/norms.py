"""Norms of gradients and weights, computed inside the training program on request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..checkpoint.content import NORMS
from ..mindspore_internals.shared_memory import overwrite


class NormRecorder(nn.Cell):
    """2-norms of each dense parameter and its gradient, before clipping and update.

    Computed only in calls after `request`; a call of several steps keeps the norms of its last step.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.weights = tuple(parameters)
        self.wanted = Parameter(Tensor(0, mstype.int32), name=f"{NORMS}wanted", requires_grad=False)
        empty = Tensor(np.zeros((2, len(self.weights)), np.float32))
        self.norms = Parameter(empty, name=f"{NORMS}values", requires_grad=False)

    def construct(self, gradients):
        """Record the norms if requested."""
        if self.wanted > 0:
            of_gradients = ()
            of_weights = ()
            for index, weight in enumerate(self.weights):
                of_gradients += (_norm(gradients[index]),)
                of_weights += (_norm(weight),)
            ops.assign(self.norms, ops.stack((ops.stack(of_gradients), ops.stack(of_weights))))

    def request(self) -> None:
        """Compute norms in all calls until `read`."""
        overwrite(self.wanted, np.array(1, np.int32))

    def read(self) -> dict[str, tuple[float, float]]:
        """End the request; return (gradient norm, weight norm) by parameter name."""
        overwrite(self.wanted, np.array(0, np.int32))
        values = np.array(self.norms.asnumpy())
        return {p.name: (float(g), float(w)) for p, g, w in zip(self.weights, *values, strict=True)}


def _norm(value):
    return ops.sqrt(ops.sum(ops.square(ops.cast(value, mstype.float32))))
