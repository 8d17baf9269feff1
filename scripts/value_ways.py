"""Pass the same Python values to features in every supported form.

A form is a file format, a library's table, or a request body. `WAYS` maps each form's name to a function that returns
the network's inputs. `scripts/reliability_tables.py` and a property test of the features compare these inputs.
"""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from trainer.features.feature_data import rows_of
from trainer.features.features import Features

COLUMN = "x"
Outcome = tuple[Any, ...]  # for each row, the network's inputs, or None if the row is set aside


class UnsupportedError(Exception):
    """This form cannot represent these values."""


class CapsuleFrame:
    """A data frame of another library that supports only Arrow's PyCapsule protocol."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(schema)


class CapsuleBatch:
    """A record batch of another library that supports only the PyCapsule protocol."""

    def __init__(self, table: pa.Table) -> None:
        self._batch = table.combine_chunks().to_batches()[0]

    def __arrow_c_array__(self, schema: Any = None) -> Any:
        return self._batch.__arrow_c_array__(schema)


class InterchangeFrame:
    """A data frame that supports only the dataframe interchange protocol."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __dataframe__(self, **options: Any) -> Any:
        return self._table.__dataframe__(**options)


def _types(values: Sequence[Any]) -> set[type]:
    return {type(value) for value in values if value is not None}


def _arrow(values: Sequence[Any]) -> pa.Table:
    kinds = _types(values)
    if len(kinds) > 1:
        raise UnsupportedError
    try:
        unsigned = kinds == {int} and max((v for v in values if v is not None), default=0) >= 2**63
        return pa.table({COLUMN: pa.array(values, pa.uint64() if unsigned else None)})
    except (pa.ArrowException, OverflowError):
        raise UnsupportedError from None


def _pandas(values: Sequence[Any], dtypes: dict[type, Any]) -> pd.DataFrame:
    kinds = _types(values)
    if len(kinds) != 1 or next(iter(kinds)) not in dtypes:
        raise UnsupportedError
    try:
        return pd.DataFrame({COLUMN: pd.array(list(values), dtype=dtypes[next(iter(kinds))])})
    except (OverflowError, TypeError, ValueError):
        raise UnsupportedError from None


def _unsigned(values: Sequence[Any]) -> Sequence[Any]:
    if _types(values) != {int} or min(value for value in values if value is not None) < 0:
        raise UnsupportedError
    return values


def _numpy(values: Sequence[Any]) -> dict[str, Any]:
    if len(_types(values)) != 1 or None in values:
        raise UnsupportedError
    if list in _types(values):
        raise UnsupportedError
    array = np.array(values)
    if array.dtype.kind not in "biufUM" or (array.dtype.kind == "f") != (_types(values) == {float}):
        raise UnsupportedError
    return {COLUMN: array}


def _masked(values: Sequence[Any]) -> dict[str, Any]:
    present = [value for value in values if value is not None]
    if list in _types(values):
        raise UnsupportedError
    filled = _numpy([present[0] if value is None else value for value in values] if present else [])[COLUMN]
    return {COLUMN: np.ma.MaskedArray(filled, [value is None for value in values])}


def _from_memory(convert: Callable[[Sequence[Any]], Any]) -> Callable[[Features, Sequence[Any], Path], Outcome]:
    def outcome(features: Features, values: Sequence[Any], folder: Path) -> Outcome:
        rows = features.read(convert(values), labelled=False)
        return _outcome(features, rows.columns, [row for row in range(rows.count) if row not in rows.bad], rows.count)

    return outcome


def _outcome(features: Features, columns: dict[str, Any], good: Sequence[int], count: int, copies: int = 1) -> Outcome:
    """Return the inputs of `count` rows.

    If `columns` has several copies of the rows, check that the first and the last copy have the same inputs.
    """
    inputs = features.apply(columns)
    rows: list[Any] = [None] * (2 * count)
    last = (copies - 1) * count
    for number, row in enumerate(good):
        if row < count or row >= last:
            parts = [column[np.array([number])] for column in inputs.values()]
            row_inputs = tuple(getattr(part, "values", part).tobytes() for part in parts)
            if row < count:
                rows[row] = row_inputs
            if row >= last:
                rows[row - last + count] = row_inputs
    assert rows[:count] == rows[count:]
    return tuple(rows[:count])


def _one_row(features: Features, values: Sequence[Any], folder: Path) -> Outcome:
    # {"x": [...]} would be read as a column of several rows, so wrap lists as a list of one row
    one_row = _from_memory(lambda row: {COLUMN: row[0]} if list not in _types(values) else [{COLUMN: row[0]}])
    return tuple(one_row(features, [value], folder)[0] for value in values)


def _many_rows(features: Features, values: Sequence[Any], folder: Path) -> Outcome:
    copies = 1 + 1000 // len(values)
    rows = features.read([{COLUMN: value} for value in values] * copies, labelled=False)
    good = [row for row in range(rows.count) if row not in rows.bad]
    return _outcome(features, rows.columns, good, len(values), copies)


def _file(suffix: str, write: Callable[[Path, Sequence[Any]], None], copies: int = 1) -> Any:
    def outcome(features: Features, values: Sequence[Any], folder: Path) -> Outcome:
        path = folder / f"values.{suffix}"
        write(path, list(values) * copies)
        features_with_row: Any = Features(features.features, keep=["row"])
        features_with_row.learned, features_with_row.is_fitted = features.learned, True
        good, parts = [], []
        for rows in rows_of(features_with_row, path, labelled=False, kept=True):
            good += [int(row) for row in rows.columns["row"]]
            parts.append(rows.columns)
        if not parts:
            return (None,) * len(values)
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return _outcome(features, columns, good, len(values), copies)

    return outcome


def _cell(value: Any) -> str:
    if isinstance(value, list):
        raise UnsupportedError
    if isinstance(value, datetime.date):
        return value.isoformat()
    return "" if value is None else str(value)


def _write_csv(path: Path, values: Sequence[Any]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["row", COLUMN], *([row, _cell(value)] for row, value in enumerate(values))])


def _write_lines(path: Path, values: Sequence[Any]) -> None:
    path.write_text("".join(_json({"row": row, COLUMN: value}) + "\n" for row, value in enumerate(values)), "utf-8")


def _json(value: Any) -> str:
    try:
        return json.dumps(value)
    except TypeError:
        raise UnsupportedError from None


def _write_parquet(path: Path, values: Sequence[Any]) -> None:
    pyarrow.parquet.write_table(_arrow(values).append_column("row", pa.array(range(len(values)))), path)


def _request(body: Callable[[Sequence[Any]], tuple[bytes, str]]) -> Any:
    def outcome(features: Features, values: Sequence[Any], folder: Path) -> Outcome:
        from trainer.serving.http.request_rows import rows_of_body

        rows = rows_of_body(*body(values))
        if rows.rows is None:
            return _from_memory(lambda row: rows.table)(features, values, folder)
        schema = features.unlabelled_schema
        decoded = schema.convert({COLUMN: [row[COLUMN] for row in rows.rows]}, rows.count, refuse_bools=True)
        return _outcome(features, decoded.columns, decoded.row.tolist(), rows.count)

    return outcome


_NULLABLE = {int: "Int64", float: "Float64", bool: "boolean", str: "string", datetime.datetime: "datetime64[ns]"}
_UNSIGNED = {int: "UInt64"}
_ARROW = {
    int: pd.ArrowDtype(pa.int64()),
    float: pd.ArrowDtype(pa.float64()),
    bool: pd.ArrowDtype(pa.bool_()),
    str: pd.ArrowDtype(pa.string()),
    datetime.datetime: pd.ArrowDtype(pa.timestamp("us")),
    datetime.date: pd.ArrowDtype(pa.date32()),
    Decimal: pd.ArrowDtype(pa.decimal128(38, 10)),
}

WAYS: dict[str, Callable[[Features, Sequence[Any], Path], Outcome]] = {
    "a list of rows": _from_memory(lambda values: [{COLUMN: value} for value in values]),
    "one row at a time": _one_row,
    "a thousand rows": _many_rows,
    "a dict of lists": _from_memory(lambda values: {COLUMN: list(values)}),
    "NumPy": _from_memory(_numpy),
    "NumPy, masked": _from_memory(_masked),
    "pandas, object": _from_memory(lambda values: pd.DataFrame({COLUMN: pd.Series(list(values), dtype=object)})),
    "pandas, nullable": _from_memory(lambda values: _pandas(values, _NULLABLE)),
    "pandas, UInt64": _from_memory(lambda values: _pandas(_unsigned(values), _UNSIGNED)),
    "pandas, Arrow": _from_memory(lambda values: _pandas(values, _ARROW)),
    "pandas, category": _from_memory(lambda values: _pandas(values, _NULLABLE | _ARROW).astype("category")),
    "Arrow": _from_memory(_arrow),
    "Arrow dictionary": _from_memory(lambda values: _dictionary(_arrow(values))),
    "PyCapsule stream": _from_memory(lambda values: CapsuleFrame(_arrow(values))),
    "PyCapsule array": _from_memory(lambda values: CapsuleBatch(_arrow(values))),
    "interchange": _from_memory(lambda values: _interchange(_arrow(values))),
    "CSV": _file("csv", _write_csv),
    "CSV, in blocks": _file("csv", _write_csv, 400),
    "JSON lines": _file("jsonl", _write_lines),
    "JSON lines, in blocks": _file("jsonl", _write_lines, 400),
    "Parquet": _file("parquet", _write_parquet),
    "HTTP JSON": _request(lambda values: (_json({"rows": [{COLUMN: v} for v in values]}).encode(), "application/json")),
    "HTTP JSON columns": _request(lambda values: (_json({"columns": {COLUMN: values}}).encode(), "application/json")),
}


def _dictionary(table: pa.Table) -> pa.Table:
    try:
        return pa.table({COLUMN: table.column(COLUMN).dictionary_encode()})
    except pa.ArrowException:
        raise UnsupportedError from None


def _interchange(table: pa.Table) -> InterchangeFrame:
    if pa.types.is_decimal(table.schema.field(0).type) or pa.types.is_date(table.schema.field(0).type):
        raise UnsupportedError
    if pa.types.is_nested(table.schema.field(0).type) or pa.types.is_null(table.schema.field(0).type):
        raise UnsupportedError
    return InterchangeFrame(table)
