"""The one kit that checks arguments; what callbacks need of it is in `callbacks._support`, which imports nothing here.

Every function returns the value it has checked, or raises ConfigurationError with what was wrong, what was received,
what is accepted and the nearest valid choice. `place` is how the message names the argument.
"""

from __future__ import annotations

from typing import Any

from .errors import ConfigurationError
from .hooks import any_number, choice, function, is_number, is_whole, number, refuse, whole

__all__ = [
    "any_number",
    "choice",
    "epochs",
    "function",
    "is_number",
    "is_whole",
    "number",
    "refuse",
    "seed",
    "sink_steps",
    "whole",
]


def seed(value: Any) -> int | None:
    """Return `value` when it is a seed or None.

    Raises:
        ConfigurationError: it is not a whole number from 0 to 2**32 - 1.
    """
    return whole("seed", value, 0, most=2**32 - 1, optional=True)


def epochs(value: Any) -> int:
    """Return `value` when it is a number of epochs.

    Raises:
        ConfigurationError: anything but a whole number >= 1; labels given in its place get a hint.
    """
    if hasattr(value, "shape") or isinstance(value, list | tuple):
        raise ConfigurationError(
            "epochs received data; inputs and labels go together into the first argument: "
            "fit((x, y), epochs, batch_size=...)"
        )
    return whole("epochs", value)


def sink_steps(dataset_sink_mode: Any, sink_size: Any) -> int | None:
    """Return K, the steps per call: 1 without sink mode, None for "choose", else `sink_size`.

    Raises:
        ConfigurationError: a sink size that is neither -1 nor a whole number >= 1.
    """
    if not is_whole(sink_size) or sink_size != -1:
        whole("sink_size", sink_size, also=", or -1 to choose")
    if not dataset_sink_mode:
        return 1
    return None if sink_size == -1 else int(sink_size)
