"""Files of raw rows as sources: shuffled blocks for training, file order for evaluation and prediction."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..data.as_columns import Columns
from ..data.finite.block_source import BlockSource, rebatched
from ..data.source import Item, ReadMode, Source
from ..errors import DataError
from ..features.feature_data import KeptColumns, batches_of
from ..features.features import Features
from ..features.raw_blocks import PART_ROWS, RawBlocks
from ..features.raw_files import RawFiles
from ..features.raw_rows import SetAside

logger = logging.getLogger(__name__)


class RawRowBlocks(BlockSource):
    """The rows of files in shuffled blocks, transformed when they are read.

    Args:
        features: the declared columns.
        data: the files.
        batch_size: rows per batch.
        learn: whether the features learn from the rows in the first pass.
        shuffle: whether rows come in another order each epoch.
        seed: of the order.
        read_mode: how several processes read them.
    """

    def __init__(
        self,
        features: Features,
        data: RawFiles,
        batch_size: int,
        *,
        learn: bool,
        shuffle: bool,
        seed: int,
        read_mode: ReadMode = ReadMode.COMMON,
    ) -> None:
        self._blocks = RawBlocks(features, data, learn=learn, block_rows=min(PART_ROWS, data.shuffled_rows))
        self.set_aside = self._blocks.report
        if self._blocks.report is not None:
            logger.warning("features: %s", self._blocks.report)
        self.names, self.read_mode = self._blocks.names, read_mode
        super().__init__(
            self._blocks.rows,
            batch_size,
            shuffle=shuffle,
            seed=seed,
            shuffled_rows=data.shuffled_rows,
            ahead=True,
        )

    def read(self, numbers: Sequence[int]) -> Columns:
        """Return the columns of all rows of some blocks."""
        parts = self._blocks.read(numbers)
        return tuple([np.concatenate([part[name] for part in parts]) for name in self.names or ()])


class RawRowsInOrder(Source):
    """The rows of files, read once per pass in their order.

    Args:
        features: the declared columns.
        data: the files.
        batch_size: rows per batch.
        labelled: whether labels have to be there.
        kept: takes the columns that are kept for output, or None.
        set_aside: whether any number of bad rows is left out, of rows without labels too.
    """

    def __init__(
        self,
        features: Features,
        data: RawFiles,
        batch_size: int,
        *,
        labelled: bool,
        kept: KeptColumns | None = None,
        set_aside: bool = False,
    ) -> None:
        self._features, self._data, self._batch_size = features, data, batch_size
        self._labelled, self._kept, self._set_aside = labelled, kept, set_aside

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        """Yield the batches."""
        aside = SetAside(1.0 if self._set_aside or not self._labelled else self._features.max_bad_share)
        yield from rebatched(self._columns(aside, self._kept), self._batch_size)
        report = aside.report()
        if report is not None:
            logger.warning("features: %s", report)

    def peek(self, should_stop: Any = lambda: False) -> Columns:
        """Return the columns of one batch, which `batches` delivers all the same."""
        for item in rebatched(self._columns(SetAside(), None), self._batch_size):
            return item.columns
        raise DataError(f"{self._data.path}: no good rows")

    def _columns(self, aside: SetAside, kept: KeptColumns | None) -> Iterator[Columns]:
        rows = False
        options: dict[str, Any] = {"labelled": self._labelled, "kept": kept, "set_aside": self._set_aside}
        for inputs in batches_of(self._features, self._data, aside, **options):
            self.names = tuple(inputs)
            rows = True
            yield tuple(inputs.values())
        if not rows:
            report = aside.report()
            raise DataError(f"{self._data.path}: no good rows{'' if report is None else f': {report}'}")
