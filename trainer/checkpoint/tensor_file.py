"""Read and write NumPy arrays in the safetensors format.

A file has eight bytes with the length of the header, a JSON header, and the raw little-endian values.

The format is implemented here so that the checksum is computed during the write, arrays are views of the bytes read,
and malformed files always raise the same exception. The safetensors package is as fast (measured with 128 MB), but it
copies while reading, needs all tables in memory at once (here `LazyArray` values are computed one by one), and does not
support bfloat16 for NumPy. It can read and write the same files.
Format: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import CheckpointDamagedError, CheckpointError
from . import strict_json
from .block_arrays import BlockArray, JoinedArray, StoredArray, VerifiedFile

_TAGS = {
    "|b1": "BOOL",
    "|u1": "U8",
    "|i1": "I8",
    "<u2": "U16",
    "<i2": "I16",
    "<f2": "F16",
    "<u4": "U32",
    "<i4": "I32",
    "<f4": "F32",
    "<u8": "U64",
    "<i8": "I64",
    "<f8": "F64",
    "<c8": "C64",
}
_DTYPES = {tag: np.dtype(code) for code, tag in _TAGS.items()}
_MAX_HEADER = 100_000_000
_METADATA = "__metadata__"


def blocks(tensors: Mapping[str, np.ndarray]) -> Iterator[Any]:
    """Yield the header and the arrays' bytes of a safetensors file.

    Args:
        tensors: name -> array of any shape; bool, (u)int8-64, float16/32/64, complex64 or MindSpore's bfloat16.

    Raises:
        CheckpointError: the format cannot hold a name or dtype; raised before the first block.
    """
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    # Arrays with large items come first, which aligns every array to its item size.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {}
    offset = 0
    for name in order:
        array = arrays[name]
        end = offset + array.nbytes
        header[name] = {"dtype": _tag(name, array.dtype), "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return _file_blocks(len(text).to_bytes(8, "little") + text, [arrays[name] for name in order])


def _file_blocks(head: bytes, arrays: list[np.ndarray]) -> Iterator[Any]:
    yield head
    for array in arrays:
        if array.size:
            if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
                array = array.astype(array.dtype.newbyteorder("<"))
            # reshape copies only non-contiguous arrays; the view as bytes supports every dtype.
            yield array.reshape(-1).view(np.uint8).data


def _tag(name: str, dtype: np.dtype) -> str:
    if dtype.name == "bfloat16":
        return "BF16"
    tag = _TAGS.get(dtype.newbyteorder("<").str) if dtype.kind in "biufc" else None
    if not isinstance(name, str) or name == _METADATA:
        raise CheckpointError(f"tensor name {name!r} is not accepted; it takes a string other than {_METADATA!r}")
    if tag is None:
        raise CheckpointError(
            f"tensor {name!r} has dtype {dtype}; accepted: bool, int8 to int64, uint8 to uint64, float16, bfloat16, "
            "float32, float64, complex64"
        )
    return tag


def parse(buffer: memoryview | bytes, what: str) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file as read-only views of its bytes.

    Args:
        buffer: content of the file.
        what: name of the file for messages.

    Raises:
        CheckpointDamagedError: the bytes are not an intact safetensors file.
    """
    tensors = {}
    for name, (dtype, shape, begin, end) in _layout(lambda first, last: buffer[first:last], len(buffer), what).items():
        if begin == end:
            tensors[name] = _empty(dtype, shape)
        else:
            tensors[name] = np.frombuffer(buffer, np.uint8, end - begin, begin).view(dtype).reshape(shape)
    return tensors


def parse_file(file: VerifiedFile) -> dict[str, Any]:
    """Return the arrays of a safetensors file; they are read from disk when used.

    Raises:
        CheckpointDamagedError: the file is not an intact safetensors file.
    """
    tensors: dict[str, Any] = {}
    for name, (dtype, shape, begin, end) in _layout(file.read, file.size, str(file.path)).items():
        if begin == end:
            tensors[name] = _empty(dtype, shape)
        elif shape:
            tensors[name] = StoredArray(file, dtype, shape, begin)
        else:
            tensors[name] = file.read(begin, end).view(dtype).reshape(())
    return tensors


def _empty(dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    array = np.zeros(shape, dtype)
    array.flags.writeable = False
    return array


def _layout(
    read: Callable[[int, int], Any], total: int, what: str
) -> dict[str, tuple[np.dtype, Sequence[int], int, int]]:
    """Return name -> (dtype, shape, first byte, end) of every tensor in a file."""
    length = int.from_bytes(bytes(read(0, min(8, total))), "little")
    if total < 8 or length > min(total - 8, _MAX_HEADER):
        raise CheckpointDamagedError(f"{what} is not a safetensors file: {total:,} bytes cannot hold its header")
    try:
        header = strict_json.parse(bytes(read(8, 8 + length)))
    except ValueError as error:
        raise CheckpointDamagedError(f"{what} is not a safetensors file: its header is damaged ({error})") from None
    if not isinstance(header, dict):
        raise CheckpointDamagedError(f"{what} is not a safetensors file: its header is not an object")
    header.pop(_METADATA, None)
    start = 8 + length
    spans = []
    layout: dict[str, tuple[np.dtype, Sequence[int], int, int]] = {}
    for name, entry in header.items():
        try:
            dtype, shape, begin, end = _parse_entry(entry, total - start)
        except ValueError as error:
            raise CheckpointDamagedError(f"{what} is damaged: tensor {name!r} {error}") from None
        spans.append((begin, end))
        layout[name] = dtype, shape, start + begin, start + end
    spans.sort()
    if [begin for begin, _ in spans] + [total - start] != [0] + [end for _, end in spans]:
        raise CheckpointDamagedError(f"{what} is damaged: its tensors overlap or leave gaps")
    return layout


def _parse_entry(entry: Any, room: int) -> tuple[np.dtype, list[int], int, int]:
    """Return dtype, shape, begin and end of a header entry, or raise ValueError."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("has no proper entry")
    tag, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    dtype = _bfloat16() if tag == "BF16" else _DTYPES.get(tag) if isinstance(tag, str) else None
    if dtype is None:
        raise ValueError(f"has the unknown dtype {tag!r}")
    if not isinstance(shape, list) or len(shape) > 32 or not all(type(n) is int and 0 <= n < 2**62 for n in shape):
        raise ValueError(f"has the shape {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int for n in offsets):
        raise ValueError(f"has the offsets {offsets!r}")
    begin, end = offsets
    if not 0 <= begin <= end <= room:
        raise ValueError(f"lies at {offsets} of {room:,} bytes")
    if math.prod(shape) * dtype.itemsize != end - begin:
        raise ValueError(f"of {tag} {shape} has {end - begin:,} bytes")
    if begin == end and math.prod(n for n in shape if n) * dtype.itemsize >= 2**62:
        raise ValueError(f"has the shape {shape!r}")
    return dtype, shape, begin, end


def _bfloat16() -> np.dtype:
    try:
        from mindspore.common import np_dtype  # NumPy has no such type

        return np.dtype(np_dtype.bfloat16)
    except (ImportError, AttributeError, TypeError):
        raise ValueError("is bfloat16, which needs MindSpore with bfloat16 support for NumPy") from None


def join(pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the arrays of several files along axis 0, by name.

    One-dimensional arrays in memory are concatenated. Others are joined lazily, as a `JoinedArray`.

    Raises:
        ValueError, TypeError: arrays of one name differ in dtype or in an axis other than 0.
    """
    joined: dict[str, Any] = {}
    for name in dict.fromkeys(name for piece in pieces for name in piece):
        own = [piece[name] for piece in pieces if name in piece]
        one = own[0] if len(own) == 1 else JoinedArray(own)
        small = len(one.shape) == 1 and not any(isinstance(piece, BlockArray) for piece in own)
        joined[name] = np.asarray(one) if small else one
    return joined


class LazyArray:
    """An array with fixed content that is computed at the first read, on any thread."""

    def __init__(self, make: Callable[[], np.ndarray], dtype: Any) -> None:
        self._make: Callable[[], np.ndarray] | None = make
        self._array: np.ndarray | None = None
        self._lock = threading.Lock()
        self.dtype = np.dtype(dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array; reading it computes the array."""
        return np.asarray(self).shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with self._lock:
            if self._array is None:
                assert self._make is not None  # dropped once the array is computed
                self._array, self._make = self._make(), None
        return self._array if dtype is None else self._array.astype(dtype, copy=False)
