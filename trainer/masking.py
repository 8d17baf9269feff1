"""Mask credentials, recognized by name, by position in a URL, or as remembered.

All output of the program (log lines, errors, run folders, snapshots, output of commands) passes through here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
_SECRET_NAME = re.compile(
    r"(password|passwd|passphrase|secret)$|(^|[^a-z])(pwd|token|credentials?|(api|access|private|secret)[^a-z]?key)$"
    r"|(^|\.)sasl\.(?!mechanisms?$)[\w.]+$",
    re.IGNORECASE,
)
# Both patterns take linear time: the lookbehind and the length limit prevent a new search from every letter.
_URL_USER = re.compile(r"(?P<scheme>\b[a-zA-Z][\w+.-]{0,100}://)(?P<user>[^\s'\"/]*)@")
_ASSIGNMENT = re.compile(
    r"(?P<name>(?<![\w.-])[\w.-]+)(?P<sign>['\"]?\s*=\s*|['\"]\s*:\s*)(?P<value>\$\{env:\w+\}|\"[^\"]*\"|'[^']*'|[^\s'\"&;,)}\]]+)"
)
_REFERENCE = re.compile(r"\$\{env:\w+\}")
_MIN_LENGTH = 6  # shorter values are not remembered, because they would match inside other words
_remembered: dict[str, None] = {}


def is_secret(name: object) -> bool:
    """Return whether `name`, a key, argument or dotted path, names a credential."""
    return isinstance(name, str) and _SECRET_NAME.search(name) is not None


def remember_secret(value: object) -> None:
    """Mask `value` wherever it appears from now on."""
    if isinstance(value, str) and len(value) >= _MIN_LENGTH:
        _remembered[value] = None


def remember_credentials(value: Any, name: object = "") -> None:
    """Mask from now on the credentials in `value`, a plain value of a configuration.

    Credentials are values with a secret `name`, and passwords in URLs.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            remember_credentials(item, key)
    elif isinstance(value, list | tuple):
        for item in value:
            remember_credentials(item, name)
    elif isinstance(value, str):
        secrets = [match["user"].partition(":")[2] for match in _URL_USER.finditer(value)]
        secrets += [match["value"].strip("'\"") for match in _ASSIGNMENT.finditer(value) if is_secret(match["name"])]
        for secret in (*secrets, value if is_secret(name) else ""):
            if not _is_empty_or_reference(secret) and not is_masked(secret):
                remember_secret(secret)


def mask_text(text: str) -> str:
    """Return `text` with every credential in it replaced by ``***``."""
    for value in _remembered:
        text = text.replace(value, MASK)
    if "@" in text:
        text = _URL_USER.sub(_mask_password, text)
    return _ASSIGNMENT.sub(_mask_assigned_secret, text) if "=" in text or ":" in text else text


def mask_value(value: Any, name: object = "") -> Any:
    """Return a plain `value` (mappings, lists, scalars) with its credentials masked.

    References ``${env:NAME}`` reveal nothing and stay unchanged.
    """
    if isinstance(value, Mapping):
        return {key: mask_value(item, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_value(item, name) for item in value]
    if is_secret(name) and isinstance(value, str | int | float) and not isinstance(value, bool):
        return value if _is_empty_or_reference(str(value)) else MASK
    return mask_text(value) if isinstance(value, str) else value


def is_masked(text: object) -> bool:
    """Return whether a configuration value was masked when it was written."""
    return isinstance(text, str) and re.search(r"^\*{3}$|//\*{3}@|=\*{3}($|[&;\s])", text) is not None


def _is_empty_or_reference(text: str) -> bool:
    return not text or _REFERENCE.fullmatch(text) is not None


def _mask_password(match: re.Match[str]) -> str:
    if match["scheme"].lower().startswith("abfs") and ":" not in match["user"]:
        return match[0]  # Azure: abfs://container@account.dfs.core.windows.net
    password = match["user"].partition(":")[2] or match["user"]
    return match[0] if _is_empty_or_reference(password) else f"{match['scheme']}{MASK}@"


def _mask_assigned_secret(match: re.Match[str]) -> str:
    value = match["value"]
    if not is_secret(match["name"]) or _is_empty_or_reference(value.strip("'\"")) or value in ("None", "none", "null"):
        return match[0]
    quote = value[0] if value[0] in "'\"" else ""
    return f"{match['name']}{match['sign']}{quote}{MASK}{quote}"
