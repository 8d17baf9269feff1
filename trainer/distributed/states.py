"""States of parts of a run (``{"json": ..., "arrays": ...}``) exchanged between processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from .group import Group


def gather_states(group: Group, state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the states of all processes in the order of ranks; JSON-able values and arrays of numbers, bit for bit."""
    arrays = {name: np.ascontiguousarray(array) for name, array in state["arrays"].items()}
    described = {name: [array.dtype.str, array.shape] for name, array in arrays.items()}
    head = json.dumps([state["json"], described]).encode()
    parts = [len(head).to_bytes(4, "little"), head, *(array.tobytes() for array in arrays.values())]
    return [_unpack(message) for message in group.gather_bytes(b"".join(parts))]


def _unpack(message: bytes) -> dict[str, Any]:
    start = 4 + int.from_bytes(message[:4], "little")
    value, described = json.loads(message[4:start])
    arrays = {}
    for name, (dtype, shape) in described.items():
        arrays[name] = np.frombuffer(message, dtype, int(np.prod(shape)), start).reshape(shape).copy()
        start += arrays[name].nbytes
    return {"json": value, "arrays": arrays}
