"""Checks of arguments: what was wrong, what was received, what is accepted, the nearest valid choice.

Every function returns the value it has checked, or raises ConfigurationError. `place` is how the message names the
argument: "epochs", or "EarlyStopping(patience=...)" for an argument of a constructor.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any, NoReturn

from .errors import ConfigurationError, did_you_mean

_shorten = reprlib.Repr()
_shorten.maxstring = _shorten.maxother = 100


def refuse(place: str, wanted: str, value: Any, hint: str = "") -> NoReturn:
    """Raise ConfigurationError: `place` takes what is wanted, not `value`."""
    raise ConfigurationError(f"{place} takes {wanted}; received {_shorten.repr(value)}{hint}")


def is_whole(value: Any) -> bool:
    """Return whether `value` is a whole number of any integer type; bool is not one."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether `value` is a real number of any type other than bool, and not NaN."""
    return isinstance(value, Real) and not isinstance(value, bool) and value == value


def choice(place: str, value: Any, choices: Iterable[Any], *, optional: bool = False) -> Any:
    """Return `value` when it is one of `choices` (or None where `optional`).

    Raises:
        ConfigurationError: it is not; the nearest choice is named.
    """
    choices = tuple(choices)
    if not ((optional and value is None) or (isinstance(value, str) and value in choices)):
        accepted = ", ".join(map(repr, choices)) + (" or None" if optional else "")
        refuse(place, accepted, value, did_you_mean(value, choices))
    return value


def whole(
    place: str, value: Any, least: int = 1, *, most: int | None = None, optional: bool = False, also: str = ""
) -> Any:
    """Return `value` as int when it is a whole number from `least` to `most` (or None where `optional`).

    Args:
        place: how messages name the argument.
        value: what was received.
        least: smallest accepted value.
        most: largest accepted value, or None.
        optional: whether None is accepted.
        also: what else the caller accepts, for the message, as in ", or -1 to choose".

    Raises:
        ConfigurationError: it is not.
    """
    if optional and value is None:
        return None
    if not is_whole(value) or value < least or (most is not None and value > most):
        bounds = f">= {least}" if most is None else f"from {least} to {most}"
        refuse(place, f"a whole number {bounds}{also}{' or None' if optional else ''}", value)
    return int(value)


def number(
    place: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    optional: bool = False,
    what: str = "a number",
) -> Any:
    """Return `value` as float when it is a real number within the bounds given (or None where `optional`).

    Args:
        place: how messages name the argument.
        value: what was received.
        least: smallest accepted value.
        above: bound that the value must exceed.
        most: largest accepted value.
        below: bound that the value must stay under; infinity asks for a finite number.
        optional: whether None is accepted.
        what: what the number is, for the message, as in "seconds".

    Raises:
        ConfigurationError: it is not, or is NaN.
    """
    if optional and value is None:
        return None
    good = is_number(value) and (least is None or value >= least) and (above is None or value > above)
    if not (good and (most is None or value <= most) and (below is None or value < below)):
        wanted = " ".join((what, _interval(least, above, most, None if below == math.inf else below))).strip()
        refuse(place, wanted + (" or None" if optional else ""), value)
    return float(value)


def _interval(least: float | None, above: float | None, most: float | None, below: float | None) -> str:
    low = least if above is None else above
    high = most if below is None else below
    if low is None:
        return "" if high is None else f"{'<=' if below is None else '<'} {high:g}"
    if high is None:
        return f"{'>=' if above is None else '>'} {low:g}"
    return f"in {'[' if above is None else '('}{low:g}, {high:g}{']' if below is None else ')'}"


def function(place: str, value: Any, *, optional: bool = True) -> Callable[..., Any] | None:
    """Return `value` when it can be called (or is None where `optional`).

    Raises:
        ConfigurationError: it cannot.
    """
    if not ((optional and value is None) or callable(value)):
        refuse(place, "a function of the trainer" + (" or None" if optional else ""), value)
    return value


def any_number(place: str, value: Any) -> float:
    """Return `value` as float when it is a real number, NaN included.

    Raises:
        ConfigurationError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        refuse(place, "a number", value)
    return float(value)


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


def boolean(name: str, value: Any) -> bool:
    """Return `value` when it is True or False.

    Raises:
        TypeError: it is anything else; MindSpore raises the same for its verbs, and RecModel with these words.
    """
    if not isinstance(value, bool):
        raise TypeError(
            f"{name}: The input value must be a bool, but got {type(value).__name__}; takes True or False; "
            f"received {value!r}"
        )
    return value


def sink_steps(dataset_sink_mode: Any, sink_size: Any) -> int | None:
    """Return K, the steps per call: 1 without sink mode, None for "choose", else `sink_size`.

    Raises:
        ConfigurationError: a sink size that is neither -1 nor a whole number >= 1. TypeError: a mode that is no bool.
    """
    boolean("dataset_sink_mode", dataset_sink_mode)
    if not is_whole(sink_size) or sink_size != -1:
        whole("sink_size", sink_size, also=", or -1 to choose")
    if not dataset_sink_mode:
        return 1
    return None if sink_size == -1 else int(sink_size)
