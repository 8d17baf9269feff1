"""Encode NaN, tuples, integer keys and arrays as JSON, and decode them safely.

Plain values are plain JSON. Other values are mappings with a single key that starts with ``$``:

    {"$float": "nan" | "inf" | "-inf"}          a float that is not finite
    {"$tuple": [...]}                           a tuple
    {"$map": [[key, value], ...]}               a mapping with a key that is not a string
    {"$bytes": "<base64>"}                      bytes
    {"$array": ["<dtype>", [shape], "<base64>"]}  a NumPy array of booleans or numbers, little-endian

A user's string key that starts with ``$`` is written with one more ``$``. NumPy scalars become Python numbers.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_KINDS = "biufc"


def dumps(value: Any) -> str:
    """Return `value` as JSON text, with one key per line.

    Args:
        value: None, bool, int, float, str, bytes, NumPy scalars, numeric arrays; lists, tuples and mappings of these.

    Raises:
        TypeError: another type; the message names its path.
        ValueError: nested too deeply, or recursive.
    """
    try:
        return json.dumps(_encode(value, ""), allow_nan=False, indent=1)
    except RecursionError:
        raise ValueError("the value is nested too deeply or contains itself") from None


def loads(text: str | bytes) -> Any:
    """Return the value encoded by `dumps`; arrays are writable copies.

    Raises:
        ValueError: not such text, with a bare NaN or Infinity, a repeated key or an unknown ``$`` tag.
    """
    try:
        return _decode(parse(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse(text: str | bytes) -> Any:
    """Parse JSON strictly: no NaN or Infinity, no repeated key, UTF-8 only.

    Raises:
        ValueError: not strict JSON.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(decoded, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_no_repeats)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"the bare constant {name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text} is out of range")
    return value


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return result


def _encode(value: Any, path: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # converts an Enum of strings to its value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return {"$float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        little = np.asarray(value, dtype=value.dtype.newbyteorder("<"))
        return {
            "$array": [little.dtype.str, list(value.shape), base64.b64encode(little.tobytes()).decode("ascii")],
        }
    if isinstance(value, tuple):
        return {"$tuple": [_encode(item, f"{path}[{index}]") for index, item in enumerate(value)]}
    if isinstance(value, list):
        return [_encode(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return _encode_mapping(value, path)
    raise TypeError(
        f"{path.lstrip('.') or 'the value'} is a {type(value).__module__}.{type(value).__qualname__}; accepted: None, "
        "bool, int, float, str, bytes, NumPy numbers and numeric arrays, and lists, tuples and mappings of these"
    )


def _encode_mapping(value: Mapping[Any, Any], path: str) -> Any:
    if all(isinstance(key, str) for key in value):
        result = {}
        for key, item in value.items():
            name = str.__str__(key)
            result[f"${name}" if name.startswith("$") else name] = _encode(item, f"{path}.{name}")
        return result
    return {
        "$map": [[_encode(key, f"{path}.keys()"), _encode(item, f"{path}[{key!r}]")] for key, item in value.items()],
    }


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "") if len(value) == 1 else ""
    if tag.startswith("$") and not tag.startswith("$$"):
        return _decode_tag(tag, value[tag])
    result = {}
    for key, item in value.items():
        if key.startswith("$") and not key.startswith("$$"):
            raise ValueError(f"the tag {key!r} stands beside other keys")
        result[key[1:] if key.startswith("$") else key] = _decode(item)
    return result


def _decode_tag(tag: str, content: Any) -> Any:
    if tag == "$float" and isinstance(content, str) and content in _FLOATS:
        return _FLOATS[content]
    if tag == "$bytes" and isinstance(content, str):
        return _base64(content)
    if tag == "$tuple" and isinstance(content, list):
        return tuple(_decode(item) for item in content)
    if tag == "$map" and isinstance(content, list):
        return _decode_map(content)
    if tag == "$array" and isinstance(content, list) and len(content) == 3:
        return _decode_array(*content)
    raise ValueError(f"the tag {tag!r} is unknown or its content is not what it takes")


def _decode_map(content: list[Any]) -> dict[Any, Any]:
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in content):
        raise ValueError("$map takes pairs")
    try:
        return {_decode(key): _decode(item) for key, item in content}
    except TypeError:
        raise ValueError("a key of $map is not hashable") from None


def _decode_array(dtype: Any, shape: Any, content: Any) -> np.ndarray:
    if not (isinstance(dtype, str) and isinstance(content, str) and isinstance(shape, list)):
        raise ValueError("$array takes dtype, shape and base64 text")
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise ValueError(f"$array has the unknown dtype {dtype!r}") from None
    if kind.kind not in _KINDS or kind.str != dtype:
        raise ValueError(f"$array has the dtype {dtype!r}; accepted are booleans and numbers")
    if not all(type(size) is int and size >= 0 for size in shape) or len(shape) > 32:
        raise ValueError(f"$array has the shape {shape!r}")
    data = _base64(content)
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError(f"$array of {dtype} {shape} takes {math.prod(shape) * kind.itemsize} bytes, found {len(data)}")
    return np.frombuffer(data, dtype=kind).reshape(shape).astype(kind.newbyteorder("="))


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"not base64: {error}") from None
