"""Every exception the trainer raises on purpose, and the nearest-name helper their messages use."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TrainerError(Exception):
    """Base of every documented exception of this package."""


class ConfigurationError(TrainerError, ValueError):
    """An argument, option or configuration value that cannot work; raised before anything is compiled."""


class DataError(TrainerError, ValueError):
    """A dataset or stream delivered something that cannot be trained on; the message names column and position."""


class GraphError(TrainerError, RuntimeError):
    """MindSpore could not compile or run the network on the data it was given."""


class CheckpointError(TrainerError, RuntimeError):
    """A snapshot could not be written or read."""


class CheckpointDamagedError(CheckpointError):
    """A snapshot on disk is incomplete or does not match its manifest."""


class CheckpointNotFoundError(CheckpointError):
    """There is no snapshot at the place named: the folder is missing or nothing was ever saved in it."""


class CheckpointMismatchError(CheckpointError):
    """A sound snapshot belongs to another network, optimizer or configuration."""


class StreamError(TrainerError, RuntimeError):
    """A stream source failed for good: retries are used up or too many records were bad."""


class NonFiniteError(TrainerError, ArithmeticError):
    """The loss or a gradient became NaN or infinite and the run was told not to go on."""


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice most similar to `name`, or None when nothing is similar."""
    found = difflib.get_close_matches(str(name), [str(choice) for choice in choices], n=1, cutoff=0.5)
    return found[0] if found else None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest choice, or an empty string."""
    found = nearest(name, choices)
    return f"; did you mean {found!r}?" if found else ""
