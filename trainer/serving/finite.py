"""Checks that published, exported or served values are finite."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import NonFiniteError


def check_finite(arrays: Mapping[str, Any], owner: str) -> None:
    """Raise NonFiniteError if an array contains NaN or infinite values.

    Args:
        arrays: arrays by name.
        owner: what the arrays belong to, for the message.
    """
    for name, array in arrays.items():
        values = np.asarray(array)
        if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():
            count = values.size - int(np.count_nonzero(finite))
            raise NonFiniteError(f"{owner} {name!r} holds {count} of {values.size} values that are NaN or infinite")


def check_state(state: Mapping[str, Any], owner: str = "the statistic of features") -> None:
    """Raise NonFiniteError if a state (see `write_state`) has NaN or infinite values."""
    check_finite(state["arrays"], owner)
    for path, number in _numbers(state["json"], ""):
        if not math.isfinite(number):
            raise NonFiniteError(f"{owner} {path[1:]!r} is {number}")


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, dict | list | tuple):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(part, f"{path}.{key}")
