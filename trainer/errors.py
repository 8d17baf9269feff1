"""The trainer's exceptions, and suggestions of similar names for their messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .masking import mask_text

if TYPE_CHECKING:
    from typing_extensions import Self


class TrainerError(Exception):
    """Base of all exceptions of this package; its text masks credentials.

    Attributes:
        rank: rank of the process with the problem, if all processes of a job raise the error together; else None.
    """

    rank: int | None = None

    @classmethod
    def of_rank(cls, rank: int, problem: str) -> Self:
        """Return the error that all processes raise for a problem of process `rank`."""
        error = cls(f"rank {rank}: {problem}")
        error.rank = rank
        return error

    def __str__(self) -> str:
        return mask_text(super().__str__())

    def __repr__(self) -> str:
        return mask_text(super().__repr__())


class ConfigurationError(TrainerError, ValueError):
    """An invalid argument or configuration, reported before compiling."""


class MissingPackageError(ConfigurationError):
    """An optional package is not installed; the message names the pip extra."""


class DataError(TrainerError, ValueError):
    """Invalid data in a dataset or stream; the message names column and position."""


class GraphError(TrainerError, RuntimeError):
    """MindSpore could not compile or run the network on the given data."""


class CheckpointError(TrainerError, RuntimeError):
    """A snapshot could not be written or read."""


class NonFiniteError(CheckpointError):
    """Values to publish, export or serve are NaN or infinite; the message names them."""


class CheckpointDamagedError(CheckpointError):
    """A snapshot on disk is incomplete or does not match its manifest."""


class CheckpointNotFoundError(CheckpointError):
    """The path has no snapshot: the folder is missing or empty."""


class CheckpointMismatchError(CheckpointError):
    """An intact snapshot belongs to another network, optimizer or configuration."""


class FolderInUseError(CheckpointError, ConfigurationError):
    """Another run writes to the folder; the message has its process, host and start."""


class StreamError(TrainerError, RuntimeError):
    """A stream failed permanently: no retries are left, or too many records are bad."""


def nearest(name: object, choices: Iterable[object], similarity: float = 0.5) -> str | None:
    """Return the choice that is most similar to `name`, or None.

    A choice that contains all words of `name` comes first; otherwise the fewest edits win.

    Args:
        name: the received value.
        choices: the accepted values.
        similarity: minimum similarity, 0 to 1 as in difflib; None is returned if no choice reaches it.
    """
    wanted = str(name).lower()
    texts: dict[str, str] = {}
    for choice in map(str, choices):
        texts.setdefault(choice.lower(), choice)
    words = set(wanted.split("_"))

    def distance(text: str) -> tuple[bool, int]:
        # For "on_epoch_begin", "on_train_epoch_begin" has all the words, while "on_eval_begin" has fewer edits.
        return not words <= set(text.split("_")), _edits(wanted, text)

    close = difflib.get_close_matches(wanted, texts, n=5, cutoff=similarity)
    return texts[min(close, key=distance)] if close else None


def _edits(name: str, choice: str) -> int:
    """Return the number of inserted, deleted, replaced or swapped letters."""
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
    similar = nearest(name, choices, similarity)
    return f"; did you mean {similar!r}?" if similar else ""
