"""What a `mindspore.dataset` pipeline is made of, without ever asking an endless one for its size.

Relied on: a pipeline keeps its inputs in `children`, `.repeat()` without a count is a `RepeatDataset` whose `count` is
-1, and a `GeneratorDataset` keeps the user's object in `source`. Where that changes, the size of a pipeline over an
endless generator is asked for, which never returns: `tests/trainer/data/test_sources.py` would hang.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let pipelines that are opened here shuffle by `seed`; everything that MindSpore's `set_seed` sets is put back."""
    import mindspore.dataset as ms_dataset

    before = ms_dataset.config.get_seed()
    generators = random.getstate(), np.random.get_state()
    ms_dataset.config.set_seed(seed)
    try:
        yield
    finally:
        ms_dataset.config.set_seed(before)
        random.setstate(generators[0])
        np.random.set_state(generators[1])


def is_bounded(dataset: Any) -> bool:
    """Return whether a pipeline is known to end."""
    if type(dataset).__name__ == "RepeatDataset" and getattr(dataset, "count", None) == -1:
        return False
    children = getattr(dataset, "children", [])
    if children:
        return all(is_bounded(child) for child in children)
    source = getattr(dataset, "source", None)
    if source is None:
        return True
    return hasattr(source, "__len__")
