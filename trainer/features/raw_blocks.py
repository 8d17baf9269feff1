"""Reads files of raw rows in pieces: in one pass, or in rereadable blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, StreamError
from ..streams.sources.files import FileStream
from .absent_columns import AbsentColumns
from .features import Features, Inputs
from .raw_files import RawFiles
from .raw_rows import Rows, SetAside

PART_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of the files.

    Attributes:
        position: where the block begins, as given by `FileStream`.
        first: index of the first row among the good rows.
        read: good rows in the block.
        rows: number of those rows that belong to the part.
    """

    position: dict[str, Any]
    first: int
    read: int
    rows: int


class RawBlocks:
    """The good rows of raw files as network inputs, in blocks of about `PART_ROWS`.

    The first pass over the files finds the blocks; with `learn`, the features also learn from the rows.

    Args:
        features: the declared columns.
        data: the files.
        learn: whether the features learn from the rows.
        block_rows: rows of a block.

    Attributes:
        rows: number of rows of each block.
        names: names of the columns that `read` returns.
        report: how many rows were set aside and why, or None.

    Raises:
        DataError: the file does not exist, too many rows are bad, or a required column is absent.
    """

    def __init__(self, features: Features, data: RawFiles, *, learn: bool = False, block_rows: int = PART_ROWS) -> None:
        self._features, self._path = features, data.path
        self._keep = data.rows_kept(features)
        aside = SetAside(features.max_bad_share)
        self._blocks: list[Block] = []
        absent = AbsentColumns(features.schema)
        with open_files(self._path, features, aside) as stream:
            for position, first, rows in _blocks(stream, block_rows):
                absent.note(rows.columns, rows.good)
                kept = self._kept(rows, first)
                self._blocks.append(Block(position, first, rows.good, kept.good))
                if learn and kept.good and (features.statistics or not features.learned.profiled_rows):
                    features.learn(kept.columns)
        absent.warn(self._path)
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
        """Return the network inputs of some blocks.

        Raises:
            DataError: the files have changed since the first pass.
        """
        parts = []
        for number in numbers:
            block = self._blocks[number]
            rows = None
            with (
                contextlib.suppress(StreamError),  # raised for a replaced file
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
    """Open files as a stream that ends after the last of them.

    Args:
        path: a file or a folder.
        features: declare the columns.
        aside: counts the rows that are set aside.
        position: where to start; None: at the beginning.
        labelled: whether labels are required.
        kept: whether the columns kept for output are read as well.

    Raises:
        DataError: the file does not exist.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    schema = features.schema_of(labelled=labelled, kept=kept)
    with contextlib.closing(FileStream(path, schema, end="at_last", dead_letter=aside)) as stream:
        if position is not None:
            stream.seek(position)
        yield stream


def parts_of(stream: FileStream, most: int = PART_ROWS) -> Iterator[Rows]:
    """Yield the good rows of a finite stream, at most `most` at a time."""
    while not stream.exhausted:
        batch = stream.poll(most, 1.0)
        if batch is not None:
            yield Rows(dict(batch.columns), batch.rows)


def _blocks(stream: FileStream, size: int, least: int = 1) -> Iterator[tuple[dict[str, Any], int, Rows]]:
    """Yield (position, index of the first row, rows) of blocks of `size` good rows.

    The last block has at least `least` rows.
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
            yield position, first, _joined(parts, count)
            first, count, parts = first + count, 0, []
            position = dict(stream.position())
    if count >= least:
        yield position, first, _joined(parts, count)


def _joined(parts: Sequence[Any], count: int) -> Rows:
    if len(parts) == 1:
        return Rows(dict(parts[0]), count)
    return Rows({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, count)
