"""Describe objects that a configuration declares; convert values to plain ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from .problems import SourceLocation, join


@dataclass(frozen=True)
class ObjectSpec:
    """An object to be instantiated: ``class_path`` called with ``init_args``.

    Attributes:
        class_path: dotted path of a class, or of any callable that returns the object.
        init_args: keyword arguments; values are plain or `ObjectSpec`, also inside lists and mappings.
        args: positional arguments, if ``init_args`` is a list.
        location: location of the object in the configuration file.
        path: dotted path of the object in the configuration.
        defaults: plain default values of arguments that are not given; they are recorded with the run.
        model: name in `trainer.models` if the configuration has ``model`` instead of ``class_path``, else "".
    """

    class_path: str
    init_args: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    location: SourceLocation = field(default=SourceLocation(""), compare=False)
    path: str = field(default="", compare=False)
    defaults: Mapping[str, Any] = field(default_factory=dict, compare=False)
    model: str = field(default="", compare=False)

    def to_dict(self, *, defaults: bool = True) -> dict[str, Any]:
        """Return the plain form, by default with defaults filled in."""
        arguments = to_plain({**self.init_args, **(self.defaults if defaults else {})}, defaults=defaults)
        if self.model:
            return {"model": self.model, **arguments}
        init_args = to_plain(self.args, defaults=defaults) or arguments
        return {"class_path": self.class_path, **({"init_args": init_args} if init_args else {})}


class Options(dict[str, Any]):
    """Keyword arguments of a section; `defaults` names those that were filled in."""

    defaults: tuple[str, ...] = ()


def to_plain(value: Any, *, defaults: bool = True) -> Any:
    """Convert objects, sections, paths and tuples to plain mappings, text and lists.

    Args:
        defaults: whether to keep arguments that were filled in with defaults.
    """
    if isinstance(value, ObjectSpec):
        return value.to_dict(defaults=defaults)
    if isinstance(value, BaseModel):
        return {name: to_plain(item, defaults=defaults) for name, item in value if item is not None}
    if isinstance(value, Mapping):
        omitted = value.defaults if isinstance(value, Options) and not defaults else ()
        return {key: to_plain(item, defaults=defaults) for key, item in value.items() if key not in omitted}
    if isinstance(value, list | tuple):
        return [to_plain(item, defaults=defaults) for item in value]
    return str(value) if isinstance(value, Path) else value


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings and lists, by dotted path.

    Empty containers and lists of scalars are leaves, too.
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
