"""Define problems of a configuration, their locations and their exception."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigurationError
from ...masking import mask_text, mask_value

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 4


@dataclass(frozen=True, order=True)
class SourceLocation:
    """A location in a configuration.

    Attributes:
        source: the file as the user named it, or the ``--set a.b=c`` that gave the value.
        line: line number counted from 1, or 0 when the source has no lines.
        column: column number counted from 1, or 0.
    """

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True)
class Problem:
    """A problem in a configuration.

    Attributes:
        location: its location.
        path: the dotted path of the key, such as "optimizer.init_args.learning_rate"; "" for the whole file.
        message: what is wrong, with the received value and the accepted values.
    """

    location: SourceLocation
    path: str
    message: str

    def __str__(self) -> str:
        return mask_text(": ".join(part for part in (str(self.location), self.path, self.message) if part))


class ConfigErrors(ConfigurationError):  # noqa: N818 (plural: it holds many)
    """All problems of one configuration.

    Attributes:
        problems: all problems in the order of the file, then problems of ``--set``.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        unique = dict.fromkeys(problems)
        self.problems = sorted(unique, key=lambda problem: (problem.location.line == 0, problem.location))
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


def join(path: str, key: Any) -> str:
    """Return the dotted path of `key` below `path`."""
    key = key if isinstance(key, str) and key.isprintable() else repr(key)
    return f"{path}.{key}" if path else key


def dotted(path: Iterable[Any]) -> str:
    """Return a path as text with dots between its keys."""
    return functools.reduce(join, path, "")


def format_value(value: Any, path: str = "") -> str:
    """Format `value` for a message: its shortened repr, and its type unless obvious.

    Credentials are masked; a secret name in the dotted `path` marks `value` as one.
    """
    if value is None:
        return "nothing (null)"
    value = mask_value(value, path)
    text = _SHORT.repr(value)
    return text if isinstance(value, dict | list | tuple) else f"{text} ({type(value).__name__})"
