"""Checks of constructor arguments: what was wrong, what was received, what is accepted, the nearest valid choice."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from .cadence import Every


def nearest(name: object, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the choice most similar to `name`, or an empty string."""
    found = difflib.get_close_matches(str(name), list(choices), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def choice(owner: str, argument: str, value: Any, choices: Iterable[str]) -> str:
    """Return `value` when it is one of `choices`.

    Raises:
        ValueError: it is not.
    """
    choices = tuple(choices)
    if value not in choices:
        accepted = ", ".join(map(repr, choices))
        raise ValueError(f"{owner}({argument}=...) takes {accepted}; received {value!r}{nearest(value, choices)}")
    return value


def whole(owner: str, argument: str, value: Any, least: int, *, optional: bool = False) -> Any:
    """Return `value` when it is a whole number >= `least` (or None where `optional`).

    Raises:
        ValueError: it is not.
    """
    if optional and value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        extra = " or None" if optional else ""
        raise ValueError(f"{owner}({argument}=...) takes a whole number >= {least}{extra}; received {value!r}")
    return value


def number(owner: str, argument: str, value: Any, *, least: float | None = None, below: float | None = None) -> float:
    """Return `value` as float when it is a real number, at least `least` and less than `below` where given.

    Raises:
        ValueError: it is not.
    """
    good = not isinstance(value, bool) and isinstance(value, int | float) and value == value
    good = good and (least is None or value >= least) and (below is None or value < below)
    if not good:
        bounds = [f">= {least:g}" for _ in (1,) if least is not None] + [f"< {below:g}" for _ in (1,) if below]
        wanted = " ".join(["a number", " and ".join(bounds)]).strip()
        raise ValueError(f"{owner}({argument}=...) takes {wanted}; received {value!r}")
    return float(value)


def function(owner: str, argument: str, value: Any) -> Callable[..., Any] | None:
    """Return `value` when it can be called or is None.

    Raises:
        TypeError: it is neither.
    """
    if value is not None and not callable(value):
        raise TypeError(f"{owner}({argument}=...) takes a function of the trainer or None; received {value!r}")
    return value


def cadence(owner: str, value: Any, default: Every | None = None) -> Every:
    """Return a cadence of the caller's own: a whole number means optimizer steps, None means `default`.

    An `Every` is copied, so that two callbacks given the same one do not move each other's mark.

    Raises:
        TypeError: `value` is neither.
        ValueError: the number is not a positive whole one.
    """
    if value is None and default is not None:
        value = default
    if isinstance(value, Every):
        return Every(**{value.unit: value.n})
    if isinstance(value, bool) or not isinstance(value, int):
        accepted = "an Every, a whole number of optimizer steps" + (" or None" if default is not None else "")
        raise TypeError(f"{owner}(every=...) takes {accepted}; received {value!r}")
    return Every(steps=whole(owner, "every", value, 1))
