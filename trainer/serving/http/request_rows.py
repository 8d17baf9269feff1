"""Parses the rows of requests and converts them to the network's inputs."""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ...errors import DataError, did_you_mean
from ...streams.dead_letter import BadRow
from ...streams.formats.coercion import MISSING, is_missing
from ...streams.formats.column import Column
from ...streams.formats.decode import has_long_number
from ...streams.formats.schema import Decoded, Schema
from .service_call import JSON, RefusalError

if TYPE_CHECKING:
    from ..served_graph import ServedGraph

_COLUMN = re.compile(r"column '(?P<column>[^']*)' (?P<reason>.*)", re.DOTALL)
_FORMS = '{"rows": [{column: value, ...}, ...]}, {"columns": {column: [value, ...]}}, a list of rows, or one row'


@dataclass(frozen=True)
class RequestRows:
    """The rows of one request, before validation."""

    count: int
    rows: Sequence[Any] | None = None  # one mapping per row; None if `table` is given
    table: Any = None  # a mapping of columns, or None
    tensors: bool = False  # whether the columns are tensors, in which single values may have the shape [n, 1]
    logits: bool = False  # whether the request asks for the network's raw outputs
    outputs: tuple[str, ...] = ()  # names of the requested outputs; () for all
    id: Any = None  # the request's id, which the answer repeats
    arrived: float = field(default_factory=time.time)  # seconds since the epoch


def parse_json(body: bytes, media: str) -> Any:
    """Parse a request's JSON body.

    Raises:
        RefusalError: the media type is not JSON (status 415), or the body is not valid JSON (400).
    """
    if media != JSON:
        raise RefusalError(415, f"Content-Type takes {JSON}; received {media or 'none'}")
    try:
        value = orjson.loads(body)
        return json.loads(body) if has_long_number(body) else value
    except orjson.JSONDecodeError as error:
        raise RefusalError(400, f"the body is not JSON: {error}") from None


def rows_of_body(body: bytes, media: str) -> RequestRows:
    """Return the rows of a request's body.

    Raises:
        RefusalError: `parse_json` raised it, or the body has another form (status 400).
    """
    value, logits = parse_json(body, media), False
    if isinstance(value, dict) and ("rows" in value or "columns" in value):
        logits = value.get("logits", False)
        unknown = [f"key {key!r}" for key in value if key not in ("rows", "columns", "logits")]
        wrong = [*unknown, *([] if isinstance(logits, bool) else [f"logits={logits!r}"])]
        wrong += ["both"] if "rows" in value and "columns" in value else []
        if wrong:
            raise RefusalError(
                400, f'the body takes "rows" or "columns", and "logits": true or false; received {wrong[0]}'
            )
        if "columns" in value:
            return _column_rows(value["columns"], logits)
        value = value["rows"]
    elif isinstance(value, dict):
        value = [value]
    if not isinstance(value, list) or not value:
        received = "no rows" if value == [] else type(value).__name__
        raise RefusalError(400, f"the body takes {_FORMS}; received {received}")
    return RequestRows(len(value), rows=value, logits=logits)


def _column_rows(columns: Any, logits: bool) -> RequestRows:
    """Return the rows of a mapping of columns; refuse columns of unequal lengths."""
    if not isinstance(columns, Mapping) or not columns:
        raise RefusalError(400, f'"columns" takes {{column: [value, ...]}}; received {type(columns).__name__}')
    sizes = {name: len(v) if isinstance(v, list | np.ndarray) else None for name, v in columns.items()}
    count = next(iter(sizes.values()))
    if not count or any(size != count for size in sizes.values()):
        raise RefusalError(400, f'"columns" takes lists of equal length, with at least one value; received {sizes}')
    return RequestRows(count, table=columns, logits=logits)


def column_and_reason(text: str) -> tuple[str | None, str]:
    """Split the message about a bad row into the column, or None, and the reason."""
    named = _COLUMN.fullmatch(text)
    return (named["column"], named["reason"]) if named else (None, text)


class RowReader:
    """Decodes request rows for one network: raw rows, or the network's own columns."""

    def __init__(self, graph: ServedGraph) -> None:
        self._features = graph.features
        self._id_columns = () if graph.features is not None else _id_columns(graph)
        self._schema = graph.features.unlabelled_schema if graph.features is not None else _plain_schema(graph)
        self.fields: dict[str, Column] = self._schema.fields  # the raw columns by name
        features = graph.features
        self.event_time = None if features is None else features.event_time
        self._missing = () if features is None else features.csv.missing
        # whether rows may lack an event time that a feature reads
        self._fills_times = self.event_time in self.fields and self.fields[self.event_time].default is not None
        roles = () if features is None else (features.event_time, features.group)
        # columns to log
        self.logged = (*self.fields, *(name for name in roles if name is not None and name not in self.fields))

    def time_of(self, row: Mapping[str, Any], request: RequestRows, answered: float) -> Any:
        """Return the event time of a row of `raw_rows`.

        A row without an event time gets the time of the answer. If a feature reads the event time, it gets the time of
        the request instead, which the answer was computed with.
        """
        value = row.get(self.event_time or "")
        return self._or_time(value, _text_of_time(request.arrived if self._fills_times else answered))

    def _or_time(self, value: Any, missing: str) -> Any:
        is_blank = isinstance(value, str) and (not value.strip() or value in self._missing)
        return missing if is_blank or is_missing(value) else value

    def read(self, request: RequestRows) -> Decoded:
        """Decode the rows of a request; the result's `reasons` describes bad rows.

        If a feature reads the event time, a row without one gets the time of the request.
        """
        values, count, malformed = self._from_table(request) if request.rows is None else self._from_rows(request.rows)
        if self._fills_times and self.event_time is not None:
            times, now = values.get(self.event_time, [MISSING] * count), _text_of_time(request.arrived)
            values = {**values, self.event_time: [self._or_time(value, now) for value in times]}
        decoded = self._convert(values, count)
        return _with_reasons(decoded, malformed) if malformed else decoded

    def inputs(self, decoded: Decoded) -> Mapping[str, Any]:
        """Return the network's inputs for the good rows."""
        return decoded.columns if self._features is None else self._features.apply(decoded.columns)

    def raw_rows(self, request: RequestRows, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return rows as the client sent them: raw columns, event time and group."""
        if request.rows is not None:
            rows = [request.rows[index] for index in indices]
            return [{name: row[name] for name in self.logged if name in row} for row in rows]
        columns = self._columns(request)
        table = {name: columns[name] for name in self.logged if name in columns}
        columns = {
            name: values.tolist() if isinstance(values, np.ndarray) else values for name, values in table.items()
        }
        return [{name: values[index] for name, values in columns.items()} for index in indices]

    def _from_rows(self, rows: Sequence[Any]) -> tuple[dict[str, Any], int, dict[int, str]]:
        """Return the columns of rows, their number and the reasons of malformed rows."""
        known = self.fields.keys()
        malformed = {
            index: self._problem_of(row)
            for index, row in enumerate(rows)
            if not isinstance(row, dict) or known.isdisjoint(row)
        }
        if malformed:
            rows = [{} if index in malformed else row for index, row in enumerate(rows)]
        return {name: [row.get(name, MISSING) for row in rows] for name in known}, len(rows), malformed

    def _problem_of(self, row: Any) -> str:
        if not isinstance(row, dict):
            return f"is {type(row).__name__}; a row is an object {{column: value}}"
        near = next((hint for name in row if (hint := did_you_mean(name, self.fields))), "")
        return f"has none of the columns {list(self.fields)}; it has {list(row)[:20]}{near}"

    def _columns(self, request: RequestRows) -> Mapping[str, Any]:
        """Return the columns of a request that has no rows."""
        if not request.tensors:
            return request.table
        lists = {name for name, column in self.fields.items() if column.shape}
        return {name: values if name in lists else _squeezed(values) for name, values in request.table.items()}

    def _from_table(self, request: RequestRows) -> tuple[dict[str, Any], int, dict[int, str]]:
        """Return the same as `_from_rows` for a request of columns."""
        from ...features.raw_rows import RawTable

        values, count = RawTable(self._columns(request)).values(self._schema)
        if count != request.count:
            raise DataError(
                f"a column is a list with one value for each row, also for a single row; received {count} values for "
                f"{request.count} rows"
            )
        return values, count, {}

    def _convert(self, values: dict[str, Any], count: int) -> Decoded:
        schema = self._schema
        texts = [name for name in self._id_columns if _is_text(values.get(name))]
        if texts:  # ids may be text instead of integers
            schema = Schema(self.fields | {name: replace(self.fields[name], dtype="str") for name in texts})
        decoded = schema.convert(values, count, refuse_bools=True)
        wide = [name for name in self._id_columns if name in values and schema.fields[name].dtype == np.int64]
        if wide and decoded.bad:
            signed = {name: _signed(values[name]) for name in wide}
            decoded = schema.convert({**values, **signed}, count, refuse_bools=True)
        return decoded


def _text_of_time(seconds: float) -> str:
    """Return a time as text, because a number would be read in the declared unit."""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat()


def _squeezed(values: Any) -> Any:
    """Return a tensor [n, 1], which clients send for single values, as [n]."""
    if isinstance(values, np.ndarray):
        return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    return [row[0] for row in values] if all(isinstance(row, list) and len(row) == 1 for row in values) else values


def _with_reasons(decoded: Decoded, malformed: Mapping[int, str]) -> Decoded:
    """Remove malformed rows and record the reason for each."""
    kept = decoded.where(~np.isin(decoded.row, list(malformed)))
    bad = {row.row: row for row in kept.bad} | {i: BadRow(0, i, reason, None) for i, reason in malformed.items()}
    return replace(kept, bad=[bad[index] for index in sorted(bad)])


def _plain_schema(graph: ServedGraph) -> Schema:
    columns: dict[str, Column] = {}
    for name in graph.column_names:
        index, spec = graph.description["columns"].index(name), graph.ragged.get(name)
        lists: dict[str, Any] = {} if spec is None else {"padding": spec.padding, "max_length": spec.longest}
        shape = tuple(graph.description["shapes"][index]) if spec is None else (None,)
        low, high = graph.fields.limits(index) or (None, None)
        columns[name] = Column(np.dtype(graph.description["dtypes"][index]), shape, low, high, **lists)
    return Schema(columns)


def _id_columns(graph: ServedGraph) -> tuple[str, ...]:
    """Return the names of the columns with table ids."""
    indices = {column for component in graph.description["fields"] for column, _ in component["parts"]}
    names = [name for index, name in enumerate(graph.description["columns"]) if index in indices]
    return tuple(name for name in names if name in graph.column_names)


def _signed(values: Any) -> Any:
    """Return ids from 2**63 to 2**64 - 1 modulo 2**64, as `to_ids` does."""
    if isinstance(values, list):
        return [_signed(value) for value in values]
    if isinstance(values, np.ndarray):
        return values.astype(np.int64) if values.dtype == np.uint64 else values
    return values - (1 << 64) if isinstance(values, int) and 1 << 63 <= values < 1 << 64 else values


def _is_text(values: Any) -> bool:
    """Return whether the first value, of any list, is text."""
    if isinstance(values, np.ndarray):
        return values.dtype.kind in "UO"
    return isinstance(_first_value(values), str)


def _first_value(values: Any) -> Any:
    if not isinstance(values, list):
        return values
    return next((first for value in values if (first := _first_value(value)) is not None), None)
