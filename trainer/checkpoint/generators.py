"""The states of the random generators a run may draw from: captured for a snapshot, and put back."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import mindspore
import numpy as np


def capture() -> dict[str, Any]:
    """Return the generator states of Python and NumPy and MindSpore's seed, JSON-able."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, keys.tolist(), int(position), int(has_gauss), float(cached)],
        "mindspore_seed": mindspore.get_seed(),
    }


def restore(states: Mapping[str, Any]) -> None:
    """Put back what `capture` returned."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
    if states.get("mindspore_seed") is not None:
        before = np.random.get_state()
        mindspore.set_seed(int(states["mindspore_seed"]))
        np.random.set_state(before)  # mindspore.set_seed reseeds NumPy
