"""Convert raw rows of any form to columns; warn of absent columns."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError, StreamError, did_you_mean
from ..streams.batch import Span, columns_of, is_frame
from ..streams.dead_letter import BadRow, DeadLetter
from ..streams.formats import arrow
from ..streams.formats.coercion import is_missing
from ..streams.formats.column import Column
from ..streams.formats.csv_format import CsvFormat
from ..streams.formats.ragged_column import Ragged
from ..streams.formats.schema import Schema

if TYPE_CHECKING:
    from .features import Features

logger = logging.getLogger(__name__)

TOLERATED_ROWS = 10  # up to this many bad rows are never an error


@dataclass(frozen=True)
class Rows:
    """Rows read from raw data.

    Attributes:
        count: number of rows, including bad ones.
        bad: row index -> reason why the row is set aside.
    """

    columns: dict[str, Any]
    count: int
    bad: Mapping[int, str] = field(default_factory=dict)

    @property
    def good(self) -> int:
        """Number of good rows."""
        return self.count - len(self.bad)


def first_rows(parts: Iterator[Rows], wanted: int) -> Rows:
    """Return the first `wanted` good rows as one table."""
    taken: list[dict[str, Any]] = []
    count = 0
    while count < wanted and (rows := next(parts, None)) is not None:
        good = min(rows.good, wanted - count)
        if good:  # a part without rows may have other dtypes
            taken.append({name: column[:good] for name, column in rows.columns.items()})
            count += good
    names = taken[0] if taken else ()
    return Rows({name: np.concatenate([part[name] for part in taken]) for name in names}, count)


class BadRowCounter(DeadLetter):
    """Counts the bad rows of finite data by reason; records the place of the first."""

    def __init__(self, max_bad_share: float = 1.0) -> None:
        min_rows = math.ceil(TOLERATED_ROWS / max_bad_share) if max_bad_share else 1
        super().__init__(max_bad_share=max_bad_share, min_rows=min_rows)

    def record(self, source: str, rows: Sequence[BadRow], origins: Sequence[Span]) -> None:
        """Count bad rows; see `DeadLetter.record`."""
        self.count_reasons(rows, origins)

    def count(self, good: int, bad: int) -> None:
        """Add to the counts of good and bad rows.

        Raises:
            DataError: more than `TOLERATED_ROWS` rows are bad, and a larger share than `max_bad_share`; see
                `DeadLetter.count` for the rows that are counted.
        """
        try:
            super().count(good, bad)
        except StreamError:
            raise DataError(
                f"{self.report()}: more than max_bad_share={self.max_bad_share:g} allows; fix the rows, or let more "
                "be set aside: Features(max_bad_share=1.0), in YAML features: {max_bad_share: 1.0}"
            ) from None

    def add(self, rows: Rows, before: int) -> None:
        """Count the bad rows of a table; `before` rows were read earlier."""
        self.record("", [BadRow(0, before + row, reason, None) for row, reason in sorted(rows.bad.items())], ())
        self.count(rows.good, len(rows.bad))


class RawData:
    """Raw rows that declared features read; base of `RawTable` and `RawFiles`."""

    part: str | None = None  # part of files to read: "train", "valid" or "test", with labels; None: all rows
    warns_of_absent = True  # whether to warn of declared columns that have no value in any row

    @property
    def in_memory(self) -> bool:
        """Whether the network's inputs are held in memory."""
        return True

    def names(self, csv_format: CsvFormat) -> list[str]:
        """Return the column names, those of files from their first rows; empty if unknown."""
        raise NotImplementedError

    def parts(
        self, features: Features, bad_rows: BadRowCounter, *, labelled: bool = True, kept: bool = False
    ) -> Iterator[Rows]:
        """Yield the rows: a table at once, files part by part.

        Args:
            features: features whose columns are read.
            bad_rows: counts the bad rows.
            labelled: whether labels, weights and groups are required.
            kept: whether the columns of `Features(keep=...)` are read as well.

        Raises:
            DataError: the file does not exist, the data have no rows, or a required column is absent.
        """
        raise NotImplementedError


class RawTable(RawData):
    """Raw rows in memory.

    Args:
        data: a frame (pandas, polars, Arrow), a mapping of columns, a list of mappings (rows), or one mapping (a row).

    Raises:
        DataError: data of any other kind.
    """

    def __init__(self, data: Any) -> None:
        if not is_table(data):
            raise DataError(
                f"rows: received {type(data).__name__}; accepted are a pandas, polars or Arrow table, a mapping of "
                "columns, a list of mappings, or one mapping"
            )
        self._data = columns_of(data) if is_frame(data) else data

    def __str__(self) -> str:
        return "the data"

    def names(self, csv_format: CsvFormat | None = None) -> list[str]:
        if isinstance(self._data, Mapping):
            return [str(name) for name in self._data]
        return [str(name) for name in dict.fromkeys(itertools.chain.from_iterable(self._data))]

    def parts(
        self, features: Features, bad_rows: BadRowCounter, *, labelled: bool = True, kept: bool = False
    ) -> Iterator[Rows]:
        rows = features.read(self, labelled=labelled, kept=kept)
        bad_rows.add(rows, 0)
        absent = AbsentColumns(features.schema_of(labelled=labelled, kept=kept))
        absent.note(rows.columns, rows.good)
        absent.warn(self)
        if rows.good:
            yield rows

    def values(self, schema: Schema) -> tuple[dict[str, Any], int]:
        """Return the columns that are in the schema, and the number of rows.

        Raises:
            DataError: the data have no declared column, or columns of different lengths.
        """
        columns = self._columns(schema)
        for name, values in columns.items():
            if (
                isinstance(values, str | bytes | Mapping | Set)
                or not hasattr(values, "__len__")
                or _is_zero_dim(values)
            ):
                raise DataError(
                    f"column {name!r} is a {type(values).__name__}; give each column a list or an array with a value "
                    "for each row, or all columns the value of one row"
                )
        sizes = {name: len(values) for name, values in columns.items()}
        if not sizes:
            raise DataError(f"the data have none of the declared columns {list(schema.fields)}")
        if len(set(sizes.values())) > 1:
            raise DataError(f"columns have different numbers of rows: {sizes}")
        converted = {name: _to_array(values, schema.fields[name]) for name, values in columns.items()}
        return converted, next(iter(sizes.values()))

    def _columns(self, schema: Schema) -> dict[str, Any]:
        if not isinstance(self._data, Mapping):
            names = [name for name in schema.fields if any(name in row for row in self._data)]
            return {name: [row.get(name) for row in self._data] for name in names}
        present = {name: self._data[name] for name in schema.fields if name in self._data}
        single = {_is_single(value, schema.fields[name]) for name, value in present.items()} - {None}
        return {name: [value] for name, value in present.items()} if single == {True} else present


def is_table(data: Any) -> bool:
    """Return whether `data` are raw rows in memory, as `RawTable` takes them."""
    if isinstance(data, Mapping):
        return True
    if isinstance(data, Sequence) and not isinstance(data, str):
        return bool(data) and all(isinstance(row, Mapping) for row in data)
    return is_frame(data)


def _is_zero_dim(value: Any) -> bool:
    return isinstance(value, np.ndarray) and not value.ndim


def _is_single(value: Any, column: Column) -> bool | None:
    """Return whether a value is of one row, not a whole column; None if unclear."""
    if value is None or np.isscalar(value) or isinstance(value, Mapping) or not hasattr(value, "__len__"):
        return True
    if _is_zero_dim(value):
        return True
    if not column.shape or not isinstance(value, list | tuple | np.ndarray):
        return False
    element = next((part for part in value if not is_missing(part)), None)
    if element is None:
        return None if len(value) else True
    depth = 0
    while isinstance(element, list | tuple | np.ndarray):
        depth, element = depth + 1, next(iter(element), None)
    return depth == len(column.shape) - 1


def _to_array(values: Any, column: Column) -> Any:
    """Convert a data frame's column for `Column.convert`, without changing any value."""
    if isinstance(values, Ragged | list | np.ndarray):
        return values
    if hasattr(values, "isna"):
        return _from_pandas(values, column)
    if hasattr(values, "__arrow_c_stream__") and not hasattr(values, "to_pylist"):
        values = arrow.require().chunked_array(values)
    if hasattr(values, "__arrow_c_array__") and not hasattr(values, "to_pylist"):
        values = arrow.require().array(values)
    if hasattr(values, "to_pylist"):
        return arrow.plain(values, column)
    if isinstance(values, Sequence):
        return list(values)
    array = np.asarray(values)
    return array if array.ndim else list(values)


def _from_pandas(values: Any, column: Column) -> Any:
    dtype = values.dtype
    if hasattr(dtype, "categories"):
        known = _to_array(dtype.categories, column)
        codes = np.asarray(values.cat.codes if hasattr(values, "cat") else values.codes)
        if isinstance(known, np.ndarray) and len(known) and known.dtype != object:
            return np.ma.MaskedArray(known[np.maximum(codes, 0)], codes < 0)
        return [None if code < 0 else known[code] for code in codes.tolist()]
    if hasattr(dtype, "pyarrow_dtype"):
        return arrow.plain(arrow.require().array(values.array, from_pandas=False), column)
    if hasattr(dtype, "numpy_dtype") and dtype.kind in "biuf":  # nullable dtypes, such as Int64
        return np.ma.MaskedArray(values.to_numpy(dtype.numpy_dtype, na_value=0), np.asarray(values.isna()))
    if getattr(dtype, "tz", None) is not None:
        return values.to_numpy(f"datetime64[{dtype.unit}]")
    return values.to_numpy()


_MAX_NAMES = 10  # maximum number of column names in a warning
_MIN_ROWS = 10  # minimum number of rows for a warning: in fewer rows, a column may be empty by chance


class AbsentColumns:
    """Finds the declared columns that have no value in any row."""

    def __init__(self, schema: Schema) -> None:
        self._csv = schema.csv
        self._absent = {name: column for name, column in schema.fields.items() if column.default is not None}
        self.rows = 0  # how many were noted

    def note(self, columns: Mapping[str, Any], rows: int) -> None:
        """Record the good rows of a part of the data."""
        self.rows += rows
        for name, column in list(self._absent.items()):
            if name in columns and not _all_missing(columns[name], column.default):
                del self._absent[name]

    def warn(self, data: RawData) -> None:
        """Log a warning for each column without a value in `data`, after `note`."""
        if self._absent and data.warns_of_absent and self.rows >= _MIN_ROWS:
            self.report(data.names(self._csv), "all")

    def report(self, present: Sequence[str], which: str) -> None:
        """Name each column without a value; `present` are those of the data."""
        for name in self._absent:
            hint = "" if name in present else did_you_mean(name, [other for other in present if other != name])
            listed = f"; the data have {', '.join(present[:_MAX_NAMES])}{', ...' if len(present) > _MAX_NAMES else ''}"
            shown = listed if present and name not in present else ""
            logger.warning("features: %r is missing in %s %s rows%s%s", name, which, f"{self.rows:,}", shown, hint)


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
