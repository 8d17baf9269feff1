"""Conversion of Arrow tables to NumPy columns; needs pyarrow (extra ``arrow``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigurationError
from ...storage.location import RemoteFile
from .column import Column
from .ragged_column import Ragged
from .schema import Decoded, Schema

_MAX_PADDED = 32  # maximum length of texts that are converted from their buffers
_ASCII_END = 128  # first code after ASCII


def require() -> Any:
    """Import pyarrow, or raise a ConfigurationError that says why that failed."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise ConfigurationError(
            f"Arrow and Parquet data need pyarrow ({error}): pip install 'mindspore-trainer[arrow]'"
        ) from error
    _undo_thread_limit()
    return pyarrow


@cache
def _undo_thread_limit() -> None:
    """Let pyarrow use all cores, unless the user's environment limits its threads.

    `import mindspore` sets OMP_NUM_THREADS=1 in the process, but not in `os.environ`. Pyarrow reads this variable when
    it is imported, so it has one thread if it is imported after MindSpore.
    """
    import pyarrow

    if "OMP_NUM_THREADS" not in os.environ and pyarrow.cpu_count() == 1:
        pyarrow.set_cpu_count(len(os.sched_getaffinity(0)))


def errors() -> tuple[type[BaseException], ...]:
    """Return the exceptions raised by reading damaged Arrow data."""
    return (require().ArrowException, OSError, ValueError)


def as_table(frame: Any) -> Any:
    """Convert a frame to an Arrow table.

    The frame may come from any library that supports Arrow or the dataframe interchange protocol.
    """
    pyarrow = require()
    if isinstance(frame, pyarrow.Table | pyarrow.RecordBatch):
        return frame
    if hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "__arrow_c_array__"):
        return pyarrow.table(frame)
    from pyarrow import interchange

    return interchange.from_dataframe(frame)


def read_payload(payload: bytes) -> Any:
    """Read the table in an Arrow IPC stream.

    Raises one of `errors` if the stream is damaged, or ValueError if bytes follow its end.
    """
    pyarrow = require()
    source = pyarrow.BufferReader(payload)
    table = validated(pyarrow.ipc.open_stream(source).read_all())
    if source.tell() != len(payload):
        raise ValueError("bytes follow the end-of-stream mark")
    return table


def validated(table: Any) -> Any:
    """Validate a Table or RecordBatch and return it.

    Arrow does not check the data it reads: an offset outside of its buffer would crash the process.
    """
    table.validate(full=True)
    return table


def open_parquet(path: Path | RemoteFile) -> Any:
    """Open a Parquet file, local or remote; reading it verifies page checksums."""
    require()
    import pyarrow.parquet

    remote = isinstance(path, RemoteFile)
    source = path.open() if remote else path
    file = pyarrow.parquet.ParquetFile(source, page_checksum_verification=True, pre_buffer=remote)
    if sum(group_rows(file)) != file.metadata.num_rows:
        listed = f"{sum(group_rows(file)):,} rows in {file.metadata.num_row_groups} row groups"
        raise ValueError(f"the footer lists {listed}; their total should be {file.metadata.num_rows:,} rows")
    return file


def group_rows(file: Any) -> list[int]:
    """Return the number of rows of each row group, from the footer of a Parquet file."""
    return [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]


def row_group(file: Any, number: int, columns: Sequence[str]) -> Any:
    """Read columns of a Parquet row group; check its row count against the footer."""
    table = validated(file.read_row_group(number, columns=list(columns), use_threads=False))
    expected = file.metadata.row_group(number).num_rows
    if table.num_rows != expected:
        raise ValueError(f"row group {number} holds {table.num_rows:,} rows; the footer says {expected:,}")
    return table


def convert(schema: Schema, table: Any, *, read_only: bool = False) -> Decoded:
    """Convert a pyarrow table or batch; `read_only` is explained in `Schema.convert`."""
    values: dict[str, Any] = {}
    names = table.schema.names
    for name, column in schema.fields.items():
        if names.count(name) > 1:
            raise ValueError(f"column {name!r} occurs {names.count(name)} times")
        if name in names:
            values[name] = plain(table.column(name), column)

    def raw(row: int) -> dict[str, Any]:
        return table.slice(row, 1).to_pylist()[0]

    return schema.convert(values, table.num_rows, raw=raw, read_only=read_only)


def plain(array: Any, column: Column) -> Any:
    """Return the exact values of an Arrow array in a form that `Column.convert` takes.

    Single values become an array, which is masked if some are null. Lists become an array or `Ragged`. Values that
    NumPy cannot hold, such as decimals and lists with nulls, become a list of Python values.
    """
    pyarrow = require()
    if isinstance(array, pyarrow.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if pyarrow.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pyarrow.types.is_string_view(array.type):
        array = array.cast(pyarrow.large_string())
    if column.shape:
        null_is_empty = column.ragged and column.default is not None and not len(column.default)  # null becomes []
        values = shaped(array, column.shape) if null_is_empty or not array.null_count else None
        return array.to_pylist() if values is None else values
    values = _single_values(array)
    if values is None:
        return array.to_pylist()
    return np.ma.MaskedArray(values, ~_bits(array, 0)) if array.null_count else values


def _single_values(array: Any) -> np.ndarray | None:
    """Return single values as an exact array, or None if NumPy cannot hold them."""
    types = require().types
    if types.is_string(array.type) or types.is_large_string(array.type):
        return text(array.fill_null(_empty_text(array.type)) if array.null_count else array)
    if types.is_date64(array.type):
        array = array.cast(require().date32())
    if types.is_date(array.type) or types.is_timestamp(array.type):
        times = array.to_numpy(zero_copy_only=False)
        return times.astype("datetime64[D]") if types.is_date(array.type) else times
    if types.is_boolean(array.type) or types.is_integer(array.type) or types.is_floating(array.type):
        values = _numbers(array)
        return np.where(_bits(array, 0), values, values.dtype.type(0)) if array.null_count else values
    return None


# The functions below avoid pyarrow's `to_numpy`, `scalar`, `array` and `to_pandas_dtype`: if pandas is installed, they
# import it, which takes a second of processor time in a new process.


def _numbers(array: Any) -> np.ndarray:
    """Return the values of a primitive array; the values at nulls are undefined."""
    types = require().types
    if types.is_boolean(array.type):
        return _bits(array, 1)
    kind = "f" if types.is_floating(array.type) else "i" if types.is_signed_integer(array.type) else "u"
    dtype = np.dtype(f"{kind}{array.type.bit_width // 8}")
    data = array.buffers()[1]
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize) if len(array) else np.empty(0, dtype)


def _bits(array: Any, buffer: int) -> np.ndarray:
    """Unpack a buffer of bits to booleans [rows].

    Buffer 0 is the validity bitmap, True where a row is not null; buffer 1 holds the values of a boolean array.
    """
    data = np.frombuffer(array.buffers()[buffer] or b"", np.uint8)
    first, last = array.offset, array.offset + len(array)
    bits = np.unpackbits(data[first // 8 : -(-last // 8)], bitorder="little")
    return bits[first % 8 : first % 8 + len(array)].astype(bool)


def _empty_text(kind: Any) -> Any:
    """Return the Arrow scalar "" of a text type."""
    pyarrow = require()
    return pyarrow.Array.from_buffers(kind, 1, [None, pyarrow.py_buffer(bytes(16)), pyarrow.py_buffer(b"")])[0]


def shaped(array: Any, shape: tuple[int | None, ...]) -> Any:
    """Return list rows as an array [rows, *shape] or `Ragged`.

    None if a row has another shape, or if there are nulls.
    """
    if shape[:1] != (None,):
        values = flat(array, shape)
        return None if values is None else values.reshape(len(array), *shape)
    types = require().types
    if types.is_fixed_size_list(array.type):
        if array.null_count:
            return None
        lengths = np.full(len(array), array.type.list_size)
    elif types.is_list(array.type) or types.is_large_list(array.type):
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    else:
        return None
    elements = array.flatten()
    values = None if elements.null_count else flat(elements, shape[1:])
    if values is None:
        return None
    return Ragged(values.reshape(len(elements), *shape[1:]), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def flat(array: Any, shape: Sequence[int | None]) -> np.ndarray | None:
    """Return the innermost values if all rows have `shape` and no nulls, else None."""
    types = require().types
    for size in shape:
        if types.is_fixed_size_list(array.type):
            has_size = array.type.list_size == size
        elif types.is_list(array.type) or types.is_large_list(array.type):
            has_size = bool((array.value_lengths().to_numpy(zero_copy_only=False) == size).all())
        else:
            return None
        array = array.flatten()
        if not has_size or array.null_count:
            return None
    if types.is_nested(array.type):
        return None
    # `to_numpy` would convert text to objects, which the schema would treat as mixed values.
    return (
        text(array)
        if types.is_string(array.type) or types.is_large_string(array.type)
        else array.to_numpy(zero_copy_only=False)
    )


def text(array: Any) -> np.ndarray:
    """Convert strings without nulls to NumPy text."""
    short = _short_ascii(array)
    if short is not None:
        return short
    # Convert each distinct string only once.
    encoded = array.dictionary_encode()
    distinct = encoded.dictionary.to_numpy(zero_copy_only=False).astype(str)
    return distinct[encoded.indices.to_numpy(zero_copy_only=False)]


def _short_ascii(array: Any) -> np.ndarray | None:
    """Convert short ASCII strings to NumPy text from their buffers; None for others."""
    count = len(array)
    _, offsets, data = array.buffers()
    if not count or offsets is None or data is None:
        return None
    offset_dtype = np.int64 if require().types.is_large_string(array.type) else np.int32
    ends = np.frombuffer(offsets, offset_dtype)[array.offset : array.offset + count + 1]
    lengths = np.diff(ends)
    longest, characters = int(lengths.max()), np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    if not 0 < longest <= _MAX_PADDED or (characters >= _ASCII_END).any() or (characters == 0).any():
        return None
    if int(lengths.min()) == longest:
        codes = characters.astype(np.uint32)
    else:
        codes = np.zeros((count, longest), np.uint32)
        codes[np.arange(longest) < lengths[:, None]] = characters
    return codes.reshape(-1).view(f"U{longest}")
