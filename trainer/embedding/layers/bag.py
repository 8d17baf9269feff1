"""`EmbeddingBag`: one vector for a set of ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import dtype as mstype
from mindspore import nn, ops

from ...checks import choice
from .embedding import Embedding

COMBINERS = ("sum", "mean", "sqrtn")


class EmbeddingBag(Embedding):
    """One vector for a set of ids: the sum, mean or sum / sqrt(n) of their vectors, with weights if wanted.

    Args:
        dim: length of a vector.
        capacity: see `Embedding`.
        combiner: "sum"; "mean", divided by the sum of weights; "sqrtn", divided by the root of the sum of squared
            weights (as in TensorFlow's `safe_embedding_lookup_sparse`). An empty bag gives zeros.
        padding: id that fills up rows of different lengths.
        options: further arguments of `Embedding`.

    Inputs:
        ids: integers [batch, length], padded; or [n] together with `offsets`.
        weights: float32, of the shape of `ids`, or None.
        offsets: int32 [batch], ascending from 0: where each bag starts in `ids`, or None.

    Outputs:
        float32 tensor [batch, dim].
    """

    def __init__(
        self, dim: int, capacity: int | None = None, *, combiner: str = "sum", padding: int = -1, **options: Any
    ) -> None:
        super().__init__(dim, capacity, padding=padding, **options)
        choice("combiner", combiner, COMBINERS)
        self.combiner = combiner

    def __call__(self, ids, weights=None, offsets=None):
        """Read bags outside of a graph; see `Embedding`."""
        if self.probe is not None:
            self.probe.append((self, np.array(ids.asnumpy())))
            batch = ids.shape[0] if offsets is None else offsets.shape[0]
            return ops.zeros((batch, self.dim), mstype.float32)
        if self.is_dense:
            return nn.Cell.__call__(self, ids, weights, offsets)
        return self._combine(self._read(ids), ids != self.padding, weights, offsets)

    def construct(self, ids, weights=None, offsets=None):
        """Return one vector for each bag, [batch, dim]."""
        if self.is_dense:
            present = ids != self.padding
            values = self._dense(ids)
        else:
            positions = self.row_positions(ids)
            present = positions != 0
            values = self.vectors(positions)
        return self.lowered(self._combine(values, present, weights, offsets))

    def _combine(self, values, present, weights, offsets):
        factor = ops.cast(present, mstype.float32)
        if weights is not None:
            factor = factor * weights
        values = values * ops.expand_dims(factor, -1)
        norm = ops.square(factor) if self.combiner == "sqrtn" else factor
        if offsets is None:
            total = values.sum(1)
            norm = norm.sum(1)
        else:
            indices = ops.arange(values.shape[0])
            bags = ops.cast(ops.searchsorted(ops.cast(offsets, indices.dtype), indices, right=True), mstype.int32) - 1
            total = ops.unsorted_segment_sum(values, bags, offsets.shape[0])
            norm = ops.unsorted_segment_sum(norm, bags, offsets.shape[0])
        if self.combiner == "sum":
            return total
        if self.combiner == "sqrtn":
            norm = ops.sqrt(norm)
        empty = norm == 0
        norm = ops.where(empty, ops.ones_like(norm), norm)
        return total / ops.expand_dims(norm, -1)
