"""Environment variables of a run, compared when it is resumed.

Values are not written to the run folder, only salted digests of the settings that refer to variables. Credentials are
left out: they are renewed, and do not change what is trained.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import ConfigurationError
from ...masking import is_secret, mask_text
from .class_paths import expand, has_reference, variables_in
from .dotted_paths import flatten

ITERATIONS = 20_000  # of the key derivation, so that short values cannot be guessed cheaply


def digests(config: Mapping[str, Any], salt: str = "") -> dict[str, Any]:
    """Return salted digests of the settings that refer to variables.

    As {"salt": text, "settings": {dotted path: digest}}.

    Args:
        config: the resolved configuration, plain.
        salt: the salt of earlier digests to compare with; "" for a new one.
    """
    salt = salt or secrets.token_hex(8)
    return {"salt": salt, "settings": {path: _digest(value, salt) for path, value in _settings(config)}}


def changed(config: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[str]:
    """Return the settings whose variables differ from `earlier` digests."""
    if not isinstance(earlier.get("salt"), str) or not isinstance(earlier.get("settings"), dict):
        return []  # a run of an older version
    texts = {path: text for path, text in flatten(config).items() if has_reference(text)}
    now = digests(config, earlier["salt"])["settings"]
    return [f"{path}: {texts[path]}" for path in now if earlier["settings"].get(path, now[path]) != now[path]]


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield path and value of each setting with variables; no credentials."""
    for path, text in flatten(config).items():
        if has_reference(text) and not any(map(is_secret, (path, *variables_in(text)))):
            with contextlib.suppress(ConfigurationError):  # not set, and not needed by this command
                yield path, mask_text(expand(str(text)))


def _digest(value: str, salt: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", value.encode(), salt.encode(), ITERATIONS).hex()[:16]
