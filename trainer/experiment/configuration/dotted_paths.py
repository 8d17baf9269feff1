"""Dotted paths of settings: `optimizer.init_args.learning_rate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def join(path: str, key: Any) -> str:
    """Return the dotted path of `key` below `path`."""
    key = key if isinstance(key, str) and key.isprintable() else repr(key)
    return f"{path}.{key}" if path else key


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return nested mappings and lists flattened to leaves by dotted path.

    Empty containers are leaves.
    """
    if isinstance(value, Mapping) and value:
        children: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        children = enumerate(value)
    else:
        return {path: value}
    flat: dict[str, Any] = {}
    for key, item in children:
        flat.update(flatten(item, join(path, str(key))))
    return flat
