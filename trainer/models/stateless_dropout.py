"""Dropout with masks of (seed, layer, forward, position), for exact resume.

MindSpore's dropout kernels keep a random state that cannot be read or set. Here a mask entry is the hash of its
position plus a key that changes with every training forward. Snapshots save the count of forwards, a parameter that
the graph increments.
"""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..checkpoint.capture import DROPOUT_COUNTER

_GOLDEN = 0x9E3779B9  # 2**32 over the golden ratio: keys of successive forwards lie as far apart as can be
_FIRST, _SECOND = 0x85EBCA6B, 0xC2B2AE35


def layer_key(seed: int, layer: int) -> int:
    """Return a layer's offset in the sequence of 2**32 masks."""
    return int(np.random.SeedSequence([seed, layer]).generate_state(1, np.uint32)[0])


class StatelessDropout(nn.Cell):
    """Keep entries with probability `keep_prob` and scale them by its inverse.

    The mask compares MurmurHash3's 32-bit finalizer (Appleby) of position + key with `keep_prob` * 2**32. `whole`
    trailing dimensions are kept or dropped together: 2 for the maps of [N, C, H, W]. Inference returns the input.
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
        """Return x with entries dropped; counts the forward."""
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
        # shifts by a tensor of the same shape: the CPU kernels are ten times slower when they broadcast
        bits = ops.bitwise_xor(bits, ops.bitwise_right_shift(bits, ops.full((count,), 16, dtype=mstype.uint32)))
        bits = bits * self.first
        bits = ops.bitwise_xor(bits, ops.bitwise_right_shift(bits, ops.full((count,), 13, dtype=mstype.uint32)))
        return ops.less(bits * self.second, self.threshold)

    def extend_repr(self) -> str:
        """Show the probability."""
        return f"keep_prob={self.keep_prob}"
