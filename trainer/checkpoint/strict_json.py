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
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_KINDS = "biufc"
_DIMENSIONS = 32  # NumPy's limit


def dumps(value: Any) -> str:
    """Return `value` as JSON text, with one key per line.

    Args:
        value: None, bool, int, float, str, bytes, NumPy scalars, numeric arrays; lists, tuples and mappings of these.

    Raises:
        TypeError: a value has another type; the message names its path.
        ValueError: the value is nested too deeply, or contains itself.
    """
    try:
        return json.dumps(_encode(value, ""), allow_nan=False, indent=1)
    except RecursionError:
        raise ValueError("the value is nested too deeply or contains itself") from None


def loads(text: str | bytes) -> Any:
    """Return the value encoded by `dumps`; arrays are writable copies.

    Raises:
        ValueError: the text is not a result of `dumps`: it has a bare NaN or Infinity, a repeated key or an unknown
            ``$`` tag, or is not JSON.
    """
    return _parsed(text, lambda pairs: _decode(_no_repeats(pairs)))


def parse(text: str | bytes) -> Any:
    """Parse JSON strictly: no NaN or Infinity, no repeated key, UTF-8 only.

    Raises:
        ValueError: the text is not strict JSON.
    """
    return _parsed(text, _no_repeats)


def _parsed(text: str | bytes, hook: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(decoded, parse_constant=_finite, parse_float=_finite, object_pairs_hook=hook)
    except RecursionError:
        raise ValueError("nested too deeply") from None


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
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        little = np.asarray(value, dtype=value.dtype.newbyteorder("<"))
        content = base64.b64encode(little.tobytes()).decode("ascii")
        return {"$array": [little.dtype.str, list(value.shape), content]}
    if isinstance(value, list | tuple):
        items = [_encode(item, f"{path}[{index}]") for index, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {_escaped(str.__str__(key)): _encode(item, f"{path}.{key}") for key, item in value.items()}
        pairs = [[_encode(key, f"{path}.keys()"), _encode(item, f"{path}[{key!r}]")] for key, item in value.items()]
        return {"$map": pairs}
    raise TypeError(
        f"{path.lstrip('.') or 'the value'} is a {type(value).__module__}.{type(value).__qualname__}; accepted: None, "
        "bool, int, float, str, bytes, NumPy numbers and numeric arrays, and lists, tuples and mappings of these"
    )


def _escaped(key: str) -> str:
    return f"${key}" if key.startswith("$") else key


def _decode(value: dict[str, Any]) -> Any:
    """Return a mapping, or the value of a tag; the items have been decoded before."""
    tags = [key for key in value if key.startswith("$") and not key.startswith("$$")]
    if not tags:
        return {key.removeprefix("$"): item for key, item in value.items()}
    if len(value) > 1:
        raise ValueError(f"the tag {tags[0]!r} must be the only key of its object")
    tag, content = tags[0], value[tags[0]]
    try:
        if tag == "$float":
            return _FLOATS[content]
        if tag == "$bytes":
            return base64.b64decode(content, validate=True)
        if tag == "$tuple" and isinstance(content, list):
            return tuple(content)
        if tag == "$map" and isinstance(content, list):
            return dict(content)
        if tag == "$array" and isinstance(content, list):
            return _array(*content)
    except (TypeError, KeyError, ValueError, SyntaxError) as error:
        raise ValueError(f"the content of the tag {tag!r} is invalid: {error}") from None
    raise ValueError(f"the tag {tag!r} is unknown, or its content is invalid")


def _array(dtype: str, shape: list[int], content: str) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind not in _KINDS or kind.str != dtype:
        raise ValueError(f"the dtype {dtype!r}; accepted are booleans and numbers")
    if not all(type(size) is int and size >= 0 for size in shape) or len(shape) > _DIMENSIONS:
        raise ValueError(f"the shape {shape!r}")
    data = base64.b64decode(content, validate=True)
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError(f"{dtype} {shape} takes {math.prod(shape) * kind.itemsize} bytes, found {len(data)}")
    return np.frombuffer(data, dtype=kind).reshape(shape).astype(kind.newbyteorder("="))
