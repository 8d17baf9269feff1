"""Warns of declared columns that no row has: most often a misspelt name."""

from __future__ import annotations

import contextlib
import csv
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import did_you_mean
from ..streams.batch import columns_of, is_frame
from ..streams.formats.ragged_column import Ragged
from ..streams.formats.schema import Schema

logger = logging.getLogger(__name__)
_SHOWN = 10  # names of the data's columns in a warning
_SAMPLE = 100  # rows whose names are looked at, of rows that have their own
FEWEST = 10  # rows, below which all values of a column may well be missing


class AbsentColumns:
    """Notes which declared columns have had a value.

    Args:
        schema: the declared columns.
    """

    def __init__(self, schema: Schema) -> None:
        self._absent = {name: column for name, column in schema.fields.items() if column.default is not None}
        self._rows = 0

    def note(self, columns: Mapping[str, Any], rows: int) -> None:
        """Note the good rows of a part of the data."""
        self._rows += rows
        for name, column in list(self._absent.items()):
            if name in columns and not _all_missing(columns[name], column.default):
                del self._absent[name]

    def warn(self, data: Any) -> None:
        """Warn of columns without a value; `data` are the rows, or the path of files."""
        if not self._absent or self._rows < FEWEST:
            return
        present = list(dict.fromkeys(str(name) for name in names_in(data)))
        for name in self._absent:
            hint = "" if name in present else did_you_mean(name, [other for other in present if other != name])
            have = f"; the data have {', '.join(present[:_SHOWN])}{', ...' if len(present) > _SHOWN else ''}"
            shown = have if present and name not in present else ""
            logger.warning("features: %r is missing in all %s rows%s%s", name, f"{self._rows:,}", shown, hint)


def _all_missing(values: Any, missing: Any) -> bool:
    if isinstance(values, Ragged):
        return not len(values.values)
    values = np.asarray(values)
    if not values.size:
        return True
    if values.dtype.kind == "f":
        return bool(np.isnan(values.ravel()[0]) and np.isnan(values).all())
    if not isinstance(missing, str | int | float | bool):
        return False
    return bool(values.ravel()[0] == missing and (values == missing).all())


def names_in(data: Any) -> Iterable[Any]:
    """Return the column names of raw rows or of a path's first file; empty if unknown."""
    if is_frame(data):
        data = columns_of(data)
    if isinstance(data, Mapping):
        return list(data)
    if isinstance(data, list | tuple):
        return [name for row in data[:_SAMPLE] for name in row]
    if isinstance(data, str | Path):
        with contextlib.suppress(OSError, ValueError, ImportError, csv.Error):
            return _names_of_file(Path(data))
    return []


def _names_of_file(path: Path) -> list[str]:
    if path.is_dir():
        path = min(file for file in path.iterdir() if file.is_file() and not file.name.startswith((".", "_")))
    kind = path.suffix.lower()
    if kind == ".parquet":
        from pyarrow import parquet

        return list(parquet.read_schema(path).names)
    with open(path, encoding="utf-8-sig") as file:
        if kind in (".csv", ".tsv"):
            return next(csv.reader(file, delimiter="\t" if kind == ".tsv" else ","), [])
        return list(json.loads(file.readline(1 << 20)))
