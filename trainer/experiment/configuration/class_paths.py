"""Resolve dotted paths and references ``${env:NAME}`` in a configuration.

An environment variable is read when the object that uses it is created. Its value is never written to a file.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import keyword
import os
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from callbacks.lazy_names import hint

from ...errors import ConfigurationError
from ...masking import is_secret, remember_credentials, remember_secret

DOTTED = {"type": "string", "pattern": r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"}  # in a JSON schema


class UnresolvedError(Exception):
    """Raised if a dotted path cannot be resolved; the message names the failed part."""


def is_dotted(text: Any) -> bool:
    """Return whether `text` has the form of a dotted path with at least one dot."""
    if not isinstance(text, str) or "." not in text:
        return False
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in text.split("."))


def resolve(class_path: str, fits: Callable[[Any], bool] = lambda value: True) -> Any:
    """Return the object that `class_path` names, importing modules as needed.

    Args:
        fits: whether an object is acceptable; only acceptable ones are suggested for a misspelled name.

    Raises:
        UnresolvedError: a module or attribute is missing, or its import raises.
    """
    if not is_dotted(class_path):
        raise UnresolvedError("accepts a dotted path as in mindspore.nn.Adam")
    first, *rest = class_path.split(".")
    value, so_far = _import(first), first
    if value is None:
        raise UnresolvedError(f"there is no module {first!r}{_similar_module(first)}")
    for index, part in enumerate(rest):
        below = f"{so_far}.{part}"
        attribute = _attribute(value, part, below)
        if attribute is None and isinstance(value, ModuleType) and hasattr(value, "__path__"):
            attribute = _import(below)
        if attribute is None:
            kind = "module" if isinstance(value, ModuleType) else "class"
            names = _names_in(value, fits if index == len(rest) - 1 else _has_names)
            raise UnresolvedError(f"{kind} {so_far!r} has no {part!r}{hint(part, names)}{_hidden(first)}")
        value, so_far = attribute, below
    return value


def _attribute(owner: Any, name: str, path: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception as error:
        raise UnresolvedError(f"importing {path} failed: {type(error).__name__}: {error}") from error


def _import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return None
        raise UnresolvedError(f"importing {name} failed: {type(error).__name__}: {error}") from error


def _hidden(package: str) -> str:
    """Return advice to rename a user's file that is named like one of our packages."""
    file = Path(f"{package}.py")
    if package not in ("trainer", "callbacks") or not file.is_file():
        return ""
    return f"; {file} here is hidden by the package of that name: rename it, for example to my_{file}"


def _names_in(owner: Any, fits: Callable[[Any], bool]) -> list[str]:
    """Return the public names of `owner` whose values fit, and modules if those fit."""
    names = []
    for name in dir(owner):
        with contextlib.suppress(Exception):
            if not name.startswith("_") and fits(getattr(owner, name)):
                names.append(name)
    if fits is _has_names:
        with contextlib.suppress(Exception):
            names += [module.name for module in pkgutil.iter_modules(getattr(owner, "__path__", ()))]
    return names


def _has_names(value: Any) -> bool:
    return isinstance(value, ModuleType | type)


def _similar_module(name: str) -> str:
    # a strict cutoff: among hundreds of installed modules, some name is nearly always similar
    matches = difflib.get_close_matches(name, [module.name for module in pkgutil.iter_modules()], n=1, cutoff=0.75)
    return f"; did you mean {matches[0]!r}?" if matches else ""


_REFERENCE = re.compile(r"\$\{env:([^}]{0,200})\}")


def has_reference(value: Any) -> bool:
    """Return whether a plain value contains a reference ``${env:NAME}``."""
    if isinstance(value, dict):
        return any(has_reference(item) for item in value.values())
    if isinstance(value, list):
        return any(has_reference(item) for item in value)
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def wrong_reference(text: str) -> str:
    """Return the problem with the references in `text`, or an empty string."""
    wrong = [name for name, *_ in map(_parts_of, _REFERENCE.findall(text)) if not name.isidentifier()]
    return f"${{env:{wrong[0]}}} names no environment variable; accepts letters, digits and '_'" if wrong else ""


def _parts_of(inner: str) -> tuple[str, str, str]:
    """Split ``NAME`` or ``NAME,DEFAULT`` into the name, the comma and the default."""
    name, comma, default = inner.partition(",")
    return name.strip(), comma, default.strip()


def expand(text: str, name: object = "") -> str:
    """Replace the references in `text` by the values of their variables.

    Credentials among the values are masked in all later output.

    Args:
        name: the argument or key that receives the text; a name such as "password" marks the text as a credential.

    Raises:
        ConfigurationError: a variable is not set, and the reference has no default.
    """

    def look_up(match: re.Match[str]) -> str:
        variable, comma, default = _parts_of(match[1])
        value = os.environ.get(variable, default if comma else None)
        if value is None:
            raise ConfigurationError(
                f"{match[0]}: the environment variable {variable} is not set; set it, or give a default: "
                f"${{env:{variable},default}}"
            )
        if is_secret(variable) or is_secret(name):
            remember_secret(value)
        return value

    expanded = _REFERENCE.sub(look_up, text)
    remember_credentials(expanded, name)
    return expanded
