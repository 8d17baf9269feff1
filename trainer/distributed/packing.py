"""JSON-able values with arrays, and states of parts made of them, as messages between processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .group import Group

LENGTH_BYTES = 4


def pack(value: Any, arrays: Sequence[np.ndarray]) -> bytes:
    """Return both as bytes: length of the head, head in JSON, then the arrays' bytes in C order.

    Args:
        value: whatever `json` takes.
        arrays: of numbers, bools or fixed-width text, any shape; objects have no bytes of their own.
    """
    head = json.dumps([value, [[array.dtype.str, array.shape] for array in arrays]]).encode()
    return b"".join([len(head).to_bytes(LENGTH_BYTES, "little"), head, *(array.tobytes() for array in arrays)])


def unpack(message: bytes) -> tuple[Any, list[np.ndarray]]:
    """Return what `pack` was given, bit for bit; the arrays are writable and hold memory of their own."""
    start = LENGTH_BYTES + int.from_bytes(message[:LENGTH_BYTES], "little")
    value, described = json.loads(message[LENGTH_BYTES:start])
    arrays = []
    for dtype, shape in described:
        arrays.append(np.frombuffer(message, dtype, int(np.prod(shape)), start).reshape(shape).copy())
        start += arrays[-1].nbytes
    return value, arrays


def gather_states(group: Group, state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the states of all processes in the order of ranks; JSON-able values and arrays of numbers, bit for bit."""
    messages = group.gather_bytes(pack([state["json"], list(state["arrays"])], list(state["arrays"].values())))
    states = []
    for message in messages:
        (value, names), arrays = unpack(message)
        states.append({"json": value, "arrays": dict(zip(names, arrays, strict=True))})
    return states
