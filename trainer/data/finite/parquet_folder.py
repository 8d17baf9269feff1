"""`ParquetFolder`: a folder of Parquet files for `fit`, read by row group."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...checks import whole
from ...errors import ConfigurationError, DataError, did_you_mean
from ...storage.location import Location, RemoteFile, is_url, with_retries
from ...streams.formats import arrow
from ..as_columns import Columns, as_array
from .block_source import BlockSource


@dataclass(frozen=True, slots=True)
class _RowGroup:
    path: Path | RemoteFile
    number: int
    rows: int


class ParquetFolder(BlockSource):
    """Batches from Parquet files larger than memory; needs pyarrow (extra ``arrow``).

    A thread reads rows ahead. With `shuffle`, the order of an epoch depends only on (seed, epoch). Row groups are read
    in random order, and rows are shuffled within blocks of row groups, of at least `SHUFFLED_ROWS` rows each. Smaller
    row groups therefore give a better shuffle. A resumed run skips the blocks before its position.

    Args:
        path: a folder, whose files are read in the order of their names, or one file. Files whose names start with
            ``_`` or ``.`` are left out. For a URL, such as ``s3://bucket/folder``, every epoch downloads the requested
            columns of each row group when it is needed. If the store cannot be reached, reading is retried for a
            minute.
        batch_size: rows per batch; the last one of an epoch may have fewer.
        columns: names of the columns to read, in the order the network takes them, the label last; None reads all
            columns of the first file.
        shuffle: whether each epoch has a different order of rows.
        seed: seed of the order.
        num_shards: number of parts that the row groups are divided into, as in `mindspore.dataset`.
        shard_id: the part to read, from 0.

    Raises:
        ConfigurationError: an argument is out of range, a column does not exist, or pyarrow is not installed.
        DataError: there are no Parquet files, files have different columns, or there are no rows.
    """

    names: tuple[str, ...]  # always known

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
        arrow.require()
        self.path = str(path) if is_url(path) else Path(path)
        whole("batch_size", batch_size)
        self.num_shards = whole("num_shards", num_shards)
        self.shard_id = whole("shard_id", shard_id, 0, maximum=self.num_shards - 1)
        groups, names = _row_groups(self.path, columns)
        self.names = names
        self._groups = groups[self.shard_id :: self.num_shards]
        super().__init__([group.rows for group in self._groups], batch_size, shuffle=shuffle, seed=seed)
        if not self.rows:
            raise DataError(f"{self.path}: shard {shard_id} of {num_shards} has no rows")

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "shard": [self.shard_id, self.num_shards]}

    def read(self, numbers: Sequence[int]) -> Columns:
        pa = arrow.require()
        tables = []
        groups = [self._groups[number] for number in numbers]
        for group in groups:
            try:
                tables.append(
                    _use_file(group.path, functools.partial(arrow.row_group, number=group.number, columns=self.names))
                )
            except arrow.errors() as error:
                raise DataError(f"{group.path}, row group {group.number}: {error}") from error
        try:
            table = pa.concat_tables(tables)
        except pa.ArrowException as error:
            names = ", ".join(dict.fromkeys(str(group.path) for group in groups))
            raise DataError(f"columns have different types in different files ({names}): {error}") from error
        return tuple([self._column(table, name) for name in self.names])

    def _column(self, table: Any, name: str) -> np.ndarray:
        pa = arrow.require()
        array = table.column(name).combine_chunks()
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_large_string(array.type):
            array = array.cast(pa.string())
        if array.null_count:
            raise DataError(f"{self.path}: column {name!r} has {array.null_count:,} missing values; fill them in first")
        list_checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        is_list = any(kind(array.type) for kind in list_checks)
        shape = (len(array[0]),) if is_list else ()
        flat = arrow.flat(array, shape)
        if flat is None:
            raise DataError(f"{self.path}: column {name!r} holds lists of different lengths, or lists with gaps")
        return as_array(flat.reshape(len(array), *shape), name)


def _use_file(path: Path | RemoteFile, use: Callable[[Any], Any]) -> Any:
    """Return the result of `use` on an open Parquet file."""

    def attempt() -> Any:
        with arrow.open_parquet(path) as file:
            return use(file)

    return with_retries(attempt, str(path)) if isinstance(path, RemoteFile) else attempt()


def _files(path: Path | str) -> list[Any]:
    """Return the Parquet files of a folder in the order of their names, or one file."""
    files: list[Any]
    try:
        if isinstance(path, str):
            location = Location(path)
            if location.entry() is not None:
                folder, name = location.parent()
                return [RemoteFile(folder, name)]
            names = sorted(name for name in location.files(recursive=False) if name.endswith(".parquet"))
            files = [RemoteFile(location, name) for name in names]
        else:
            if not path.exists():
                raise DataError(f"{path}: there is no such file or folder")
            files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    files = [file for file in files if file.name[0] not in "_."]
    if not files:
        raise DataError(f"{path}: holds no files named *.parquet")
    return files


def _row_groups(path: Path | str, columns: Sequence[str] | None) -> tuple[list[_RowGroup], tuple[str, ...]]:
    """Return all row groups and the names of the columns to read."""
    files = _files(path)
    groups: list[_RowGroup] = []
    names = None if columns is None else tuple(columns)
    for file in files:
        try:
            present, rows = _use_file(file, lambda parquet: (parquet.schema_arrow.names, arrow.group_rows(parquet)))
        except arrow.errors() as error:
            raise DataError(f"{file} is not a Parquet file, or is damaged: {error}") from error
        names = tuple(present) if names is None else names
        for name in names:
            if name not in present:
                kind = ConfigurationError if file == files[0] else DataError
                raise kind(f"{file} has no column {name!r}{did_you_mean(name, present)}; it has {', '.join(present)}")
        groups += [_RowGroup(file, number, count) for number, count in enumerate(rows)]
    return groups, names or ()
