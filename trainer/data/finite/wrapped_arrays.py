"""Replaces pipelines that only shuffle and batch arrays with a faster source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...mindspore_internals.pipelines import next_order, shuffles_as_expected
from .sources import ArraySource, PipelineSource


class WrappedArrays(ArraySource):
    """Yields the batches of `NumpySlicesDataset(arrays).batch(n)` from its arrays."""

    kind, described = "PipelineSource", PipelineSource.described  # positions in snapshots fit both sources

    def __init__(self, dataset: Any, columns: dict[str, np.ndarray], seed: int, shuffle: bool) -> None:
        batch_size = dataset.batch_size
        super().__init__(columns, batch_size, shuffle=shuffle, seed=seed)
        self.dataset = dataset
        self._all_rows = self.rows
        self._pass, self._order = -1, np.arange(self.rows)
        self._ordered_by = self.seed, self.first_epoch
        if dataset.drop_remainder:
            self.rows -= self.rows % batch_size
            self.size = self.rows // batch_size

    def order(self, epoch: int) -> np.ndarray | None:
        if not self.shuffle:
            return None
        if epoch - self.first_epoch < self._pass or self._ordered_by != (self.seed, self.first_epoch):
            self._pass, self._order = -1, np.arange(self._all_rows)
            self._ordered_by = self.seed, self.first_epoch
        while self._pass < epoch - self.first_epoch:
            self._pass += 1
            self._order = next_order(self._order, self.seed + self._pass)
        return self._order


def wrapped_arrays(dataset: Any, seed: int) -> WrappedArrays | None:
    """Return a pipeline's source if it only shuffles and batches arrays, else None."""
    if type(dataset).__name__ != "BatchDataset" or not isinstance(dataset.batch_size, int):
        return None
    inner = dataset.children[0]
    changes = ("per_batch_map", "batch_size_func", "cache", "output_columns")
    if any(getattr(dataset, name, None) for name in changes):
        return None
    if type(inner).__name__ != "NumpySlicesDataset" or _chooses_rows(inner):
        return None
    names = dataset.get_col_names()
    columns = [array for column in inner.source.data if (array := _as_array(column)) is not None]
    if not len(names) == len(columns) == len(inner.source.data):
        return None
    rows, batch_size = len(columns[0]), dataset.batch_size
    shuffle = type(inner.sampler).__name__ == "RandomSampler"
    if rows < (batch_size if dataset.drop_remainder else 1) or (shuffle and not shuffles_as_expected()):
        return None
    arrays = dict(zip(names, columns, strict=True))
    return WrappedArrays(dataset, arrays, seed, shuffle)


def _chooses_rows(inner: Any) -> bool:
    sampler = inner.sampler
    options = [inner.num_samples, inner.cache, inner.has_batch_sampler, inner.collate_fn, inner.column_types]
    options += [getattr(sampler, "child_sampler", None), sampler.num_samples, inner.num_shards not in (None, 1)]
    if type(sampler).__name__ == "RandomSampler":
        return any(options) or sampler.replacement or not sampler.reshuffle_each_epoch
    return any(options) or type(sampler).__name__ != "SequentialSampler" or bool(sampler.start_index)


def _as_array(column: Sequence[Any] | np.ndarray) -> np.ndarray | None:
    """Return a column as one numeric array, or None if its rows do not form one."""
    if not isinstance(column, np.ndarray):
        if not len(column) or not isinstance(column[0], np.ndarray | np.generic):
            return None
        shape, dtype = column[0].shape, column[0].dtype
        if any(row.shape != shape or row.dtype != dtype for row in column):
            return None
        column = np.asarray(column)
    return column if column.dtype.kind in "biuf" else None
