"""A prediction file of any size: Parquet, CSV, JSON lines.

Rows are written in parts, each atomically, to a folder beside the file; at the end the parts become the file. After a
kill the same command continues after the existing parts.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...checkpoint import durable
from ...checkpoint.folder_lock import claim
from ...checks import refuse, require, whole
from ...errors import ConfigurationError, DataError
from ...streams.formats.ragged_column import Ragged

KINDS = (".parquet", ".csv", ".jsonl")
ROW = "row"
_TASK = "task.json"
_PART = re.compile(r"part-(\d{15})-(\d{15})")

Columns = Mapping[str, np.ndarray | Ragged]


class PredictionFile:
    """Writer of a prediction file.

    Args:
        path: the file; its suffix selects the format: .parquet, .csv or .jsonl.
        task: JSON description of what is predicted; parts of another task are rejected.
        part_rows: minimum rows per part.
        numbered: whether the first column, "row", numbers the rows from 0.

    Raises:
        ConfigurationError: unknown suffix, PyArrow is missing, or the folder of parts belongs to another task.
        FolderInUseError: another process is writing this file.
        DataError: parts are missing.
    """

    def __init__(
        self, path: str | os.PathLike[str], task: Mapping[str, Any], part_rows: int = 1 << 17, numbered: bool = True
    ) -> None:
        self._numbered = numbered
        self.path = durable.resolved(path)
        self._part_rows = whole("--part-rows", part_rows)
        kind = self.path.suffix
        if kind not in KINDS:
            refuse("--to", f"a file ending with {', '.join(KINDS)}", str(path))
        if kind == ".parquet":
            _parquet()
        if self.path.is_dir():
            raise ConfigurationError(f"--to: {self.path} is a folder")
        self._parts = self.path.with_name(self.path.name + ".parts")
        self._parts.mkdir(parents=True, exist_ok=True)
        self._lock = claim(self._parts, "predictions")
        try:
            self.rows = self._resume_rows(json.loads(json.dumps(task)))  # number of rows durably written
        except BaseException:
            self._lock.release()
            raise

    def _resume_rows(self, task: Mapping[str, Any]) -> int:
        """Return how many rows of this task earlier processes have written."""
        note = self._parts / _TASK
        if not note.is_file():
            durable.replace_file(note, json.dumps(task, indent=1).encode())
        before = json.loads(note.read_bytes())
        different = [name for name in {**before, **task} if before.get(name) != task.get(name)]
        if different:
            raise ConfigurationError(
                f"--to: {self._parts} holds parts of another prediction, with another {', '.join(different)}; "
                "remove it, or give another file"
            )
        for leftover in self._parts.glob(".*.tmp*"):
            leftover.unlink()
        rows = 0
        for first, last, part in self._written():
            if first != rows:
                raise DataError(f"--to: {self._parts} lacks the rows {rows} to {first}, before {part.name}: remove it")
            rows = last
        return rows

    def _written(self) -> list[tuple[int, int, Path]]:
        matches = [(_PART.match(part.name), part) for part in self._parts.iterdir()]
        return sorted((int(name[1]), int(name[2]), part) for name, part in matches if name)

    def write(self, batches: Iterable[Columns]) -> int:
        """Write the rows after the first `rows`; return the file's number of rows.

        Raises:
            DataError: there are no rows.
            OSError: a write failed; finished parts are kept for the next process.
        """
        for columns in _joined(batches, self._part_rows):
            count = len(next(iter(columns.values())))
            if self._numbered:
                columns = {ROW: np.arange(self.rows, self.rows + count), **columns}
            name = f"part-{self.rows:015d}-{self.rows + count:015d}{self.path.suffix}"
            durable.replace_file(self._parts / name, _content(self.path.suffix, columns))
            self.rows += count
        if not self.rows:
            raise DataError("predict: the dataset delivered no rows")
        self._finish()
        return self.rows

    def _finish(self) -> None:
        parts = [part for _, _, part in self._written()]
        whole_file = self._parts / f"whole{self.path.suffix}"
        if self.path.suffix == ".parquet":
            parquet = _parquet()
            with parquet.ParquetWriter(whole_file, parquet.read_schema(parts[0])) as writer:
                for part in parts:
                    writer.write_table(parquet.read_table(part))
        else:
            with open(whole_file, "wb") as file:
                for number, part in enumerate(parts):
                    with open(part, "rb") as content:
                        if number and self.path.suffix == ".csv":
                            content.readline()
                        shutil.copyfileobj(content, file, 1 << 20)
        durable.sum_and_sync(whole_file)
        os.replace(whole_file, self.path)
        durable.sync_folder(self.path.parent)
        self.close()
        shutil.rmtree(self._parts)

    def close(self) -> None:
        """Release the lock on the folder of parts."""
        self._lock.release()


def _joined(batches: Iterable[Columns], min_rows: int) -> Iterator[Columns]:
    """Regroup batches into parts of at least `min_rows` rows."""
    waiting: list[Columns] = []
    count = 0
    for columns in batches:
        waiting.append(columns)
        count += len(next(iter(columns.values())))
        if count >= min_rows:
            yield _concatenated(waiting)
            waiting, count = [], 0
    if count:
        yield _concatenated(waiting)


def _concatenated(parts: list[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _content(kind: str, columns: Columns) -> bytes:
    if kind == ".parquet":
        return _as_parquet(columns)
    text = io.StringIO(newline="")
    if kind == ".csv":
        writer = csv.writer(text)
        writer.writerow(columns)
        cells = (
            column.tolist() if isinstance(column, np.ndarray) and column.ndim == 1 else map(_json, _values(column))
            for column in columns.values()
        )
        writer.writerows(zip(*cells, strict=True))
    else:
        rows = zip(*map(_values, columns.values()), strict=True)
        text.writelines(_json(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
    return text.getvalue().encode()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _values(column: np.ndarray | Ragged) -> list[Any]:
    """Return rows' values as JSON has them; those that are not finite become null."""
    rows = [column[row].tolist() for row in range(len(column))] if isinstance(column, Ragged) else column.tolist()
    return [_finite(row) for row in rows] if column.dtype.kind in "fO" else rows


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_parquet(columns: Columns) -> bytes:
    parquet = _parquet()
    import pyarrow as pa

    arrays = {}
    for name, column in columns.items():
        values = column.values if isinstance(column, Ragged) else column
        array = pa.array(values.ravel())
        if values.ndim > 1:
            array = pa.FixedSizeListArray.from_arrays(array, int(np.prod(values.shape[1:])))
        if isinstance(column, Ragged):
            array = pa.LargeListArray.from_arrays(column.offsets, array)
        arrays[name] = array
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(arrays), sink)
    return sink.getvalue().to_pybytes()


def _parquet() -> Any:
    needs = "--to: files ending with .parquet need PyArrow, .csv and .jsonl do not"
    return require("pyarrow.parquet", needs, "arrow")
