"""Read YAML with the location of each value, apply ``--set``, and write YAML.

Scalars follow YAML 1.2: ``1e-3`` is a float and ``010`` is ten; ``yes``, ``no``, ``on``, ``off`` and dates are strings.
``true``, ``false``, ``null``, ``~``, ``0x1f``, ``1_000``, ``.inf`` and ``.nan`` are supported, and so are anchors,
aliases and merge keys (``<<``). Duplicate keys, tags that would create Python objects and anchors that contain
themselves are reported as problems.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...masking import mask_text, mask_value
from .problems import ConfigErrors, Problem, SourceLocation, dotted, format_value


@dataclass(frozen=True)
class Tree:
    """A configuration as plain values, with the source location of each value.

    Attributes:
        value: plain mappings, lists and scalars.
        locations: path -> (location of the key, location of the value). A path is a tuple of keys and list indices,
            both as strings; () is the root.
    """

    value: Any
    locations: Mapping[tuple[str, ...], tuple[SourceLocation, SourceLocation]]

    def get(self, path: Iterable[Any]) -> Any:
        """Return the value at `path`, or None."""
        value = self.value
        for key in path:
            if isinstance(value, dict):
                value = value.get(key)
            elif isinstance(value, list) and isinstance(key, int) and key < len(value):
                value = value[key]
            else:
                return None
        return value

    def location(self, path: Iterable[Any], *, of_key: bool = False) -> SourceLocation:
        """Return the location of a value or key, or of its nearest known parent."""
        known = tuple(map(str, path))
        while known not in self.locations:
            known, of_key = known[:-1], False
        return self.locations[known][0 if of_key else 1]


_TAG = "tag:yaml.org,2002:"
_RESOLVERS = (
    ("null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("int", re.compile(r"(?:[-+]?[0-9]+(?:_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")),
    (
        "float",
        re.compile(
            r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+.0123456789"),
    ),
    ("merge", re.compile(r"<<$"), ["<"]),
)
_SCALARS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "null": lambda text: None,
    "bool": lambda text: bool(("false", "true").index(text.lower())),
    "int": lambda text: int(text, 0) if text[:2] in ("0x", "0o") else int(text),
    "float": lambda text: float(re.sub(r"\.(?=inf|nan)", "", text.lower())),
    "merge": str,
    "value": str,
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 (PyYAML's own class attribute)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    # only double quotes escape line separators such as U+0085; other styles fold or drop them
    return dumper.represent_scalar(f"{_TAG}str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)
for _name, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(_TAG + _name, _pattern, _first)
    _Dumper.add_implicit_resolver(_TAG + _name, _pattern, _first)


def read_tree(path: Path) -> Tree:
    """Return the tree of the YAML file `path`."""
    location = SourceLocation(str(path))
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigErrors([Problem(location, "", f"cannot be read: {reason}")]) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"byte 0x{data[error.start]:02x} is not UTF-8; a configuration is UTF-8 text"
        raise ConfigErrors([Problem(_location_after(data[: error.start], b"\n", str(path)), "", message)]) from error
    return parse_tree(text, str(path))


def _location_after(before: Any, line_end: Any, source: str) -> SourceLocation:
    """Return the location at the end of `before`, which is text or bytes."""
    return SourceLocation(source, before.count(line_end) + 1, len(before) - before.rfind(line_end))


_HINTS = {  # advice, by a part of PyYAML's message
    "mapping values are not allowed": "; keys of one mapping begin in one column, and text with ': ' needs quotes",
    "'\\t'": "; indent with spaces",
    "could not find expected ':'": "; write KEY: VALUE",
    "expected <block end>": "; keys of one mapping, and items of one list, begin in one column",
}


def parse_tree(text: str, source: str, location: SourceLocation | None = None) -> Tree:
    """Return the tree of YAML `text`.

    Args:
        source: name of the file or override, for locations.
        location: location of an override; every value of `text` gets it.

    Raises:
        ConfigErrors: invalid YAML, more than one document, duplicate keys, keys that are not scalars, tags that are
            not plain data, anchors that contain themselves.
    """
    file_location = location or SourceLocation(source)
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            builder = _TreeBuilder(loader, source, location)
            if root is None:
                return Tree(None, {(): (location or SourceLocation(source, 1, 1),) * 2})
            value = builder.value(root, (), ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = location or (SourceLocation(source, mark.line + 1, mark.column + 1) if mark else file_location)
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        hint = next((hint for part, hint in _HINTS.items() if part in problem), "")
        raise ConfigErrors([Problem(where, "", f"invalid YAML: {problem}{hint}")]) from error
    except yaml.reader.ReaderError as error:
        where = location or _location_after(text[: error.position], "\n", source)
        message = f"invalid YAML: the character {chr(error.character)!r} is not allowed"
        raise ConfigErrors([Problem(where, "", message)]) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigErrors):
            raise
        raise ConfigErrors([Problem(file_location, "", f"invalid YAML: {error}")]) from error
    if builder.problems:
        raise ConfigErrors(builder.problems)
    return Tree(value, builder.locations)


class _TreeBuilder:
    """Converts PyYAML's nodes to plain values; collects their locations and problems."""

    def __init__(self, loader: _Loader, source: str, location: SourceLocation | None) -> None:
        self.loader, self.source, self.override_location = loader, source, location
        self.locations: dict[tuple[str, ...], tuple[SourceLocation, SourceLocation]] = {}
        self.problems: list[Problem] = []
        self._seen: set[int] = set()

    def _location(self, node: yaml.Node) -> SourceLocation:
        mark = node.start_mark
        return self.override_location or SourceLocation(self.source, mark.line + 1, mark.column + 1)

    def _refuse(self, node: yaml.Node, path: tuple[str, ...], message: str) -> None:
        self.problems.append(Problem(self._location(node), dotted(path), message))

    def value(
        self, node: yaml.Node, path: tuple[str, ...], above: tuple[int, ...], key: yaml.Node | None = None
    ) -> Any:
        """Return the plain value of a node; `above` has the ids of its ancestors."""
        self.locations[path] = (self._location(key or node), self._location(node))
        if id(node) in above:
            return self._refuse(node, path, "this anchor contains itself")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            return self._refuse(node, path, _tag_problem(node.tag))
        above = (*above, id(node))
        if not isinstance(node, yaml.MappingNode):
            return [self.value(child, (*path, str(index)), above) for index, child in enumerate(node.value)]
        if id(node) not in self._seen:
            self._seen.add(id(node))
            self._check_keys(node, path)
            self.loader.flatten_mapping(node)  # puts merged (<<) keys first, so the mapping's own keys override them
        named = [(self._scalar(key, path), key, item) for key, item in node.value if isinstance(key, yaml.ScalarNode)]
        return {name: self.value(item, (*path, str(name)), above, key) for name, key, item in named}

    def _check_keys(self, node: yaml.MappingNode, path: tuple[str, ...]) -> None:
        first: dict[Any, yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._refuse(key, path, "a key is a plain word or number; received a list or a mapping")
                continue
            name = self._scalar(key, path)
            if name is None:
                self._refuse(key, path, "a key is missing (null) here")
            elif name in first and key.tag != f"{_TAG}merge":
                first_location = self._location(first[name])
                self._refuse(key, (*path, str(name)), f"duplicate key; it was first given at {first_location}")
            first.setdefault(name, key)

    def _scalar(self, node: yaml.ScalarNode, path: tuple[str, ...]) -> Any:
        text, name = node.value, node.tag.removeprefix(_TAG)
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            message = f"{format_value(text)} contains half a surrogate pair, which cannot be written to a file"
            return self._refuse(node, path, message)
        if name not in _SCALARS:
            return self._refuse(node, path, _tag_problem(node.tag))
        try:
            return _SCALARS[name](text)
        except ValueError:
            return self._refuse(node, path, f"{format_value(text)} cannot be read as {name}")


def _tag_problem(tag: str) -> str:
    accepted = "a configuration holds plain mappings, lists, strings and numbers"
    return f"the tag {format_value(tag)} is not accepted; {accepted}"


def dump(value: Any) -> str:
    """Return plain values as YAML text that `parse_tree` reads back unchanged."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def dump_line(value: Any) -> str:
    """Return plain values as YAML text on one line."""
    return yaml.dump(
        [value], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize, default_flow_style=True
    )[1:-2]


def apply_overrides(tree: Tree, overrides: Iterable[str]) -> tuple[Tree, list[Problem]]:
    """Apply each ``a.b=c`` in order; return the new tree and the problems.

    The value is YAML: ``--set metrics=[auc]`` is a list, ``--set seed=2`` a number. A number in the path is a list
    index, counted from 0. Missing mappings on the path are created; if the schema rejects such a key, the problem has
    the ``--set`` as its location.

    An override is skipped and becomes a problem if it has no ``=``, has an empty key, has a value that is invalid YAML,
    or has a path through a scalar.
    """
    problems: list[Problem] = []
    for override in overrides:
        shown = mask_override(override)
        location = SourceLocation(f"--set {shown}" if shown.isprintable() else f"--set {shown!r}")
        path, equals, text = override.partition("=")
        keys = tuple(path.strip().split("."))
        if not equals or not all(keys):
            message = "accepts a dotted path, '=' and a value, as in trainer.amp_level=O2"
            problems.append(Problem(location, "", f"received {format_value(shown)}; {message}"))
            continue
        try:
            new = parse_tree(text, location.source, location)
            value = _with_value(tree.value, keys, new.value, location, ())
        except ConfigErrors as errors:
            problems.extend(errors.problems)
        else:
            created = {keys[:depth]: (location, location) for depth in range(1, len(keys))}
            key_location = tree.locations.get(keys, (location,))[0]
            below = {(*keys, *inner): place for inner, place in new.locations.items()}
            tree = Tree(value, {**created, **tree.locations, **below, keys: (key_location, location)})
    return tree, problems


def _with_value(value: Any, keys: tuple[str, ...], new: Any, location: SourceLocation, above: tuple[str, ...]) -> Any:
    """Return a copy of `value` with `new` at the path `keys`."""
    if not keys:
        return new
    key, path = keys[0], (*above, keys[0])
    if isinstance(value, list):
        if not (key.isascii() and key.isdecimal()) or int(key) >= len(value):
            accepted = f"0 to {len(value) - 1}" if value else "not possible, the list is empty"
            message = f"an index of this list is {accepted}; received {format_value(key)}"
            raise ConfigErrors([Problem(location, dotted(path), message)])
        index = int(key)
        return [*value[:index], _with_value(value[index], keys[1:], new, location, path), *value[index + 1 :]]
    if value is None:
        value = {}
    elif isinstance(value, str) and key in ("class_path", "init_args"):
        value = {"class_path": value}  # a bare class path is shorthand for a mapping with only that key
    if not isinstance(value, dict):
        where = dotted(above) or "the configuration"
        message = f"{where} is {format_value(value)}, which has no keys to set"
        raise ConfigErrors([Problem(location, dotted(path), message)])
    return {**value, key: _with_value(value.get(key), keys[1:], new, location, path)}


def mask_override(override: str) -> str:
    """Return an override ``a.b=c`` with its credentials masked."""
    path, _, text = override.partition("=")
    try:
        plain = parse_tree(text, path).value
    except ConfigErrors:
        return mask_text(override)
    hidden = mask_value(plain, path.strip())
    return override if hidden == plain else f"{path}={json.dumps(hidden)}"
