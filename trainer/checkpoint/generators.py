"""The random generators a run may draw from: seeded, captured for a snapshot, and restored."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import mindspore
import numpy as np

from ..checks import any_number, whole

_WORDS = 624


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and MindSpore (which also seeds its datasets)."""
    random.seed(seed)
    np.random.seed(seed)
    mindspore.set_seed(seed)


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
    """Put back what `capture` returned.

    Raises:
        ValueError, TypeError, KeyError: it is not that.
    """
    version, internal, gauss = states["python"]
    name, keys, position, has_gauss, cached = states["numpy"]
    if name != "MT19937" or len(keys) != _WORDS:
        raise ValueError(f"the state of NumPy's generator is of {name!r} with {len(keys)} words, not of MT19937")
    # NumPy takes any position, and reads beyond its words
    position, has_gauss = whole("position", position, 0, most=_WORDS), whole("has_gauss", has_gauss, 0, most=1)
    words = np.array([whole("word", key, 0, most=2**32 - 1) for key in keys], np.uint32)
    seed = whole("mindspore_seed", states.get("mindspore_seed"), 0, most=2**32 - 1, optional=True)
    random.setstate((version, tuple(internal), gauss if gauss is None else any_number("gauss", gauss)))
    np.random.set_state((name, words, position, has_gauss, any_number("cached", cached)))
    if seed is not None:
        before = np.random.get_state()
        mindspore.set_seed(seed)
        np.random.set_state(before)  # mindspore.set_seed reseeds NumPy
