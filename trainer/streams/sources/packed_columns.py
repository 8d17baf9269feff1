"""Encodes the columns of a join's waiting rows as JSON, and decodes them."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ConfigurationError, DataError
from ..formats.coercion import is_missing, plain
from ..formats.ragged_column import Ragged


def pack(array: Any, name: str = "") -> list[Any]:
    """Encode an array or `Ragged` as JSON: dtype, shape and compressed bytes.

    Raises:
        DataError: column `name` holds objects other than texts, numbers, truth values and missing values.
    """
    if isinstance(array, Ragged):
        array = array[:]
        return [pack(array.values, name), pack(array.offsets), array.options]
    array = np.ascontiguousarray(array)
    content = _json_of(array, name) if array.dtype == object else array.tobytes()
    return [array.dtype.str, list(array.shape), base64.b64encode(zlib.compress(content, 1)).decode("ascii")]


def _json_of(objects: np.ndarray, name: str) -> bytes:
    values = [plain(value) for value in objects.reshape(-1).tolist()]
    values = [None if is_missing(value) and not isinstance(value, float) else value for value in values]
    other = next((value for value in values if not isinstance(value, str | int | float | None)), None)
    if other is not None:
        raise DataError(
            f"column {name!r} of a join holds {type(other).__name__}; waiting rows in a checkpoint take text, numbers, "
            "truth values and missing values: convert the column, or leave it out"
        )
    return json.dumps(values).encode()


def unpack(packed: list[Any]) -> Any:
    """Decode the output of `pack`; raise ValueError for anything else."""
    dtype, shape, text = packed
    if isinstance(dtype, list):
        try:
            return Ragged(unpack(dtype), unpack(shape), **text)
        except (TypeError, ConfigurationError) as error:
            raise ValueError(f"damaged lists: {error}") from error
    if np.dtype(dtype) == object and 0 in shape:  # empty lists
        return np.empty(shape, object)
    try:
        data = zlib.decompress(base64.b64decode(text))
    except zlib.error as error:
        raise ValueError(f"damaged array: {error}") from error
    if np.dtype(dtype) != object:
        return np.frombuffer(bytearray(data), np.dtype(dtype)).reshape(shape)
    array = np.empty(shape, object)
    array.reshape(-1)[:] = json.loads(data)
    return array


def exact_array(values: Sequence[Any]) -> np.ndarray:
    """Return an array of values, of objects if NumPy would change any of them."""
    array = np.array(values)
    if array.ndim != 1 or array.tolist() != list(values):
        array = np.empty(len(values), object)
        array[:] = values
    return array
