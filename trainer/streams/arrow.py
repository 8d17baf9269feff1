"""Arrow tables to NumPy columns. Needs pyarrow, the extra ``arrow``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigurationError
from .column import MISSING, Column
from .ragged_column import Ragged
from .schema import Converted, Schema

_SHORT, _ASCII_END = 32, 128  # longest text that is worth padding, in characters; the first code that is not ASCII
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def require() -> Any:
    """Return the module pyarrow.

    Raises:
        ConfigurationError: it is missing, or does not work with the NumPy installed.
    """
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise ConfigurationError(
            f"Arrow and Parquet data need pyarrow ({error}): pip install 'mindspore-trainer[arrow]'"
        ) from error
    return pyarrow


def errors() -> tuple[type[BaseException], ...]:
    """Return the exceptions that damaged Arrow data raise."""
    pyarrow = require()
    return (pyarrow.ArrowException, OSError, ValueError)


def read_payload(payload: bytes) -> Any:
    """Return the table in an Arrow IPC stream or file held in memory."""
    pyarrow = require()
    open_payload = pyarrow.ipc.open_file if payload.startswith(b"ARROW1") else pyarrow.ipc.open_stream
    return sound(open_payload(pyarrow.BufferReader(payload)).read_all())


def sound(table: Any) -> Any:
    """Return a Table or RecordBatch that came as Arrow IPC, once its contents are known to hold together.

    IPC is used as it lies in memory: an offset outside its buffer would end the process where it is followed.

    Raises:
        pyarrow.ArrowInvalid: it is damaged.
    """
    table.validate(full=True)
    return table


def rows_of_batches(source: Any) -> list[int]:
    """Return the number of rows of each record batch of an Arrow IPC file.

    Only the narrowest column is read: how many rows a batch has is not told without reading any.
    """
    pyarrow = require()
    schema = pyarrow.ipc.open_file(source).schema
    narrowest = min(range(len(schema)), key=lambda index: _bits(schema.field(index).type), default=None)
    if narrowest is None:
        return []
    options = pyarrow.ipc.IpcReadOptions(included_fields=[narrowest])
    file = pyarrow.ipc.open_file(source, options=options)
    return [file.get_batch(number).num_rows for number in range(file.num_record_batches)]


def _bits(kind: Any) -> float:
    try:
        return kind.bit_width
    except ValueError:  # of any length
        return math.inf


class StreamFile:
    """The record batches of an Arrow stream file, which may grow. It is read, not mapped: it may shrink at any time.

    Attributes:
        rows: number of rows of each batch.
        ends: byte at which each batch ends.
        incomplete: whether another batch has been begun.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[int] = []
        self.ends: list[int] = []
        self.incomplete = False
        self._heads: list[bytes] = []  # schema and dictionaries, which batches need to be read
        self._places: list[tuple[int, int, int]] = []  # of each batch: first byte, last, heads before it

    def extend(self) -> None:
        """Find the batches that have been added."""
        pyarrow = require()
        at = self.ends[-1] if self.ends else 0
        with pyarrow.OSFile(str(self.path)) as file:
            file.seek(at)
            messages = pyarrow.ipc.MessageReader.open_stream(file)
            self.incomplete = False
            heads: list[bytes] = []
            while True:
                try:
                    kind = messages.read_next_message().type
                except StopIteration:
                    return
                except (pyarrow.ArrowInvalid, OSError):
                    self.incomplete = True
                    return
                end = file.tell()
                if kind != "record batch":
                    file.seek(at)
                    heads.append(file.read(end - at))
                else:
                    self._heads += heads
                    heads = []
                    self._places.append((at, end, len(self._heads)))
                    self.ends.append(end)
                    self.rows.append(self.batch(len(self._places) - 1).num_rows)
                at = end

    def batch(self, number: int) -> Any:
        """Return one record batch.

        Raises:
            pyarrow.ArrowException, OSError: it is damaged.
        """
        start, end, heads = self._places[number]
        with self.path.open("rb") as file:
            file.seek(start)
            data = b"".join(self._heads[:heads]) + file.read(end - start)
        return sound(require().ipc.open_stream(data).read_next_batch())


def row_of(table: Any, row: int) -> dict[str, Any]:
    """Return one row as Python values."""
    return table.slice(row, 1).to_pylist()[0]


def convert(schema: Schema, table: Any) -> Converted:
    """Convert a pyarrow Table or RecordBatch; nulls and lists of another length are bad rows."""
    values: dict[str, Any] = {}
    for name, column in schema.fields.items():
        if name in table.schema.names:
            unit = schema.seconds_per_unit if name == schema.event_time else None
            values[name] = _values(table.column(name), column, unit)
    return schema.convert(values, table.num_rows)


def _values(array: Any, column: Column, time_unit: float | None) -> Any:
    pyarrow = require()
    if isinstance(array, pyarrow.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if pyarrow.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if time_unit and pyarrow.types.is_timestamp(array.type) and array.null_count == 0:
        return array.cast(pyarrow.int64()).to_numpy(zero_copy_only=False) * (_SECONDS[array.type.unit] / time_unit)
    if array.null_count == 0:
        values = shaped(array, column.shape)
        if values is not None:
            return values
    return [MISSING if value is None else value for value in array.to_pylist()]


def shaped(array: Any, shape: tuple[int | None, ...]) -> Any:
    """Return rows of this shape, [rows, *shape] or `Ragged`, where all are and none is null; else None."""
    if shape[:1] != (None,):
        values = flat(array, int(np.prod(shape)))
        return None if values is None else values.reshape(len(array), *shape)
    types = require().types
    if types.is_fixed_size_list(array.type):
        lengths = np.full(len(array), array.type.list_size)
    elif types.is_list(array.type) or types.is_large_list(array.type):
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    else:
        return None
    within = array.flatten()
    values = None if within.null_count else flat(within, int(np.prod(shape[1:])))
    if values is None:
        return None
    return Ragged(values.reshape(len(within), *shape[1:]), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def flat(array: Any, size: int) -> np.ndarray | None:
    """Return the leaf values when every row has `size` of them and none is null; else None."""
    pyarrow = require()
    types = pyarrow.types
    rows = len(array)
    while types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        if not types.is_fixed_size_list(array.type):
            lengths = array.value_lengths().to_numpy(zero_copy_only=False)
            if len(lengths) and (lengths != lengths[0]).any():
                return None
        array = array.flatten()
        if array.null_count:
            return None
    if len(array) != rows * size:
        return None
    # Text comes as objects, which the schema would take for mixed values.
    return (
        text(array)
        if types.is_string(array.type) or types.is_large_string(array.type)
        else array.to_numpy(zero_copy_only=False)
    )


def text(array: Any) -> np.ndarray:
    """Return strings, none of them null, as NumPy text."""
    short = _short_ascii(array)
    if short is not None:
        return short
    # each distinct one is converted once
    encoded = array.dictionary_encode()
    distinct = encoded.dictionary.to_numpy(zero_copy_only=False).astype(str)
    return distinct[encoded.indices.to_numpy(zero_copy_only=False)]


def _short_ascii(array: Any) -> np.ndarray | None:
    """Return strings of a few ASCII characters as NumPy text, straight from the buffers; None if they are others."""
    count = len(array)
    _, offsets, data = array.buffers()
    if not count or offsets is None or data is None:
        return None
    kind = np.int64 if require().types.is_large_string(array.type) else np.int32
    ends = np.frombuffer(offsets, kind)[array.offset : array.offset + count + 1]
    lengths = np.diff(ends)
    longest, characters = int(lengths.max()), np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    if not 0 < longest <= _SHORT or (characters >= _ASCII_END).any() or (characters == 0).any():
        return None
    if int(lengths.min()) == longest:
        codes = characters.astype(np.uint32)
    else:
        codes = np.zeros((count, longest), np.uint32)
        codes[np.arange(longest) < lengths[:, None]] = characters
    return codes.reshape(-1).view(f"U{longest}")
