"""The real signature of a class or function, and whether a configuration value fits a parameter of it.

MindSpore's optimizers show ``(*args, **kwargs)``; `real_signature` looks behind that. What a parameter accepts is taken
from its annotation, else from its docstring line ``name (TYPE): ...``, else from its default value; where none of them
is telling, anything fits.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..mindspore_internals.decorated_functions import names_read, undecorated
from .accepts import Accepted, accepted

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Signature:
    """What a class or function is called with.

    Attributes:
        name: its name, for messages.
        parameters: named parameters in order, without ``self``.
        positional: how many positional arguments it takes, or None without bound.
        open_keywords: whether it takes ``**kwargs``.
        extra_names: further names it is known to read from its ``**kwargs``.
        accepts: what each named parameter accepts.
    """

    name: str
    parameters: Mapping[str, inspect.Parameter]
    positional: int | None
    open_keywords: bool
    extra_names: frozenset[str]
    accepts: Mapping[str, Accepted]

    @property
    def required(self) -> list[str]:
        """Names of the parameters that have no default."""
        return [name for name, parameter in self.parameters.items() if parameter.default is parameter.empty]

    def names(self) -> list[str]:
        """Return the names of the parameters that may be given as a keyword."""
        return [name for name, p in self.parameters.items() if p.kind is not p.POSITIONAL_ONLY]


def real_signature(target: Callable[..., Any]) -> Signature | None:
    """Return how `target` is really called, or None when it does not tell (some built-in classes)."""
    function, skip = _function_of(target)
    try:
        raw = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    named = {name: p for name, p in list(raw.parameters.items())[skip:] if p.kind not in _VARIADIC}
    kinds = {p.kind for p in raw.parameters.values()}
    positional = [p for p in named.values() if p.kind is not p.KEYWORD_ONLY]
    documented = _documented_types(target)
    open_keywords = inspect.Parameter.VAR_KEYWORD in kinds
    extra = names_read(function) | set(documented) - set(named) if open_keywords else set()
    return Signature(
        name=getattr(target, "__name__", repr(target)),
        parameters=named,
        positional=None if inspect.Parameter.VAR_POSITIONAL in kinds else len(positional),
        open_keywords=open_keywords,
        extra_names=frozenset(extra),
        accepts={
            name: accepted(parameter, documented.get(name), getattr(function, "__globals__", {}))
            for name, parameter in named.items()
        },
    )


def _function_of(target: Any) -> tuple[Any, int]:
    """Return the innermost function behind `target` and how many leading parameters (``self``) to leave out."""
    if not inspect.isclass(target):
        return undecorated(target), 0
    if "__signature__" in vars(target) or not inspect.isfunction(target.__init__):
        return target, 0
    return undecorated(target.__init__), 1


_DOCUMENTED = re.compile(r"^[ \t]+(\w+) \(([^\n]*?)\)[ \t]*:", re.MULTILINE)


def _documented_types(target: Any) -> dict[str, str]:
    doc = getattr(target, "__doc__", None)
    found: dict[str, str] = {}
    for name, text in _DOCUMENTED.findall(doc) if isinstance(doc, str) else ():
        found.setdefault(name, text)
    return found
