"""`RawFiles`: files of raw rows as the data of an experiment, whole or divided into parts to train and to judge on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import choice, number, refuse, whole
from ..embedding.tables.hashing import stable_seed, uniform64
from ..errors import ConfigurationError, DataError
from ..streams.formats.schema import Schema
from ..streams.sources.files import FileStream
from .feature import time_column
from .features import Features
from .raw_rows import Rows, SetAside

PARTS = ("train", "valid", "test")
IN_MEMORY_BYTES = 1 << 26  # of files
_PART_ROWS = 1 << 16
_SEED = stable_seed("part")


class RawFiles:
    """A file or folder of raw rows, or a part of its rows, as the data of an experiment.

    Where the features name an `event_time`, the newest rows are the part "test", those before them "valid", and all
    older ones "train"; otherwise rows are drawn for each part, the same ones every time.

    Args:
        path: a CSV, TSV, JSON-lines, Parquet or Arrow file, or a folder of them.
        part: "train", "valid" or "test"; None: all rows.
        valid: share of the rows in the part "valid".
        test: share of the rows in the part "test".

        in_memory: whether the network's inputs are held in memory; else the rows are read again in every epoch, in
            blocks. None: where the files have less than `IN_MEMORY_BYTES`.
        shuffled_rows: rows that are shuffled together where they are not held in memory.

    Raises:
        ConfigurationError: an argument that cannot work.
    """

    def __init__(
        self,
        path: str | Path,
        part: str | None = None,
        valid: float = 0.1,
        test: float = 0.1,
        in_memory: bool | None = None,
        shuffled_rows: int = 1 << 18,
    ) -> None:
        self.path = Path(path)
        if in_memory not in (None, True, False):
            refuse("RawFiles(in_memory=...)", "True, False or None", in_memory)
        self._in_memory = in_memory
        self.shuffled_rows = whole("RawFiles(shuffled_rows=...)", shuffled_rows)
        self.part = choice("RawFiles(part=...)", part, PARTS, optional=True)
        self.valid = number("RawFiles(valid=...)", valid, least=0)
        self.test = number("RawFiles(test=...)", test, least=0)
        if self.valid + self.test >= 1:
            raise ConfigurationError(
                f"RawFiles(valid={valid}, test={test}) leaves nothing to train on; accepts shares that add up to less "
                "than 1"
            )

    @property
    def in_memory(self) -> bool:
        """Whether the network's inputs are held in memory."""
        if self._in_memory is not None:
            return self._in_memory
        files = [self.path] if self.path.is_file() else self.path.glob("*")
        return sum(file.stat().st_size for file in files if file.is_file()) < IN_MEMORY_BYTES

    def __iter__(self) -> Iterator[Any]:
        raise ConfigurationError(f"{self.path}: raw rows need Trainer(features=...), the section features")

    def rows_kept(self, features: Features) -> Callable[[Rows, int], Rows] | None:
        """Return what leaves the part's rows of some rows and the number of the first; None where all are kept.

        Raises:
            DataError: no row has a time.
        """
        if self.part is None:
            return None
        place = PARTS.index(self.part)
        if features.event_time is None:
            return _Drawn(np.cumsum([1 - self.valid - self.test, self.valid]), place)
        column = features.event_time
        edges = self._times(column)
        return lambda rows, first: _chosen(rows, np.searchsorted(edges, rows.columns[column], side="right") == place)

    def _times(self, column: str) -> np.ndarray:
        """Return the times at which the parts "valid" and "test" begin."""
        schema = Schema({column: time_column(required=True)})
        times = []
        with contextlib.closing(FileStream(self.path, schema, end="at_last", dead_letter=SetAside())) as stream:
            while not stream.exhausted:
                batch = stream.poll(_PART_ROWS, 1.0)
                if batch is not None:
                    times.append(batch.columns[column])
        if not times:
            raise DataError(f"{self.path}: no row has a time in column {column!r}, by which it would be divided")
        ordered = np.sort(np.concatenate(times))
        begins = np.ceil(np.array([1 - self.valid - self.test, 1 - self.test]) * len(ordered) - 1e-9).astype(np.int64)
        return np.append(ordered, np.inf)[begins]


class _Drawn:
    """Keeps the rows drawn for a part, by their numbers among the good rows.

    Args:
        edges: float64 [2]: shares of the rows in "train", and in "train" and "valid".
        place: number of the part.
    """

    def __init__(self, edges: np.ndarray, place: int) -> None:
        self.edges, self.place = edges, place

    def __call__(self, rows: Rows, first: int) -> Rows:
        numbers = np.arange(first, first + rows.count)
        return _chosen(rows, np.searchsorted(self.edges, uniform64(numbers, _SEED), side="right") == self.place)


def _chosen(rows: Rows, mask: np.ndarray) -> Rows:
    return Rows({name: column[mask] for name, column in rows.columns.items()}, int(mask.sum()))
