"""Files of raw rows that are read piece by piece: once from end to end, or in blocks, each found again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, StreamError
from ..streams.sources.files import FileStream
from .features import Features, Inputs
from .raw_files import RawFiles
from .raw_rows import Rows, SetAside

PART_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of the files.

    Attributes:
        position: where they begin, as `FileStream` gives it.
        first: number of the first one among the good rows.
        read: good rows in the block.
        rows: those of them that belong to the part.
    """

    position: dict[str, Any]
    first: int
    read: int
    rows: int


class RawBlocks:
    """The good rows of files of raw rows, as inputs of the network, in blocks of about `PART_ROWS`.

    The first pass over the files finds the blocks; with `learn` the features learn from their rows.

    Args:
        features: the declared columns.
        data: the files.
        learn: whether the features learn from the rows.
        block_rows: rows of a block.

    Attributes:
        rows: rows of each block.
        names: names of the columns that `read` returns.
        report: how many rows were set aside and why, or None.

    Raises:
        DataError: no such file, no good rows, or a required column is absent.
    """

    def __init__(self, features: Features, data: RawFiles, *, learn: bool = False, block_rows: int = PART_ROWS) -> None:
        self._features, self._path = features, data.path
        self._keep = data.rows_kept(features)
        aside = SetAside()
        self._blocks: list[Block] = []
        with open_files(self._path, features, aside) as stream:
            for position, first, rows in _blocks(stream, block_rows):
                kept = self._kept(rows, first)
                self._blocks.append(Block(position, first, rows.good, kept.good))
                if learn and kept.good and (features.statistics or not features.learned.profiled_rows):
                    features.learn(kept.columns)
        self.report = aside.report()
        self.rows = [block.rows for block in self._blocks]
        if not sum(self.rows):
            raise DataError(f"{self._path}: no good rows{'' if self.report is None else f': {self.report}'}")
        if learn:
            features.learning_ended(sum(self.rows))
        self.names = features.batch_names

    def _kept(self, rows: Rows, first: int) -> Rows:
        return rows if self._keep is None else self._keep(rows, first)

    def read(self, numbers: Sequence[int]) -> list[Inputs]:
        """Return the inputs of the rows of some blocks.

        Raises:
            DataError: the files have changed since the first pass.
        """
        parts = []
        for number in numbers:
            block = self._blocks[number]
            rows = None
            with (
                contextlib.suppress(StreamError),  # which a file that has been replaced raises
                open_files(self._path, self._features, SetAside(), block.position) as stream,
            ):
                _, _, rows = next(_blocks(stream, block.read, block.read), (None, None, None))
            if rows is None:
                raise DataError(f"{self._path}: a file has changed since its rows were counted")
            parts.append(self._features.batch(self._kept(rows, block.first).columns))
        return parts


@contextlib.contextmanager
def open_files(
    path: Path,
    features: Features,
    aside: SetAside,
    position: dict[str, Any] | None = None,
    *,
    labelled: bool = True,
    kept: bool = False,
) -> Iterator[FileStream]:
    """Open files as a stream that ends with the last of them.

    Args:
        path: a file or a folder.
        features: say what the columns are.
        aside: counts the rows that are set aside.
        position: where to begin; None: at the start.
        labelled: whether labels have to be there.
        kept: whether the columns that are kept for output are read as well.

    Raises:
        DataError: no such file.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    schema = features.schema_of(labelled=labelled, kept=kept)
    with contextlib.closing(FileStream(path, schema, end="at_last", dead_letter=aside)) as stream:
        if position is not None:
            stream.seek(position)
        yield stream


def parts_of(stream: FileStream, most: int = PART_ROWS) -> Iterator[Rows]:
    """Yield the good rows of a stream that ends, at most `most` at a time."""
    while not stream.exhausted:
        batch = stream.poll(most, 1.0)
        if batch is not None:
            yield Rows(dict(batch.columns), batch.rows)


def _blocks(stream: FileStream, size: int, least: int = 1) -> Iterator[tuple[dict[str, Any], int, Rows]]:
    """Yield blocks of `size` good rows, the last of at least `least`: position, number of the first row, rows."""
    first, count, parts = 0, 0, []
    position = dict(stream.position())
    while not stream.exhausted and count < size:
        batch = stream.poll(size - count, 1.0)
        if batch is None:
            continue
        parts.append(batch.columns)
        count += batch.rows
        if count == size:
            yield position, first, _joined(parts, count)
            first, count, parts = first + count, 0, []
            position = dict(stream.position())
    if count >= least:
        yield position, first, _joined(parts, count)


def _joined(parts: Sequence[Any], count: int) -> Rows:
    if len(parts) == 1:
        return Rows(dict(parts[0]), count)
    return Rows({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, count)
