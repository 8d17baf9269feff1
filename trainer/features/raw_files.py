"""`RawFiles`: files of raw rows, or their train, valid or test part, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ..checks import choice, number, refuse, whole
from ..embedding.tables.hashing import stable_seed, uniform64
from ..errors import ConfigurationError, DataError
from ..storage.cached_segments import local_files
from ..streams.formats.csv_format import CsvFormat
from ..streams.formats.schema import Schema
from ..streams.sources.whole_table import names_of_file, read_batches
from .features import Features
from .raw_rows import AbsentColumns, BadRowCounter, RawData, Rows

PARTS = ("train", "valid", "test")
IN_MEMORY_BYTES = 1 << 26  # files of a smaller total size are kept in memory
_SEED = stable_seed("part")


class RawFiles(RawData):
    """A file or folder of raw rows, or one part of its rows.

    If the features declare an `event_time`, the newest rows are the part "test", the rows before them "valid", and all
    older rows "train". Otherwise rows are assigned to parts at random, in the same way every time.

    Args:
        path: a CSV, TSV, JSON-lines or Parquet file, or a folder of them. The files of a URL, such as
            ``s3://bucket/folder``, are copied to the local disk until the process ends.
        part: "train", "valid" or "test"; None: all rows.
        valid: share of the rows in the part "valid".
        test: share of the rows in the part "test".
        in_memory: whether to keep the network's inputs in memory; otherwise every epoch reads the rows again, in
            blocks. None: keep them if the files are smaller than `IN_MEMORY_BYTES` in total.
        shuffled_rows: number of rows to shuffle together if they are not kept in memory.

    Raises:
        ConfigurationError: an argument is invalid.
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
        self.path = local_files(path)
        if in_memory not in (None, True, False):
            refuse("RawFiles(in_memory=...)", "True, False or None", in_memory)
        self._in_memory = in_memory
        self.shuffled_rows = whole("RawFiles(shuffled_rows=...)", shuffled_rows)
        self.part = choice("RawFiles(part=...)", part, PARTS, optional=True)
        self.valid = number("RawFiles(valid=...)", valid, minimum=0)
        self.test = number("RawFiles(test=...)", test, minimum=0)
        if self.valid + self.test >= 1:
            raise ConfigurationError(
                f"RawFiles(valid={valid}, test={test}) leaves nothing to train on; accepts shares that add up to less "
                "than 1"
            )

    @property
    def in_memory(self) -> bool:
        if self._in_memory is not None:
            return self._in_memory
        files = [self.path] if self.path.is_file() else self.path.glob("*")
        return sum(file.stat().st_size for file in files if file.is_file()) < IN_MEMORY_BYTES

    def __str__(self) -> str:
        return str(self.path)

    def names(self, csv_format: CsvFormat) -> list[str]:
        return list(map(str, names_of_file(self.path, csv_format)))

    def parts(
        self, features: Features, bad_rows: BadRowCounter, *, labelled: bool = True, kept: bool = False
    ) -> Iterator[Rows]:
        # the rows of a part are counted among those that have a label, or divided by their event time
        schema = features.schema_of(labelled=labelled or self.part is not None, kept=kept)
        select, absent, first, kept_rows = self.part_filter(features), AbsentColumns(schema), 0, 0
        for batch in read_batches(self.path, schema, bad_rows):
            rows = Rows(dict(batch.columns), batch.rows)
            absent.note(rows.columns, rows.good)
            part = select(rows, first)
            yield part
            first, kept_rows = first + rows.count, kept_rows + part.count
        absent.warn(self)
        if first and not kept_rows:
            raise DataError(
                f"{self.path}: its {first:,} rows are too few for a part {self.part!r} (valid={self.valid}, "
                f"test={self.test}); give more rows, larger shares, or a separate file, {self.part}: other.csv"
            )

    def part_filter(self, features: Features) -> Callable[[Rows, int], Rows]:
        """Return a function (rows, index of the first row) -> the rows of the part.

        Indexes count the good rows from the start of the files.

        Raises:
            DataError: no row has an event time.
        """
        if self.part is None:
            return lambda rows, first: rows
        index = PARTS.index(self.part)
        if features.event_time is None:
            shares = np.cumsum([1 - self.valid - self.test, self.valid])  # ends of "train" and of "valid"

            def random_part(rows: Rows, first: int) -> Rows:
                numbers = uniform64(np.arange(first, first + rows.count), _SEED)
                return _select(rows, np.searchsorted(shares, numbers, side="right") == index)

            return random_part
        column = features.event_time
        edges = self._part_starts(features, column)
        return lambda rows, first: _select(rows, np.searchsorted(edges, rows.columns[column], side="right") == index)

    def _part_starts(self, features: Features, column: str) -> np.ndarray:
        """Return the times at which the parts "valid" and "test" start."""
        schema = Schema({column: features.schema.fields[column]}, csv=features.csv)
        times = [batch.columns[column] for batch in read_batches(self.path, schema, BadRowCounter())]
        if not times:
            raise DataError(f"{self.path}: no row has a time in column {column!r}, which the split needs")
        ordered = np.sort(np.concatenate(times))
        indices = np.ceil(np.array([1 - self.valid - self.test, 1 - self.test]) * len(ordered) - 1e-9).astype(np.int64)
        return np.append(ordered, np.inf)[indices]


def _select(rows: Rows, mask: np.ndarray) -> Rows:
    return Rows({name: column[mask] for name, column in rows.columns.items()}, int(mask.sum()))
