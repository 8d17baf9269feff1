"""Scaled dot-product attention (A. Vaswani et al., 2017) with a fast gradient."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from .layers import row_sums


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

    Only the values have a gradient; `bprop` reuses the other outputs.

    On CPU, splitting and joining heads by transposes takes as long as the batched products. Up to two heads, each query
    becomes one row per head instead, zero outside the columns of the head, and keys and values stay whole. The products
    are larger then, which costs more than transposes from about four heads on.
    """

    def __init__(self, heads: int, scale: float, masked: bool, causal: bool) -> None:
        super().__init__(auto_prefix=False)
        self.heads, self.scale, self.masked, self.causal = heads, scale, masked, causal
        self.is_spread = heads <= 2
        self.softmax = ops.Softmax(-1)
        self.product = ops.BatchMatMul()
        self.product_with_transposed = ops.BatchMatMul(transpose_b=True)
        self.product_of_transposed = ops.BatchMatMul(transpose_a=True)
        self.matmul_with_transposed = ops.MatMul(transpose_b=True)

    def _selection(self, x):
        """Return the matrix that copies each head's columns, [width, heads * width]."""
        width = x.shape[2]
        column, target = ops.expand_dims(ops.arange(width), 1), ops.expand_dims(ops.arange(self.heads * width), 0)
        return ops.cast(target == column + width * (column // (width // self.heads)), x.dtype)

    def _split_queries(self, x, selection):
        """Map [N, L, width] to [N, L * heads, width] or [N, heads, L, head_dim]."""
        if not self.is_spread:
            return self._split_keys(x)
        if self.heads == 1:
            return x
        return ops.matmul(x.reshape(-1, x.shape[2]), selection).reshape(-1, x.shape[1] * self.heads, x.shape[2])

    def _join_queries(self, x, selection):
        """Map the output of `_split_queries` back to [N, L, width]."""
        if not self.is_spread:
            return self._join_keys(x)
        if self.heads == 1:
            return x
        rows = x.reshape(-1, self.heads * x.shape[2])
        return self.matmul_with_transposed(rows, selection).reshape(-1, x.shape[1] // self.heads, x.shape[2])

    def _split_keys(self, x):
        """Map [N, L, width] to itself or [N, heads, L, head_dim]."""
        if self.is_spread:
            return x
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).swapaxes(1, 2)

    def _join_keys(self, x):
        """Map the output of `_split_keys` back to [N, L, width]."""
        if self.is_spread:
            return x
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)

    def _scaled(self, x):
        return x if self.scale == 1.0 else x * self.scale

    def construct(self, query, key, value, kept):
        selection = self._selection(query) if self.is_spread and self.heads > 1 else query  # else not used
        # Scale the query, because there are L / head_dim times as many scores.
        query, key, value = (
            self._split_queries(self._scaled(query), selection),
            self._split_keys(key),
            self._split_keys(value),
        )
        scores = ops.cast(self.product_with_transposed(query, key), mstype.float32)
        length = scores.shape[-1]
        if self.masked:
            kept = ops.cast(kept, mstype.float32)
            kept = kept.reshape(-1, 1, length) if self.is_spread else kept.reshape(-1, 1, 1, length)
            scores = scores - 1e9 * (1 - kept)
        if self.causal:
            later = 1 - causal_mask(length)
            if self.is_spread:  # a query has a row per head
                later = ops.broadcast_to(ops.expand_dims(later, 1), (length, self.heads, length)).reshape(-1, length)
            scores = scores - 1e9 * later
        weights = ops.cast(self.softmax(scores), value.dtype)
        attended = self.product(weights, value)
        return self._join_queries(attended, selection), weights, attended, query, key, value, selection

    def bprop(self, query, key, value, kept, out, dout):
        weights, attended, query, key, value, selection = out[1:]  # split, and the query scaled
        gradient = self._split_queries(dout[0], selection)
        weight_grad = self.product_with_transposed(gradient, value)
        # Equals the sum of weights * weight_grad over the keys, computed from smaller arrays.
        mean = row_sums(attended * gradient)
        score_grad = weights * (weight_grad - mean)
        return (
            self._scaled(self._join_queries(self.product(score_grad, key), selection)),
            self._join_keys(self.product_of_transposed(score_grad, query)),
            self._join_keys(self.product_of_transposed(weights, gradient)),
            ops.zeros_like(kept),
        )
