"""Argument checks whose errors name the received and the accepted values.

Unless documented otherwise, a check returns the value or raises ConfigurationError. `argument` is the argument's name
in the message: "epochs", or "EarlyStopping(patience=...)" for a constructor.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable
from datetime import timedelta
from importlib import import_module, metadata
from numbers import Integral, Real
from typing import Any, NoReturn

from .errors import ConfigurationError, MissingPackageError, did_you_mean

_shorten = reprlib.Repr()
_shorten.maxstring = _shorten.maxother = 100


def refuse(argument: str, wanted: str, value: Any, hint: str = "") -> NoReturn:
    """Raise ConfigurationError because `argument` accepts `wanted`, not `value`."""
    raise ConfigurationError(f"{argument} takes {wanted}; received {_shorten.repr(value)}{hint}")


def require(module: str, needs: str, extra: str) -> Any:
    """Import an optional module; the error begins with `needs` ("A needs B")."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingPackageError(f"{needs}: pip install 'mindspore-trainer[{extra}]'") from error


def installed(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def is_whole(value: Any) -> bool:
    """Return whether `value` is an integer of any type except bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def four_digits(value: float) -> str:
    """Format a number for display, with four significant digits or as an integer.

    Examples: "0.5821", "27087", "1.2e-05".
    """
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def is_number(value: Any) -> bool:
    """Return whether `value` is a real number of any type except bool, and not NaN."""
    return isinstance(value, Real) and not isinstance(value, bool) and value == value


def choice(argument: str, value: Any, choices: Iterable[Any], *, optional: bool = False) -> Any:
    """Return `value` if it is one of `choices`, or None if `optional`."""
    choices = tuple(choices)
    if not ((optional and value is None) or (isinstance(value, str) and value in choices)):
        accepted = ", ".join(map(repr, choices)) + (" or None" if optional else "")
        refuse(argument, accepted, value, did_you_mean(value, choices))
    return value


def nonempty_text(argument: str, value: Any, wanted: str = "a non-empty text", *, optional: bool = False) -> Any:
    """Return `value` if it is a non-empty string, or None if `optional`."""
    if not ((optional and value is None) or (isinstance(value, str) and value)):
        refuse(argument, wanted + (", or None" if optional else ""), value)
    return value


def whole(
    argument: str, value: Any, minimum: int = 1, *, maximum: int | None = None, optional: bool = False, also: str = ""
) -> Any:
    """Return `value` as int if it is a whole number within the bounds.

    Args:
        minimum, maximum: smallest and largest accepted value; None: unbounded.
        optional: whether None is accepted.
        also: other accepted values, for the message, such as ", or -1 to let the trainer choose".
    """
    if optional and value is None:
        return None
    if not is_whole(value) or value < minimum or (maximum is not None and value > maximum):
        bounds = f">= {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        refuse(argument, f"a whole number {bounds}{also}{' or None' if optional else ''}", value)
    return int(value)


def number(
    argument: str,
    value: Any,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    optional: bool = False,
    what: str = "a number",
) -> Any:
    """Return `value` as float if it is a real number within the bounds, not NaN.

    Args:
        minimum, maximum: smallest and largest accepted value.
        above, below: exclusive bounds; ``below=math.inf`` requires a finite number.
        optional: whether None is accepted.
        what: name of the quantity, for the message, such as "seconds".
    """
    if optional and value is None:
        return None
    good = is_number(value) and (minimum is None or value >= minimum) and (above is None or value > above)
    if not (good and (maximum is None or value <= maximum) and (below is None or value < below)):
        wanted = " ".join((what, _interval(minimum, above, maximum, None if below == math.inf else below))).strip()
        refuse(argument, wanted + (" or None" if optional else ""), value)
    return float(value)


def _interval(minimum: float | None, above: float | None, maximum: float | None, below: float | None) -> str:
    low = minimum if above is None else above
    high = maximum if below is None else below
    if low is None:
        return "" if high is None else f"{'<=' if below is None else '<'} {high:g}"
    if high is None:
        return f"{'>=' if above is None else '>'} {low:g}"
    return f"in {'[' if above is None else '('}{low:g}, {high:g}{']' if below is None else ')'}"


def seconds(argument: str, value: Any) -> float | None:
    """Convert a number, timedelta or "[DD:]HH:MM:SS" to seconds; None stays None."""
    if value is None:
        return None
    given = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(value, str):
        parts = value.split(":")
        if 3 <= len(parts) <= 4 and all(part.isdecimal() for part in parts):
            days, hours, minutes, rest = map(int, ["0", *parts][-4:])
            given = timedelta(days=days, hours=hours, minutes=minutes, seconds=rest).total_seconds()
    if not is_number(given) or given <= 0:
        refuse(argument, 'seconds > 0, a timedelta, or text as "HH:MM:SS" or "DD:HH:MM:SS"', value)
    return float(given)


def batches(name: str, value: Any, *, minimum: int = 1) -> None:
    """Check for a number of batches >= `minimum`, a share in (0.0, 1.0], or None."""
    fits = value >= minimum if is_whole(value) else is_number(value) and 0 < value <= 1
    if value is not None and not fits:
        refuse(name, f"a whole number of batches >= {minimum}, a share of them in (0.0, 1.0], or None", value)


def function(argument: str, value: Any, *, optional: bool = True) -> Callable[..., Any] | None:
    """Return `value` if it is callable, or None if `optional`."""
    if not ((optional and value is None) or callable(value)):
        refuse(argument, "a function that is called with the trainer" + (" or None" if optional else ""), value)
    return value


def any_number(argument: str, value: Any) -> float:
    """Return `value` as float if it is a real number, NaN included."""
    if isinstance(value, bool) or not isinstance(value, Real):
        refuse(argument, "a number", value)
    return float(value)


def epochs(value: Any) -> int:
    """Return `value` if it is a number of epochs; the error explains how to pass data."""
    if hasattr(value, "shape") or isinstance(value, list | tuple):
        raise ConfigurationError(
            "epochs received data; inputs and labels go together into the first argument: "
            "fit((x, y), epochs, batch_size=...)"
        )
    return whole("epochs", value)


def boolean(name: str, value: Any) -> bool:
    """Return `value` if it is True or False.

    Raises:
        TypeError: `value` is anything else. MindSpore raises the same type, and RecModel the same message.
    """
    if not isinstance(value, bool):
        raise TypeError(
            f"{name}: The input value must be a bool, but got {type(value).__name__}; takes True or False; "
            f"received {value!r}"
        )
    return value


def steps_per_call(dataset_sink_mode: Any, sink_size: Any) -> int | None:
    """Return the steps per call, or None if the trainer chooses them.

    The result is 1 without sink mode, None if `sink_size` is -1, else `sink_size`.

    Raises:
        ConfigurationError: `sink_size` is neither -1 nor a whole number >= 1.
        TypeError: `dataset_sink_mode` is not a bool.
    """
    boolean("dataset_sink_mode", dataset_sink_mode)
    if not is_whole(sink_size) or sink_size != -1:
        whole("sink_size", sink_size, also=", or -1 to let the trainer choose")
    if not dataset_sink_mode:
        return 1
    return None if sink_size == -1 else int(sink_size)
