"""Every exception the trainer raises on purpose, and the nearest-name helper their messages use."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .masking import mask_text


class TrainerError(Exception):
    """Base of every documented exception of this package. Its text shows no credentials."""

    def __str__(self) -> str:
        return mask_text(super().__str__())

    def __repr__(self) -> str:
        return mask_text(super().__repr__())


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


class FolderInUseError(CheckpointError, ConfigurationError):
    """Another run writes in the folder; the message names its process, host and since when."""


class StreamError(TrainerError, RuntimeError):
    """A stream source failed for good: retries are used up or too many records were bad."""


def nearest(name: object, choices: Iterable[object], similarity: float = 0.5) -> str | None:
    """Return the choice that has all words of `name`, else the one the fewest edits away.

    Args:
        name: what was received.
        choices: what is accepted.
        similarity: least similarity, 0 to 1 as difflib has it; None is returned where no choice reaches it.
    """
    wanted = str(name).lower()
    texts: dict[str, str] = {}
    for choice in map(str, choices):
        texts.setdefault(choice.lower(), choice)
    words = set(wanted.split("_"))

    def distance(text: str) -> tuple[bool, int]:
        # "on_epoch_begin" means "on_train_epoch_begin", which has all its words, rather than "on_eval_begin"
        return not words <= set(text.split("_")), _edits(wanted, text)

    close = difflib.get_close_matches(wanted, texts, n=5, cutoff=similarity)
    return texts[min(close, key=distance)] if close else None


def _edits(name: str, choice: str) -> int:
    """Return how many letters are put in, left out, replaced or exchanged with their neighbour (Damerau 1964)."""
    before, row = [0] * (len(choice) + 1), list(range(len(choice) + 1))
    for i, letter in enumerate(name, 1):
        earlier, before, row = before, row, [i]
        for j, wanted in enumerate(choice, 1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == choice[j - 2] and name[i - 2] == wanted:
                edits = min(edits, earlier[j - 2] + 1)
            row.append(edits)
    return row[-1]


def did_you_mean(name: object, choices: Iterable[object], similarity: float = 0.5) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest choice, or an empty string."""
    found = nearest(name, choices, similarity)
    return f"; did you mean {found!r}?" if found else ""
