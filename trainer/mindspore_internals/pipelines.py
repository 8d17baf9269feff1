"""Structure of `mindspore.dataset` pipelines, and the order in which they shuffle.

This module never asks for the size of an endless pipeline, because the call would not return.

This module relies on the following MindSpore internals:
- A pipeline keeps its inputs in `children`. `.repeat()` without a count is a `RepeatDataset` whose `count` is -1. A
  `GeneratorDataset` keeps the user's object in `source`. If this changes, `tests/trainer/data/test_sources.py` hangs.
- For epoch e, `RandomSampler` shuffles the order of the previous epoch by GNU's `std::shuffle`. The random numbers come
  from an `std::mt19937` (M. Matsumoto, T. Nishimura, "Mersenne Twister", 1998; also in NumPy) seeded with the
  pipeline's seed + e. `shuffles_as_expected` detects a MindSpore built with another C++ library; shuffled arrays are
  then read row by row from the pipeline.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import public_only, warn_of_fallback

_UNSET = 5489  # MindSpore's seed before one is set (std::mt19937::default_seed); each pipeline then draws its own


def current_seed() -> int | None:
    """Return the seed of `mindspore.set_seed` or `dataset.config.set_seed`, or None."""
    import mindspore.dataset as ms_dataset

    seed = ms_dataset.config.get_seed()
    return None if seed == _UNSET else seed


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the pipelines opened in the block; restore all that `set_seed` changes."""
    import mindspore.dataset as ms_dataset

    before = ms_dataset.config.get_seed()
    if before == seed:  # `set_seed` would reset the global generators, which Python operations may be using
        yield
        return
    generators = random.getstate(), np.random.get_state()
    ms_dataset.config.set_seed(seed)
    try:
        yield
    finally:
        ms_dataset.config.set_seed(before)
        random.setstate(generators[0])
        np.random.set_state(generators[1])


_METHODS = ("create_tuple_iterator", "get_col_names", "get_dataset_size", "set_init_step")


def is_pipeline(data: Any) -> bool:
    """Return whether `data` has the methods of pipelines that the trainer uses."""
    return all(hasattr(data, name) for name in _METHODS)


def is_bounded(dataset: Any) -> bool:
    """Return whether a pipeline is known to end."""
    if type(dataset).__name__ == "RepeatDataset" and getattr(dataset, "count", None) == -1:
        return False
    children = getattr(dataset, "children", [])
    if children:
        return all(is_bounded(child) for child in children)
    source = getattr(dataset, "source", None)
    return source is None or hasattr(source, "__len__")


_MAX_NUMBER = (1 << 32) - 1  # largest number that the generator returns
_BLOCK = 1 << 16
_TEST_ROWS, _TEST_EPOCHS = 300, 2  # enough rows to distinguish the draws of older and newer C++ libraries


def next_order(order: np.ndarray, seed: int) -> np.ndarray:
    """Return the order of the next epoch, int64 [n], from the `order` of the last one.

    Before the first epoch, the order is 0 to n - 1. `seed` is the pipeline's seed plus the number of the next epoch.
    """
    rows, shuffled, state = len(order), order.tolist(), np.random.RandomState(seed & _MAX_NUMBER)
    if rows <= _MAX_NUMBER // max(rows, 1):  # `std::shuffle` uses one random number for two swaps
        start = 1
        if rows % 2 == 0 and rows:
            other = int(_draw_below(np.array([2]), state)[0])
            shuffled[1], shuffled[other] = shuffled[other], shuffled[1]
            start = 2
        positions = np.arange(start, rows, 2)
        numbers = _draw_below((positions + 1) * (positions + 2), state)
        pairs = zip(
            positions.tolist(), (numbers // (positions + 2)).tolist(), (numbers % (positions + 2)).tolist(), strict=True
        )
        for position, first, second in pairs:
            shuffled[position], shuffled[first] = shuffled[first], shuffled[position]
            shuffled[position + 1], shuffled[second] = shuffled[second], shuffled[position + 1]
    else:
        for begin in range(1, rows, _BLOCK):
            positions = np.arange(begin, min(begin + _BLOCK, rows))
            for position, other in zip(positions.tolist(), _draw_below(positions + 1, state).tolist(), strict=True):
                shuffled[position], shuffled[other] = shuffled[other], shuffled[position]
    return np.array(shuffled, np.int64)


def _draw_below(counts: np.ndarray, state: np.random.RandomState) -> np.ndarray:
    """Draw a number below each of `counts` like `std::uniform_int_distribution`."""

    def draw(count: int) -> np.ndarray:
        return state.randint(0, 1 << 32, count, dtype=np.uint32).astype(np.int64)

    scale = _MAX_NUMBER // counts
    limit = counts * scale
    numbers, start = draw(len(counts)), 0
    while len(rejected := np.flatnonzero(numbers[start:] >= limit[start:])):
        start += int(rejected[0])
        numbers = np.concatenate((numbers[:start], numbers[start + 1 :], draw(1)))
    return numbers // scale


@functools.cache
def shuffles_as_expected() -> bool:
    """Test whether a small pipeline shuffles as `next_order` computes; cached."""
    import mindspore.dataset as ms_dataset

    if public_only():
        return False
    with seeded(0):
        dataset = ms_dataset.NumpySlicesDataset((np.arange(_TEST_ROWS),), ["row"], shuffle=True).batch(_TEST_ROWS)
        iterator = dataset.create_tuple_iterator(num_epochs=_TEST_EPOCHS, output_numpy=True)
    order = np.arange(_TEST_ROWS)
    for epoch in range(_TEST_EPOCHS):
        order = next_order(order, epoch)
        if not all(np.array_equal(batch[0], order) for batch in iterator):
            warn_of_fallback("pipelines shuffle in a different order", "shuffled arrays are read row by row")
            return False
    return True
