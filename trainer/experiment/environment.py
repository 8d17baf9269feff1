"""``${env:NAME}`` in values of a configuration: looked up when the object is made, never written anywhere."""

from __future__ import annotations

import os
import re
from typing import Any

from ..errors import ConfigurationError
from ..masking import is_secret, remember_credentials, remember_secret

_REFERENCE = re.compile(r"\$\{env:([^}]{0,200})\}")


def has_reference(value: Any) -> bool:
    """Return whether a plain value holds a reference, at any depth."""
    if isinstance(value, dict):
        return any(has_reference(item) for item in value.values())
    if isinstance(value, list):
        return any(has_reference(item) for item in value)
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def wrong_reference(text: str) -> str:
    """Return what is wrong with the references in a text, or an empty string."""
    wrong = [name for name in _REFERENCE.findall(text) if not name.isidentifier()]
    return f"${{env:{wrong[0]}}} names no environment variable; accepts letters, digits and '_'" if wrong else ""


def expand(text: str, name: object = "") -> str:
    """Return `text` with the variables it refers to; what is a credential by its name is masked from then on.

    Args:
        text: a value.
        name: the name of the argument or key it is for.

    Raises:
        ConfigurationError: a variable is not set.
    """

    def look_up(found: re.Match[str]) -> str:
        variable = found[1]
        value = os.environ.get(variable)
        if value is None:
            raise ConfigurationError(f"the environment variable {variable} is not set, which {found[0]} stands for")
        if is_secret(variable) or is_secret(name):
            remember_secret(value)
        return value

    expanded = _REFERENCE.sub(look_up, text)
    remember_credentials(expanded, name)
    return expanded
