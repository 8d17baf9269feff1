"""`ParquetFolder`: a folder of Parquet files as finite data for `fit`, read row group by row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..checks import whole
from ..errors import ConfigurationError, DataError, did_you_mean
from .as_columns import Columns, as_array
from .sources import Item, Source

WINDOW_ROWS = 1 << 18


class _Group(NamedTuple):
    path: Path
    number: int
    rows: int


class ParquetFolder(Source):
    """Batches from Parquet files that need not fit into memory; needs pyarrow, the extra ``arrow``.

    Rows are read ahead on a thread of their own. Shuffled, the order of an epoch comes from (seed, epoch) alone: row
    groups in a random order, and rows at random within windows of about `WINDOW_ROWS` rows of them, so a shuffle is
    the better the smaller the row groups are. A run that is resumed reads nothing of what lies before its position but
    the window that it is in.

    Args:
        path: the folder, read in the order of its files' names, or one file. Names that start with ``_`` or ``.`` are
            left out.
        batch_size: rows per batch; the last one of an epoch may have fewer.
        columns: names of the columns to read, in the order the network takes them, the label last; None: all of the
            first file's.
        shuffle: whether rows come in another order each epoch.
        seed: of the order.
        num_shards: read every so many-th row group only, as `mindspore.dataset` calls it.
        shard_id: which of them, from 0.

    Raises:
        ConfigurationError: an argument out of range, a column that is not there, or pyarrow is missing.
        DataError: no Parquet files, files of other columns, or no rows.
    """

    def __init__(
        self,
        path: str | Path,
        batch_size: int,
        columns: Sequence[str] | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        num_shards: int = 1,
        shard_id: int = 0,
    ) -> None:
        from ..streams import arrow

        arrow.require()
        self.path = Path(path)
        self.batch_size = whole("batch_size", batch_size)
        self.shuffle, self.seed = shuffle, seed
        self.num_shards = whole("num_shards", num_shards)
        self.shard_id = whole("shard_id", shard_id, 0)
        if shard_id >= num_shards:
            raise ConfigurationError(f"shard_id: takes 0 to {num_shards - 1}; received {shard_id}")
        groups, names = _row_groups(self.path, columns)
        self.names = names
        self._groups = groups[self.shard_id :: self.num_shards]
        self.rows = sum(group.rows for group in self._groups)
        if not self.rows:
            raise DataError(f"{self.path}: shard {shard_id} of {num_shards} has no rows")
        self.size = -(-self.rows // self.batch_size)

    def describe(self) -> dict[str, Any]:
        """Return what has to be the same for a position to mean the same rows."""
        return {
            "kind": "ParquetFolder",
            "rows": self.rows,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "shard": [self.shard_id, self.num_shards],
        }

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        """Yield the batches; windows that lie before the position are not read."""
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self._groups)) if self.shuffle else np.arange(len(self._groups))
        skip = start * self.batch_size
        waiting: list[Columns] = []
        rows = 0
        for window in _windows([self._groups[place] for place in order]):
            count = sum(group.rows for group in window)
            places = rng.permutation(count) if self.shuffle else np.arange(count)
            if skip >= count:
                skip -= count
                continue
            columns = self._read(window, places[skip:])
            count, skip, first = count - skip, 0, 0
            while rows + count - first >= self.batch_size:
                last = first + self.batch_size - rows
                waiting.append(tuple([column[first:last] for column in columns]))
                yield Item(_joined(waiting))
                waiting, rows, first = [], 0, last
            if first < count:
                waiting.append(tuple([column[first:] for column in columns]))
                rows += count - first
        if waiting:
            yield Item(_joined(waiting))

    def _read(self, window: Sequence[_Group], places: np.ndarray) -> Columns:
        """Return the columns of some row groups, rows as `places` says."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = []
        for group in window:
            try:
                with pq.ParquetFile(group.path) as file:
                    tables.append(file.read_row_group(group.number, columns=list(self.names), use_threads=False))
            except (pa.ArrowException, OSError, ValueError) as error:
                raise DataError(f"{group.path}, row group {group.number}: {error}") from error
        try:
            table = pa.concat_tables(tables)
        except pa.ArrowException as error:
            names = ", ".join(dict.fromkeys(str(group.path) for group in window))
            raise DataError(f"columns have other types in different files ({names}): {error}") from error
        return tuple([self._column(table, name)[places] for name in self.names])

    def _column(self, table: Any, name: str) -> np.ndarray:
        import pyarrow as pa

        from ..streams import arrow

        array = table.column(name).combine_chunks()
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_large_string(array.type):
            array = array.cast(pa.string())
        if array.null_count:
            raise DataError(f"{self.path}: column {name!r} lacks {array.null_count:,} values; fill them in beforehand")
        kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        listed = any(kind(array.type) for kind in kinds)
        length = len(array[0]) if listed else 1
        flat = arrow.flat(array, length)
        if flat is None:
            raise DataError(f"{self.path}: column {name!r} holds lists of different lengths, or lists with gaps")
        return as_array(flat.reshape(len(array), length) if listed else flat, name)


def _row_groups(path: Path, columns: Sequence[str] | None) -> tuple[list[_Group], tuple[str, ...]]:
    """Return all row groups and the names of the columns to read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    files = [file for file in files if file.name[0] not in "_."]
    if not files:
        raise DataError(f"{path}: holds no files named *.parquet")
    groups: list[_Group] = []
    names = None if columns is None else tuple(columns)
    for file in files:
        try:
            metadata = pq.read_metadata(file)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(f"{file} is no Parquet file, or is damaged: {error}") from error
        present = metadata.schema.to_arrow_schema().names
        names = tuple(present) if names is None else names
        for name in names:
            if name not in present:
                kind = ConfigurationError if file == files[0] else DataError
                raise kind(f"{file} has no column {name!r}{did_you_mean(name, present)}; it has {', '.join(present)}")
        groups += [_Group(file, n, metadata.row_group(n).num_rows) for n in range(metadata.num_row_groups)]
    return groups, names or ()


def _windows(groups: Sequence[_Group]) -> Iterator[list[_Group]]:
    """Yield runs of row groups of `WINDOW_ROWS` rows or a little more."""
    window: list[_Group] = []
    rows = 0
    for group in groups:
        window.append(group)
        rows += group.rows
        if rows >= WINDOW_ROWS:
            yield window
            window, rows = [], 0
    if window:
        yield window


def _joined(parts: Sequence[Columns]) -> Columns:
    return parts[0] if len(parts) == 1 else tuple([np.concatenate(columns) for columns in zip(*parts, strict=True)])
