"""Sources of raw rows: too many for memory, or changing with the epoch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...features.feature_data import KeptColumns, batches_of, inputs_of, learns_from_next
from ...features.features import Features
from ...features.raw_files import PART_ROWS, RawBlocks, RawFiles
from ..as_columns import Columns, as_columns
from ..source import Item, Source
from .block_source import BlockSource, rebatched
from .interactions import DrawnNegatives
from .sources import ArraySource

logger = logging.getLogger(__name__)


class DrawnRows(ArraySource):
    """Interactions as network inputs, with the negatives of each epoch."""

    def __init__(
        self, features: Features, data: DrawnNegatives, batch_size: int | None, shuffle: bool, seed: int
    ) -> None:
        super().__init__(inputs_of(features, data, fit=True), batch_size, shuffle=shuffle, seed=seed)
        self._features, self._data, self._drawn = features, data, 0

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        """Yield the batches of an epoch, see `ArraySource`."""
        if epoch != self._drawn:
            self._columns = as_columns(inputs_of(self._features, self._data.of_epoch(epoch)), self.names)[0]
            self._drawn = epoch
        yield from super().batches(epoch, start, state)


class RawRowBlocks(BlockSource):
    """The rows of files in shuffled blocks, transformed when they are read."""

    def __init__(self, features: Features, data: RawFiles, batch_size: int, shuffle: bool, seed: int) -> None:
        size, learn = data.shuffled_rows, learns_from_next(features)
        self._blocks = RawBlocks(features, data, learn=learn, block_rows=min(PART_ROWS, size))
        self.set_aside, self.names = self._blocks.report, self._blocks.names
        if self.set_aside is not None:
            logger.warning("features: %s", self.set_aside)
        super().__init__(self._blocks.rows, batch_size, shuffle=shuffle, seed=seed, shuffled_rows=size, ahead=True)
        self.takes_seed = True

    def read(self, numbers: Sequence[int]) -> Columns:
        """Return the columns of all rows of some blocks."""
        parts = self._blocks.read(numbers)
        return tuple([np.concatenate([part[name] for part in parts]) for name in self.names or ()])


@dataclass(eq=False)
class RawRowsInOrder(Source):
    """The rows of files in their order, read once per pass."""

    features: Features
    data: RawFiles
    batch_size: int
    labelled: bool  # whether rows must have labels
    kept: KeptColumns | None  # collects the columns kept for output
    leave_out: bool  # whether any number of bad rows is set aside, of rows without labels too

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        """Yield the batches."""
        yield from rebatched(self._columns(self.kept), self.batch_size)

    def peek(self, should_stop: Any = lambda: False) -> Columns | None:
        """Return the columns of one batch, which `batches` delivers and judges later."""
        for item in rebatched(self._columns(None, peeks=True), self.batch_size):
            return item.columns
        return None

    def _columns(self, kept: KeptColumns | None, *, peeks: bool = False) -> Iterator[Columns]:
        options: dict[str, Any] = {"set_aside": self.leave_out or peeks, "log": not peeks}
        for inputs in batches_of(self.features, self.data, labelled=self.labelled, kept=kept, **options)[1]:
            self.names = tuple(inputs)
            yield tuple(inputs.values())
