"""States of parts of a run (``{"json": ..., "arrays": ...}``) exchanged between processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .group import Group
from .packing import pack, unpack


def gather_states(group: Group, state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the states of all processes in the order of ranks; JSON-able values and arrays of numbers, bit for bit."""
    names, arrays = list(state["arrays"]), list(state["arrays"].values())
    messages = group.gather_bytes(pack([state["json"], names], arrays))
    return [_as_state(*unpack(message)) for message in messages]


def _as_state(value: Any, arrays: list[np.ndarray]) -> dict[str, Any]:
    described, names = value
    return {"json": described, "arrays": dict(zip(names, arrays, strict=True))}
