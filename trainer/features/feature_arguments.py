"""Checks the arguments of `Features`: features given as mappings, unique names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..checks import choice, refuse
from ..errors import ConfigurationError
from .feature import Feature

NUMBERS, IDS = "numbers", "ids"  # inputs of the network
PREDICTION, SET_ASIDE = "prediction", "set_aside"  # names beside the columns kept for output


def as_feature(value: Mapping[str, Any]) -> Feature:
    """Create a feature from a mapping with its "kind" and arguments."""
    from . import KINDS

    arguments = dict(value)
    kind = choice("kind", arguments.pop("kind", None), KINDS)
    for name in arguments:
        choice(f"a feature of kind {kind!r}", name, KINDS[kind].__dataclass_fields__)
    if "name" not in arguments:
        raise ConfigurationError(f"a feature of kind {kind!r} needs a name; received {dict(value)!r}")
    return KINDS[kind](**arguments)


def names_kept(keep: Any) -> tuple[str, ...]:
    """Return the names of columns returned together with predictions."""
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    if not all(isinstance(name, str) and name for name in names):
        refuse("Features(keep=...)", "names of columns", keep)
    for name in names:
        if name in (PREDICTION, SET_ASIDE):
            what = "the network's output" if name == PREDICTION else "why rows are left out"
            refuse("Features(keep=...)", f"names of columns other than {name!r}, that of {what}", name)
    return names


def check_unique(what: str, names: Sequence[str]) -> None:
    """Check that names are unique and none is that of a network input."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigurationError(f"two {what}s are named {twice[0]!r}; give each a name of its own")
    for reserved in (NUMBERS, IDS):
        if what == "output" and reserved in names:
            raise ConfigurationError(f"the name {reserved!r} is that of an input of the network; choose another")
