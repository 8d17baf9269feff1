"""FBGEMM's tables, the engine of TorchRec: many tables in one operator that also trains them, here on a CPU.

On a CPU it has Adagrad and no Adam. Its accumulators begin where `nn.Adagrad`'s and ours begin, so losses agree.
"""

from __future__ import annotations

from typing import Any

ACCUMULATOR = 0.1


def tables(rows: int, dim: int, count: int, rate: float, halves: bool = False) -> Any:
    """Return `count` tables [rows, dim], all zeros; called with (indices, offsets) it gives [batch, count * dim].

    With `halves`, rows are float16 with one accumulator each; vectors stay float32. Indices are those of the first
    table's whole batch, then of the second one's, ...
    """
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        OptimType,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    made = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * count,
        optimizer=OptimType.EXACT_ROWWISE_ADAGRAD if halves else OptimType.EXACT_ADAGRAD,
        weights_precision=SparseType.FP16 if halves else SparseType.FP32,
        output_dtype=SparseType.FP32,
        learning_rate=rate,
        eps=0.0,
    )
    made.momentum1_host.data.fill_(ACCUMULATOR)
    return made
