"""Reads YAML as nodes with locations, applies ``--set a.b=c``, writes YAML.

Scalars follow YAML 1.2: ``1e-3`` is a float, ``010`` is ten, ``yes``, ``no``, ``on`` and ``off`` are strings, and so
are dates; ``true``, ``false``, ``null``, ``~``, ``0x1f``, ``1_000``, ``.inf`` and ``.nan`` work. Anchors, aliases and
merge keys (``<<``) work; duplicate keys, tags that would create Python objects and anchors that contain themselves are
reported as problems.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...masking import mask_text, mask_value
from .problems import ConfigErrors, Problem, SourceLocation, format_value, join

Scalar = str | int | float | bool | None
MAX_DEPTH = 50
MAX_VALUES = 100_000
MAX_BYTES = 1 << 20
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_TOO_MANY = f"expands to more than {MAX_VALUES:,} values"
_TOO_LONG = f"is longer than {MAX_BYTES:,} bytes; a configuration names data and does not hold them"


@dataclass(frozen=True, eq=False)
class Node:
    """A value of a configuration and its location."""

    value: Scalar | tuple[Node, ...] | dict[Any, Entry]
    location: SourceLocation

    def get(self, key: Scalar) -> Node | None:
        """Return the node under `key` of a mapping, or None."""
        entry = self.value.get(key) if isinstance(self.value, dict) else None
        return entry.node if entry is not None else None

    def plain(self) -> Any:
        """Return the value as plain dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: entry.node.plain() for key, entry in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value


@dataclass(frozen=True, eq=False)
class Entry:
    """The location of a key, and its value."""

    location: SourceLocation
    node: Node


_NULL, _BOOL, _INT, _FLOAT, _STR, _MERGE = (
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "merge")
)
_RESOLVERS = (
    (_NULL, re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    (_BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    (_INT, re.compile(r"(?:[-+]?[0-9]+(?:_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")),
    (
        _FLOAT,
        re.compile(
            r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+.0123456789"),
    ),
    (_MERGE, re.compile(r"<<$"), ["<"]),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 (PyYAML's own class attribute)
    depth = 0
    count = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        # Limit early: PyYAML needs 20 us per value; nesting costs it quadratic time and a stack frame or two per level.
        self.depth += 1
        self.count += 1
        if self.count > 2 * MAX_VALUES:  # keys count too
            raise yaml.composer.ComposerError(None, None, _TOO_MANY, self.peek_event().start_mark)
        if self.depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, _TOO_DEEP, self.peek_event().start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    # other styles fold or drop line separators such as U+0085; double quotes escape them
    return dumper.represent_scalar(_STR, text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)
for _tag, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)


def read_tree(path: Path) -> Node:
    """Return the tree of the YAML file `path`."""
    location = SourceLocation(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigErrors([Problem(location, "", f"cannot be read: {reason}")]) from error
    if len(data) > MAX_BYTES:
        raise ConfigErrors([Problem(location, "", _TOO_LONG)])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"byte 0x{data[error.start]:02x} is not UTF-8; a configuration is UTF-8 text"
        raise ConfigErrors([Problem(_after(data[: error.start], b"\n", str(path)), "", message)]) from error
    return parse_tree(text, str(path))


def _after(before: Any, line_end: Any, source: str) -> SourceLocation:
    """Return the location behind `before`, text or bytes."""
    return SourceLocation(source, before.count(line_end) + 1, len(before) - before.rfind(line_end))


def parse_tree(text: str, source: str, location: SourceLocation | None = None) -> Node:
    """Return the tree of YAML `text`; an override's nodes have one location.

    Raises:
        ConfigErrors: invalid YAML, more than one document, duplicate keys, keys that are not scalars, tags that are
            not plain data, values nested deeper than 50, anchors that contain themselves or expand to more than
            100,000 values, more than 1 MB of text.
    """
    if len(text) > MAX_BYTES:
        raise ConfigErrors([Problem(location or SourceLocation(source), "", _TOO_LONG)])
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = location or (SourceLocation(source, mark.line + 1, mark.column + 1) if mark else SourceLocation(source))
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigErrors([Problem(where, "", f"invalid YAML: {problem}")]) from error
    except yaml.reader.ReaderError as error:
        where = location or _after(text[: error.position], "\n", source)
        message = f"invalid YAML: the character {chr(error.character)!r} is not allowed"
        raise ConfigErrors([Problem(where, "", message)]) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigErrors([Problem(location or SourceLocation(source), "", f"invalid YAML: {error}")]) from error
    if root is None:
        return Node(None, location or SourceLocation(source, 1, 1))
    converter = _Converter(source, location)
    tree = converter.convert(root, "", ())
    if converter.problems:
        raise ConfigErrors(converter.problems)
    return tree


def dump(value: Any) -> str:
    """Return plain values as YAML text that `parse_tree` reads back unchanged."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def dump_line(value: Any) -> str:
    """Return plain values as YAML text on one line."""
    return yaml.dump(
        [value], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize, default_flow_style=True
    )[1:-2]


class _Converter:
    """Converts PyYAML's nodes to `Node` and collects problems."""

    def __init__(self, source: str, location: SourceLocation | None) -> None:
        self.source, self.fixed = source, location
        self.problems: list[Problem] = []
        self._done: dict[int, Node] = {}
        self._measures: dict[int, tuple[int, int]] = {}

    def location(self, node: yaml.Node) -> SourceLocation:
        return self.fixed or SourceLocation(self.source, node.start_mark.line + 1, node.start_mark.column + 1)

    def add(self, node: yaml.Node, path: str, message: str) -> Node:
        location = self.location(node)
        self.problems.append(Problem(location, path, message))
        return Node(None, location)

    def convert(self, node: yaml.Node, path: str, above: tuple[int, ...]) -> Node:
        if id(node) in above:
            return self.add(node, path, "this anchor contains itself")
        if id(node) not in self._done:
            if isinstance(node, yaml.MappingNode):
                converted = self._mapping(node, path, (*above, id(node)))
            elif isinstance(node, yaml.SequenceNode):
                converted = self._sequence(node, path, (*above, id(node)))
            else:
                converted = self._scalar(node, path)
            self._done[id(node)] = self._bounded(node, path, converted)
        return self._done[id(node)]

    def _bounded(self, node: yaml.Node, path: str, node_value: Node) -> Node:
        """Return `node_value`, or an empty node if aliases expand it past the limits."""
        children: Any = node_value.value if isinstance(node_value.value, tuple) else ()
        if isinstance(node_value.value, dict):
            children = [entry.node for entry in node_value.value.values()]
        measures = [self._measures.get(id(child), (1, 1)) for child in children]
        size, depth = 1 + sum(size for size, _ in measures), 1 + max((depth for _, depth in measures), default=0)
        if depth > MAX_DEPTH or size > MAX_VALUES:
            return self.add(node, path, _TOO_DEEP if depth > MAX_DEPTH else _TOO_MANY)
        self._measures[id(node_value)] = (size, depth)
        return node_value

    def _sequence(self, node: yaml.SequenceNode, path: str, above: tuple[int, ...]) -> Node:
        if node.tag != "tag:yaml.org,2002:seq":
            return self.add(node, path, _tag_refused(node.tag))
        children = [self.convert(child, join(path, str(i)), above) for i, child in enumerate(node.value)]
        return Node(tuple(children), self.location(node))

    def _mapping(self, node: yaml.MappingNode, path: str, above: tuple[int, ...]) -> Node:
        if node.tag != "tag:yaml.org,2002:map":
            return self.add(node, path, _tag_refused(node.tag))
        own: dict[Any, Entry] = {}
        merged: dict[Any, Entry] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                for entries in self._merged(value_node, path, above):
                    merged = {**entries, **merged}  # the first of several merged mappings wins
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.add(key_node, path, "a key is a plain word or number; received a list or a mapping")
                continue
            key: Any = self._scalar(key_node, path).value
            if key is None:
                self.add(key_node, path, "a key is missing (null) here")
            elif key in own:
                self.add(key_node, join(path, key), f"duplicate key; it is given first at {own[key].location}")
            else:
                own[key] = Entry(self.location(key_node), self.convert(value_node, join(path, key), above))
        inherited = {key: entry for key, entry in merged.items() if key not in own}
        return Node({**inherited, **own}, self.location(node))

    def _merged(self, node: yaml.Node, path: str, above: tuple[int, ...]) -> list[dict[Any, Entry]]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        bases = []
        for part in parts:
            base = self.convert(part, join(path, "<<"), above)
            if isinstance(base.value, dict):
                bases.append(base.value)
            elif not isinstance(part, yaml.MappingNode):  # others are already reported
                message = f"merges a mapping or a list of mappings; received {format_value(base.plain())}"
                self.add(part, join(path, "<<"), message)
        return bases

    def _scalar(self, node: yaml.Node, path: str) -> Node:
        text, tag = node.value, node.tag
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            return self.add(node, path, f"{format_value(text)} holds half a surrogate pair, which no file can hold")
        try:
            if tag == _STR:
                value: Scalar = text
            elif tag == _NULL:
                value = None
            elif tag == _BOOL:
                value = {"true": True, "false": False}[text.lower()]
            elif tag == _INT:
                value = int(text, 0) if text[:2] in ("0x", "0o") else int(text)
            elif tag == _FLOAT:
                value = float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
            elif tag in (_MERGE, "tag:yaml.org,2002:value"):
                value = text
            else:
                return self.add(node, path, _tag_refused(tag))
        except (ValueError, KeyError):
            return self.add(node, path, f"{format_value(text)} cannot be read as {tag.rpartition(':')[2]}")
        return Node(value, self.location(node))


def _tag_refused(tag: str) -> str:
    accepted = "a configuration holds plain mappings, lists, strings and numbers"
    return f"the tag {format_value(tag)} is not accepted; {accepted}"


OBJECT_KEYS = ("class_path", "init_args")


def apply_overrides(root: Node, overrides: Iterable[str]) -> tuple[Node, list[Problem]]:
    """Apply each ``a.b=c`` in order; return the new tree and the problems.

    The value is read as YAML (``--set metrics=[auc]`` is a list, ``--set seed=2`` a number); a number in the path is an
    index in a list, counted from 0. Missing mappings on the path are created, so a wrong key is reported by the schema,
    with the ``--set`` it came from.

    An override is skipped as a problem if it has no ``=``, an empty key or a value that is not YAML, or if its path
    leads through a scalar.
    """
    problems: list[Problem] = []
    for override in overrides:
        shown = masked(override)
        location = SourceLocation(f"--set {shown}" if shown.isprintable() else f"--set {shown!r}")
        path, equals, text = override.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            message = "accepts a dotted path, '=' and a value, as in trainer.amp_level=O2"
            problems.append(Problem(location, "", f"received {format_value(shown)}; {message}"))
            continue
        try:
            root = _replace(root, keys, parse_tree(text, location.source, location), location, "")
        except ConfigErrors as errors:
            problems.extend(errors.problems)
    return root, problems


def masked(override: str) -> str:
    """Return an ``a.b=c`` with the credentials in it masked."""
    path, _, text = override.partition("=")
    try:
        plain = parse_tree(text, path).plain()
    except ConfigErrors:
        return mask_text(override)
    hidden = mask_value(plain, path.strip())
    return override if hidden == plain else f"{path}={json.dumps(hidden)}"


def _replace(node: Node, keys: list[str], value: Node, location: SourceLocation, path: str) -> Node:
    if not keys:
        return value
    key, below = keys[0], f"{path}.{keys[0]}" if path else keys[0]
    if isinstance(node.value, tuple):
        if not (key.isascii() and key.isdecimal()) or int(key) >= len(node.value):
            accepted = f"0 to {len(node.value) - 1}" if node.value else "nothing, the list is empty"
            message = f"a place in this list is {accepted}; received {format_value(key)}"
            raise ConfigErrors([Problem(location, below, message)])
        items = list(node.value)
        items[int(key)] = _replace(items[int(key)], keys[1:], value, location, below)
        return Node(tuple(items), node.location)
    if node.value is None:
        node = Node({}, location)
    elif isinstance(node.value, str) and key in OBJECT_KEYS:
        # a bare class path is shorthand for a mapping with only that key
        node = Node({"class_path": Entry(node.location, node)}, node.location)
    if not isinstance(node.value, dict):
        message = f"{path or 'the configuration'} is {format_value(node.value)}, which has nothing below it to set"
        raise ConfigErrors([Problem(location, below, message)])
    old = node.value.get(key) or Entry(location, Node(None, location))
    entry = Entry(old.location, _replace(old.node, keys[1:], value, location, below))
    return Node({**node.value, key: entry}, node.location)
