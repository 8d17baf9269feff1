"""The exceptions of wrong arguments and the nearest-name helper of their messages; `trainer.errors` has them all."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .masking import mask_text


class TrainerError(Exception):
    """Base of every documented exception of this package. Its text shows no credentials."""

    __module__ = "trainer.errors"

    def __str__(self) -> str:
        return mask_text(super().__str__())

    def __repr__(self) -> str:
        return mask_text(super().__repr__())


class ConfigurationError(TrainerError, ValueError):
    """An argument, option or configuration value that cannot work; raised before anything is compiled."""

    __module__ = "trainer.errors"


def nearest(name: object, choices: Iterable[object], similarity: float = 0.5) -> str | None:
    """Return the choice most similar to `name`, or None when none reaches `similarity` (0 to 1, as difflib has it)."""
    found = difflib.get_close_matches(str(name), [str(choice) for choice in choices], n=1, cutoff=similarity)
    return found[0] if found else None


def did_you_mean(name: object, choices: Iterable[object], similarity: float = 0.5) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest choice, or an empty string."""
    found = nearest(name, choices, similarity)
    return f"; did you mean {found!r}?" if found else ""
