"""Read raw rows from files with the column types that the features declare."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigurationError, did_you_mean
from ...storage.cached_segments import local_files
from ...streams.formats.column import Column
from ...streams.formats.csv_format import CsvFormat

logger = logging.getLogger(__name__)

_HEADER_ROWS = 1000  # the column names of JSON lines are the keys of this many lines


class DeclaredRows:
    """Rows of a file or folder, read in blocks with the declared column types.

    Values are converted as in training: "0301" in a CSV file stays text if the features declare text. The blocks lack
    the columns that the file lacks; the features decide whether these are required.

    Args:
        path: a CSV, TSV, JSON-lines or Parquet file, a folder of such files, or a URL.

    Raises:
        ConfigurationError: the file does not exist, or its format is unknown.
        DataError: the file cannot be read, or has no rows.
    """

    def __init__(self, path: str, csv_format: CsvFormat) -> None:
        from .table_summary import summarize

        self.path = local_files(path)
        self._csv = csv_format
        self.names = summarize(Path(self.path), _HEADER_ROWS, csv_format, declared=True).names

    def check_column(self, name: str) -> None:
        """Check that the file has a column."""
        require_column(self.path, name, self.names)

    def blocks(self, columns: Mapping[str, Column], size: int, max_bad_share: float) -> Iterator[dict[str, Any]]:
        """Yield blocks of up to `size` good rows as columns; log a summary of bad rows."""
        from ...features.raw_rows import BadRowCounter
        from ...streams.formats.schema import Schema
        from ...streams.sources.whole_table import read_batches

        present = {name: column for name, column in columns.items() if name in self.names}
        if not present:
            raise ConfigurationError(f"{self.path} has none of the columns {', '.join(columns)}")
        bad_rows = BadRowCounter(max_bad_share)
        for batch in read_batches(self.path, Schema(present, csv=self._csv), bad_rows, size):
            yield {name: _as_raw(column, present.get(name)) for name, column in batch.columns.items()}
        report = bad_rows.report()
        if report is not None:
            logger.warning("%s: %s", self.path, report)


def _as_raw(values: Any, column: Column | None) -> Any:
    """Return values that are the same when they are read as raw rows again."""
    from ...features.feature import NO_ID
    from ...streams.formats.ragged_column import Ragged
    from ...streams.formats.times import datetimes

    if isinstance(values, Ragged) and values.dtype.kind == "i" and (values.values == NO_ID).any():
        elements = values.values.astype(object)
        elements[values.values == NO_ID] = None
        return Ragged(elements, values.offsets)
    if column is not None and column.times:  # seconds would be read in the unit that the column declares
        return datetimes(values)
    if column is None or column.default != NO_ID or not (values == NO_ID).any():
        return values
    return np.ma.masked_equal(values, NO_ID)


def require_column(path: str | Path, name: str, names: Sequence[str]) -> None:
    """Raise ConfigurationError if `name` is not among the columns of a file."""
    if name not in names:
        raise ConfigurationError(f"{path} has no column {name!r}{did_you_mean(name, names)}; it has {', '.join(names)}")
