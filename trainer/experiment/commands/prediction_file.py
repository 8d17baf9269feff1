"""Write predictions to a Parquet, CSV or JSON-lines file, part by part."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...checkpoint import durable
from ...checks import require
from ...errors import DataError, TrainerError
from ...streams.formats.ragged_column import Ragged, exactly_joinable

PART_ROWS = 1 << 17  # rows that are written at a time

Columns = Mapping[str, np.ndarray | Ragged]


def write_columns(path: Path, batches: Iterable[Columns], empty: str = "predict: the dataset delivered no rows") -> int:
    """Write batches of columns to a file atomically.

    Args:
        path: the file; its suffix, a key of `WRITERS`, selects the format.
        batches: the columns of each batch.
        empty: message of the error without rows.

    Returns:
        The number of rows.

    Raises:
        ConfigurationError: PyArrow is missing.
        DataError: there are no rows, rows of a column differ in shape, or Parquet cannot hold a column's mixed types or
            large integers.
        TrainerError: the file cannot be written.
    """
    temporary, rows = path.with_name(f".{path.name}.{os.getpid()}.tmp"), 0
    with contextlib.ExitStack() as opened:
        opened.callback(temporary.unlink, missing_ok=True)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            writer = opened.enter_context(contextlib.closing(WRITERS[path.suffix](temporary)))
        for columns in _regrouped(batches):
            rows += len(next(iter(columns.values())))
            with writing(path):
                writer.write(columns)
        if not rows:
            raise DataError(empty)
        with writing(path):
            writer.close()
            durable.checksum_and_sync(temporary)
            os.replace(temporary, path)
            durable.sync_folder(path.parent)
    return rows


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an OSError in the context to a TrainerError that names the file."""
    try:
        yield
    except OSError as error:
        reason = f"the predictions cannot be written ({error.strerror or error}); choose another --output"
        raise TrainerError(f"{path}: {reason}") from error


def _regrouped(batches: Iterable[Columns]) -> Iterator[Columns]:
    """Regroup batches into parts of at least `PART_ROWS` rows."""
    pending: list[Columns] = []
    count = 0
    for columns in batches:
        pending.append(columns)
        count += len(next(iter(columns.values())))
        if count >= PART_ROWS:
            yield _concatenated(pending)
            pending, count = [], 0
    if count:
        yield _concatenated(pending)


def _concatenated(parts: list[Columns]) -> Columns:
    columns = {name: [part[name] for part in parts] for name in parts[0]}
    for name, arrays in columns.items():
        shapes = {array.shape[1:] for array in arrays if isinstance(array, np.ndarray)}
        if len(shapes) > 1:
            shown = " and ".join(str(list(shape)) for shape in sorted(shapes))
            raise DataError(f"--output: column {name!r} has rows of the shapes {shown}; a file takes rows of one shape")
    return {name: np.concatenate(exactly_joinable(arrays)) for name, arrays in columns.items()}


class _JsonLines:
    def __init__(self, path: Path) -> None:
        self._file = open(path, "w", encoding="utf-8", newline="")  # noqa: SIM115 (closed by `close`)

    def write(self, columns: Columns) -> None:
        rows = zip(*map(_values, columns.values()), strict=True)
        self._file.writelines(_json(dict(zip(columns, row, strict=True))) + "\n" for row in rows)

    def close(self) -> None:
        self._file.close()


class _Csv(_JsonLines):
    def write(self, columns: Columns) -> None:
        writer = csv.writer(self._file)
        if not self._file.tell():
            writer.writerow(columns)
        cells = (
            map(_cell, column.tolist())
            if isinstance(column, np.ndarray) and column.ndim == 1
            else map(_json, _values(column))
            for column in columns.values()
        )
        writer.writerows(zip(*cells, strict=True))


class _Parquet:
    def __init__(self, path: Path) -> None:
        needs = "--output: files ending with .parquet need PyArrow, .csv and .jsonl do not"
        self._parquet = require("pyarrow.parquet", needs, "arrow")
        self._path = path
        self._writer: Any = None

    def write(self, columns: Columns) -> None:
        import pyarrow as pa

        try:
            table = pa.table({name: _arrow(column) for name, column in columns.items()})
            if self._writer is None:
                types = [pa.string() if pa.types.is_null(field.type) else field.type for field in table.schema]
                schema = pa.schema(list(zip(table.column_names, types, strict=True)))
                self._writer = self._parquet.ParquetWriter(self._path, schema)
            table = table.cast(self._writer.schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            where = "--output: a kept column has values of several types, or larger than 64 bits"
            raise DataError(f"{where} ({error}); .csv and .jsonl files take them") from None
        self._writer.write_table(table)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _arrow(column: np.ndarray | Ragged) -> Any:
    import pyarrow as pa

    values = column.values if isinstance(column, Ragged) else column
    array = pa.array(values.ravel())
    if values.ndim > 1:
        array = pa.FixedSizeListArray.from_arrays(array, int(np.prod(values.shape[1:])))
    return pa.LargeListArray.from_arrays(column.offsets, array) if isinstance(column, Ragged) else array


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _cell(value: Any) -> Any:
    return _json(value) if isinstance(value, bool) else value


def _values(column: np.ndarray | Ragged) -> list[Any]:
    """Return each row's value for JSON; numbers that are not finite become null."""
    rows = [column[row].tolist() for row in range(len(column))] if isinstance(column, Ragged) else column.tolist()
    return [_finite(row) for row in rows] if column.dtype.kind in "fO" else rows


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


WRITERS: dict[str, Any] = {".parquet": _Parquet, ".csv": _Csv, ".jsonl": _JsonLines}
