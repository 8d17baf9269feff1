"""Reads whole tables from files."""

from __future__ import annotations

import contextlib
import csv
import functools
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ..batch import Batch
from ..dead_letter import DeadLetter
from ..formats import csv_header
from ..formats.csv_format import CsvFormat
from ..formats.schema import Schema
from .files import FileStream

PART_ROWS = 1 << 16
_HEADER_LINES = 1000  # first JSON lines whose keys are the columns
_LONGEST_LINE = 1 << 20  # characters; the keys of longer lines are not read


def names_of_file(path: Path, csv_format: CsvFormat) -> list[str]:
    """Return the columns of a file, or a folder's first file; empty if unknown."""
    with contextlib.suppress(OSError, ValueError, ImportError, csv.Error):
        if path.is_dir():
            path = min(file for file in path.iterdir() if file.is_file() and not file.name.startswith((".", "_")))
        kind = path.suffix.lower()
        if kind == ".parquet":
            from pyarrow import parquet

            return list(parquet.read_schema(path).names)
        if kind in (".csv", ".tsv"):
            return csv_header.names_of_file(path, csv_format)
        return _names_of_lines(path)
    return []


def _names_of_lines(path: Path) -> list[str]:
    """Return the keys of the first JSON lines; a line may lack some of them."""
    names: dict[str, None] = {}
    with open(path, encoding="utf-8-sig") as file:
        for line in itertools.islice(iter(functools.partial(file.readline, _LONGEST_LINE), ""), _HEADER_LINES):
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                names |= dict.fromkeys(row if isinstance(row, dict) else ())
    return list(names)


@contextlib.contextmanager
def open_files(path: Path, schema: Schema, dead_letter: DeadLetter) -> Iterator[FileStream]:
    """Open files as a stream that ends; raise DataError if they do not exist."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    with contextlib.closing(FileStream(path, schema, end="at_last", dead_letter=dead_letter)) as stream:
        yield stream


def read_batches(path: Path, schema: Schema, dead_letter: DeadLetter, max_rows: int = PART_ROWS) -> Iterator[Batch]:
    """Yield the good rows of files, at most `max_rows` at a time."""
    with open_files(path, schema, dead_letter) as stream:
        while not stream.exhausted:
            batch = stream.poll(max_rows, 1.0)
            if batch is not None:
                yield batch


def read_table(path: Path, schema: Schema, what: str) -> dict[str, Any]:
    """Read all rows of a file or folder; return the columns of the schema by name.

    Raises:
        DataError: the path does not exist, has no rows, or has a bad row. `what` begins the message.
    """
    dead_letter = DeadLetter(max_bad_share=1.0)
    parts = [batch.columns for batch in read_batches(path, schema, dead_letter)]
    if dead_letter.bad:
        raise DataError(f"{what} {path}: {dead_letter.report()}")
    if not parts:
        raise DataError(f"{what} {path} has no rows")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
