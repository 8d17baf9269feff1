"""Dropout with reproducible masks, so that a run resumes exactly.

MindSpore's dropout kernels keep a random state that cannot be read or set. Here the mask is a function of seed, layer,
number of training forward passes and position: each entry is a hash of its position and of a key that changes with
every pass. The number of passes is a parameter: the graph increments it, and snapshots save it.
"""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..checkpoint.capture import DROPOUT_COUNTER

_GOLDEN = 0x9E3779B9  # 2**32 / golden ratio; spreads the keys of successive forward passes evenly
_FIRST, _SECOND = 0x85EBCA6B, 0xC2B2AE35


def layer_key(seed: int, layer: int) -> int:
    """Return a layer's first key, from 0 to 2**32 - 1."""
    return int(np.random.SeedSequence([seed, layer]).generate_state(1, np.uint32)[0])


class StatelessDropout(nn.Cell):
    """Keep entries with probability `keep_prob` and scale them by its inverse.

    An entry is kept if MurmurHash3's 32-bit finalizer (A. Appleby) of position + key is below `keep_prob` * 2**32.
    Inference returns the input unchanged.

    Args:
        keep_prob: probability of keeping an entry.
        key: first key of the layer, from `layer_key`.
        whole: number of trailing dimensions that are kept or dropped together, such as 2 for the maps of [N, C, H, W].
    """

    def __init__(self, keep_prob: float, key: int, whole: int = 0) -> None:
        super().__init__()
        self.keep_prob = keep_prob
        self.whole = whole
        self.forwards = Parameter(Tensor(0, mstype.int32), name=DROPOUT_COUNTER, requires_grad=False)
        self.key = Tensor(key, mstype.uint32)
        self.threshold = Tensor(min(round(keep_prob * 2**32), 2**32 - 1), mstype.uint32)
        self.stride = Tensor(_GOLDEN, mstype.uint32)
        self.first, self.second = Tensor(_FIRST, mstype.uint32), Tensor(_SECOND, mstype.uint32)

    def construct(self, x):
        """Return x with entries dropped, and count the forward pass."""
        if not self.training:
            return x
        shape = x.shape
        if self.whole > 0:
            shape = shape[: -self.whole] + (1,) * self.whole
        mask = ops.reshape(self._mask(shape), shape)
        return ops.select(ops.broadcast_to(mask, x.shape), x / self.keep_prob, ops.zeros_like(x))

    def _mask(self, shape):
        count = 1
        for length in shape:
            count = count * length
        forward = ops.cast(self.forwards.value(), mstype.uint32)
        ops.assign_add(self.forwards, ops.ones((), mstype.int32))
        bits = ops.cast(ops.arange(0, count, 1, dtype=mstype.int32), mstype.uint32)
        bits = bits + (forward * self.stride + self.key)
        # Shift by a tensor of the full shape, because the CPU kernels are ten times slower when they broadcast.
        bits = ops.bitwise_xor(bits, ops.bitwise_right_shift(bits, ops.full((count,), 16, dtype=mstype.uint32)))
        bits = bits * self.first
        bits = ops.bitwise_xor(bits, ops.bitwise_right_shift(bits, ops.full((count,), 13, dtype=mstype.uint32)))
        return ops.less(bits * self.second, self.threshold)

    def extend_repr(self) -> str:
        """Show the probability."""
        return f"keep_prob={self.keep_prob}"
