"""`NumpySlicesDataset(arrays, shuffle=False).batch(n)` read as the arrays it wraps: the same batches, without the way
through MindSpore's pipeline, which takes the rows one by one.

A shuffled pipeline is left as it is: the order its seed stands for can be had from MindSpore alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .sources import ArraySource


class WrappedArrays(ArraySource):
    """The arrays inside a pipeline; positions mean what they mean in the pipeline.

    Args:
        columns: name -> array.
        batch_size: rows per batch.
        seed: the trainer's, which is part of the description of a pipeline.
    """

    def __init__(self, columns: dict[str, np.ndarray], batch_size: int, seed: int) -> None:
        super().__init__(columns, batch_size, seed=seed)

    def describe(self) -> dict[str, Any]:
        """Return what a pipeline says of itself, so that snapshots taken with one fit."""
        return {"kind": "PipelineSource", "size": self.size, "seed": self.seed}


def wrapped_arrays(dataset: Any, seed: int) -> WrappedArrays | None:
    """Return the arrays that a pipeline does nothing with but cut them into batches in order; None for any other."""
    if type(dataset).__name__ != "BatchDataset" or not isinstance(dataset.batch_size, int):
        return None
    inner = dataset.children[0]
    if type(inner).__name__ != "NumpySlicesDataset" or _changes_batches(dataset) or _chooses_rows(inner):
        return None
    names = dataset.get_col_names()
    columns = [_as_array(column) for column in inner.source.data]
    if len(names) != len(columns) or any(column is None for column in columns):
        return None
    rows = len(columns[0])
    if dataset.drop_remainder:
        rows -= rows % dataset.batch_size
    if not rows:
        return None
    return WrappedArrays({n: c[:rows] for n, c in zip(names, columns, strict=True)}, dataset.batch_size, seed)


def _changes_batches(dataset: Any) -> bool:
    return any(getattr(dataset, name, None) for name in ("per_batch_map", "batch_size_func", "cache", "output_columns"))


def _chooses_rows(inner: Any) -> bool:
    sampler = inner.sampler
    whole = type(sampler).__name__ == "SequentialSampler" and not getattr(sampler, "child_sampler", None)
    chosen = (sampler.num_samples, sampler.start_index) if whole else (1,)
    options = (inner.num_samples, inner.cache, inner.has_batch_sampler, inner.collate_fn, inner.column_types)
    return any(chosen) or any(options) or inner.num_shards not in (None, 1)


def _as_array(column: Sequence[Any] | np.ndarray) -> np.ndarray | None:
    """Return a column as one array if its rows are NumPy's; a dict's columns have become lists of rows."""
    if not isinstance(column, np.ndarray):
        if not len(column) or not isinstance(column[0], np.ndarray | np.generic):
            return None
        shape, dtype = column[0].shape, column[0].dtype
        if any(row.shape != shape or row.dtype != dtype for row in column):
            return None
        column = np.asarray(column)
    return column if column.dtype.kind in "biuf" else None
