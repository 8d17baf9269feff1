"""Sources of raw rows that are larger than memory or change with the epoch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import DataError, StreamError
from ...features.feature_data import KeptColumns, batches_of, inputs_of, learns_from_next
from ...features.features import Features
from ...features.raw_files import RawFiles
from ...features.raw_rows import AbsentColumns, BadRowCounter, Rows
from ...streams.sources.files import FileStream
from ...streams.sources.whole_table import PART_ROWS, open_files
from ..as_columns import Columns, as_columns
from ..source import Item, Source
from .block_source import BlockSource, rebatched
from .interactions import DrawnNegatives
from .sources import ArraySource

logger = logging.getLogger(__name__)


class DrawnRows(ArraySource):
    """Interactions as network inputs, with new negatives in each epoch."""

    def __init__(
        self, features: Features, data: DrawnNegatives, batch_size: int | None, shuffle: bool, seed: int
    ) -> None:
        super().__init__(inputs_of(features, data, fit=True), batch_size, shuffle=shuffle, seed=seed)
        self._features, self._data, self._epoch_drawn = features, data, 0

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        """Yield the batches of an epoch; see `ArraySource`."""
        if epoch != self._epoch_drawn:
            self._columns = as_columns(inputs_of(self._features, self._data.of_epoch(epoch)), self.names)[0]
            self._epoch_drawn = epoch
        yield from super().batches(epoch, start, state)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of the files.

    Attributes:
        position: position of the file stream before the block.
        first: index of the first row among all good rows.
        read: number of good rows in the block.
        rows: number of these rows that belong to the part ("train", "valid" or "test") that is read.
    """

    position: dict[str, Any]
    first: int
    read: int
    rows: int


class RawRowBlocks(BlockSource):
    """The good rows of files in shuffled blocks, transformed when they are read.

    The constructor reads the files once to find the blocks. Features that have not learned yet learn from these rows.

    Raises:
        DataError: the file does not exist, too many rows are bad, or a required column is absent.
    """

    def __init__(self, features: Features, data: RawFiles, batch_size: int, shuffle: bool, seed: int) -> None:
        self._features, self._path, self._select = features, data.path, data.part_filter(features)
        self._blocks: list[Block] = []
        bad_rows, absent = BadRowCounter(features.max_bad_share), AbsentColumns(features.schema)
        size = data.shuffled_rows
        learns = learns_from_next(features)
        with open_files(self._path, features.schema, bad_rows) as stream:
            for position, first, rows in _blocks(stream, min(PART_ROWS, size)):
                absent.note(rows.columns, rows.good)
                kept = self._select(rows, first)
                self._blocks.append(Block(position, first, rows.good, kept.good))
                if learns and kept.good and (features.statistics or not features.learned.profiled_rows):
                    features.learn(kept.columns)
        absent.warn(data)
        self.names, self.set_aside = features.batch_names, bad_rows.report()
        if self.set_aside is not None:
            logger.warning("features: %s", self.set_aside)
        counts = [block.rows for block in self._blocks]
        if not sum(counts):
            raise DataError(f"{data}: no good rows{'' if self.set_aside is None else f': {self.set_aside}'}")
        if learns:
            features.finish_learning(sum(counts))
        super().__init__(counts, batch_size, shuffle=shuffle, seed=seed, shuffled_rows=size)
        self.takes_seed = True

    def read(self, numbers: Sequence[int]) -> Columns:
        """Return the columns of some blocks; raise DataError if a file has changed."""
        parts = [self._read(self._blocks[number]) for number in numbers]
        return tuple([np.concatenate([part[name] for part in parts]) for name in self.names or ()])

    def _read(self, block: Block) -> dict[str, Any]:
        rows = None
        with (
            contextlib.suppress(StreamError),  # raised if a file was replaced
            open_files(self._path, self._features.schema, BadRowCounter()) as stream,
        ):
            stream.seek(block.position)
            _, _, rows = next(_blocks(stream, block.read, block.read), (None, None, None))
        if rows is None:
            raise DataError(f"{self._path}: a file has changed since its rows were counted")
        return self._features.batch(self._select(rows, block.first).columns)


def _blocks(stream: FileStream, size: int, least: int = 1) -> Iterator[tuple[dict[str, Any], int, Rows]]:
    """Yield (position, index of the first row, rows) of blocks of `size` good rows.

    The last block may be smaller; it is omitted if it has fewer than `least` rows.
    """
    first, count, parts = 0, 0, []
    position = dict(stream.position())
    while not stream.exhausted and count < size:
        batch = stream.poll(size - count, 1.0)
        if batch is None:
            continue
        parts.append(batch.columns)
        count += batch.rows
        if count == size:
            yield position, first, _join_parts(parts, count)
            first, count, parts = first + count, 0, []
            position = dict(stream.position())
    if count >= least:
        yield position, first, _join_parts(parts, count)


def _join_parts(parts: Sequence[Any], count: int) -> Rows:
    if len(parts) == 1:
        return Rows(dict(parts[0]), count)
    return Rows({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, count)


@dataclass(eq=False)
class RawRowsInOrder(Source):
    """The rows of files in their original order, read again in each pass."""

    features: Features
    data: RawFiles
    batch_size: int
    labelled: bool  # whether rows must have labels
    kept: KeptColumns | None  # collects the columns of `Features(keep=...)`
    leave_out: bool  # whether any number of bad rows may be left out, even when predicting

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        """Yield the batches."""
        yield from rebatched(self._columns(self.kept), self.batch_size)

    def peek(self, should_stop: Any = lambda: False) -> Columns | None:
        """Return the columns of one batch; `batches` delivers and checks it later."""
        for item in rebatched(self._columns(None, peeks=True), self.batch_size):
            return item.columns
        return None

    def _columns(self, kept: KeptColumns | None, *, peeks: bool = False) -> Iterator[Columns]:
        options: dict[str, Any] = {"set_aside": self.leave_out or peeks, "log": not peeks}
        for inputs in batches_of(self.features, self.data, labelled=self.labelled, kept=kept, **options)[1]:
            self.names = tuple(inputs)
            yield tuple(inputs.values())
