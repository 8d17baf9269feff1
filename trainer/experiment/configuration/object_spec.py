"""Describe objects that a configuration declares; convert values to plain ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form with defaults filled in."""
        if self.model:
            return {"model": self.model, **to_plain({**self.init_args, **self.defaults})}
        plain: dict[str, Any] = {"class_path": self.class_path}
        if self.args:
            plain["init_args"] = to_plain(self.args)
        elif self.init_args or self.defaults:
            plain["init_args"] = to_plain({**self.init_args, **self.defaults})
        return plain


class Options(dict[str, Any]):
    """Keyword arguments of a section; `defaults` names those that were filled in."""

    defaults: tuple[str, ...] = ()


def to_plain(value: Any) -> Any:
    """Convert objects, sections, paths and tuples to plain mappings, text and lists."""
    if isinstance(value, ObjectSpec):
        return value.to_dict()
    if isinstance(value, BaseModel):
        return {name: to_plain(item) for name, item in value if item is not None}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def default_paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted paths of arguments that were filled in with defaults."""
    if isinstance(value, ObjectSpec):
        path = path if value.model else join(path, "init_args")
        yield from (join(path, name) for name in value.defaults)
        value = dict(value.init_args)
    if isinstance(value, Options):
        yield from (join(path, name) for name in value.defaults)
    children: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, BaseModel):
        children = value
    elif isinstance(value, Mapping):
        children = value.items()
    elif isinstance(value, list | tuple):
        children = enumerate(value)
    for key, item in children:
        yield from default_paths(item, join(path, str(key)))
