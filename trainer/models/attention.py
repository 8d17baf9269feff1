"""Scaled dot-product attention (A. Vaswani et al., 2017) with a fast gradient."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype


def causal_mask(length):
    """Return a causal mask, 1 up to the query's position, float32 [L, L]; graph code."""
    positions = ops.arange(length)
    return ops.cast(ops.expand_dims(positions, 0) <= ops.expand_dims(positions, 1), mstype.float32)


class Attention(nn.Cell):
    """Multi-head attention, softmax(scale * Q K^T) V, with concatenated heads.

    The gradient is written by hand: it reuses the attention weights and needs only five batched matrix products.

    Maps query, key and value, float [N, L, width], to float [N, L, width]. With `masked`, there is a fourth input, the
    mask, bool [N, L]: True for the keys to attend to, at least one in each row.

    Args:
        heads: number of heads; it must divide the width.
        scale: factor of the inner products.
        masked: whether there is a mask.
        causal: whether a query attends only to keys up to its own position; cannot be combined with a mask.
    """

    def __init__(self, heads: int, scale: float = 1.0, masked: bool = False, causal: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.weighted = _WeightedValues(heads, scale, masked, causal)
        self.no_mask = Tensor(np.ones((1, 1), np.float32))

    def construct(self, query, key, value, mask=None):
        kept = self.no_mask if mask is None else ops.cast(mask, mstype.float32)
        return self.weighted(query, key, value, kept)[0]


class _WeightedValues(nn.Cell):
    """Compute the attended values and the attention weights.

    Only the values have a gradient; `bprop` reuses the weights.
    """

    def __init__(self, heads: int, scale: float, masked: bool, causal: bool) -> None:
        super().__init__(auto_prefix=False)
        self.heads, self.scale, self.masked, self.causal = heads, scale, masked, causal
        self.softmax = ops.Softmax(-1)
        self.product = ops.BatchMatMul()
        self.product_with_transposed = ops.BatchMatMul(transpose_b=True)
        self.product_of_transposed = ops.BatchMatMul(transpose_a=True)

    def _split(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).swapaxes(1, 2)

    def _join(self, x):
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)

    def _scaled(self, x):
        return x if self.scale == 1.0 else x * self.scale

    def construct(self, query, key, value, kept):
        query, key, value = self._split(query), self._split(key), self._split(value)
        # Scale the query, because there are L / head_dim times as many scores.
        scores = ops.cast(self.product_with_transposed(self._scaled(query), key), mstype.float32)
        if self.masked:
            scores = scores - 1e9 * (1 - ops.cast(kept, mstype.float32).reshape(kept.shape[0], 1, 1, kept.shape[1]))
        if self.causal:
            scores = scores - 1e9 * (1 - causal_mask(scores.shape[3]))
        weights = ops.cast(self.softmax(scores), value.dtype)
        return self._join(self.product(weights, value)), weights

    def bprop(self, query, key, value, kept, out, dout):
        attended, weights = self._split(out[0]), out[1]
        query, key, value, gradient = self._split(query), self._split(key), self._split(value), self._split(dout[0])
        weight_grad = self.product_with_transposed(gradient, value)
        # Equals the sum of weights * weight_grad over the keys, computed from smaller arrays.
        mean = (attended * gradient).sum(-1, keepdims=True)
        score_grad = weights * (weight_grad - mean)
        return (
            self._join(self._scaled(self.product(score_grad, key))),
            self._join(self.product_of_transposed(score_grad, self._scaled(query))),
            self._join(self.product_of_transposed(weights, gradient)),
            ops.zeros_like(kept),
        )
