"""MindSpore's AllGather as a function, for exchanging the addresses of processes."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops

from ..mindspore_internals.compilation import without_garbage_collection


class _Gather(nn.Cell):
    """AllGather along axis 0, for more than one process."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.all_gather = ops.AllGather()

    def construct(self, array: Tensor) -> Tensor:
        """Return the concatenated arrays of all ranks."""
        return self.all_gather(array)


def gather(array: np.ndarray) -> np.ndarray:
    """Return the joined int32 arrays of all processes, equal in length."""
    with without_garbage_collection():
        return np.array(_Gather().compile_and_run(Tensor(array)).asnumpy())
