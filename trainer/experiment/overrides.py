"""``--set a.b=c``: values from the command line put in their place in a configuration tree."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ..masking import mask_text, mask_value
from .problems import ConfigErrors, Place, Problem, show
from .tree import Entry, Node, parse_tree

OBJECT_KEYS = ("class_path", "init_args")


def apply_overrides(root: Node, overrides: Iterable[str]) -> tuple[Node, list[Problem]]:
    """Return `root` with each ``a.b=c`` of `overrides` set, in the order given, and what is wrong with them.

    The value is read as YAML (``--set metrics=[auc]`` is a list, ``--set seed=2`` a number); a number in the path
    is the place in a list, counted from 0. Mappings on the way are made where there are none, so a wrong key is
    reported by the schema, with the ``--set`` it came from.

    Wrong are an override without ``=``, with an empty key, with a value that is not YAML, or through a value that
    has nothing below it; such an override is left out.
    """
    problems: list[Problem] = []
    for override in overrides:
        shown = masked(override)
        place = Place(f"--set {shown}" if shown.isprintable() else f"--set {shown!r}")
        path, equals, text = override.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            message = f"received {show(shown)}; accepts a dotted path, '=' and a value, as in trainer.amp_level=O2"
            problems.append(Problem(place, "", message))
            continue
        try:
            root = _replace(root, keys, parse_tree(text, place.source, place), place, "")
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


def _replace(node: Node, keys: list[str], value: Node, place: Place, path: str) -> Node:
    if not keys:
        return value
    key, below = keys[0], f"{path}.{keys[0]}" if path else keys[0]
    if isinstance(node.value, tuple):
        if not (key.isascii() and key.isdecimal()) or int(key) >= len(node.value):
            accepted = f"0 to {len(node.value) - 1}" if node.value else "nothing, the list is empty"
            raise ConfigErrors([Problem(place, below, f"a place in this list is {accepted}; received {show(key)}")])
        items = list(node.value)
        items[int(key)] = _replace(items[int(key)], keys[1:], value, place, below)
        return Node(tuple(items), node.place)
    if node.value is None:
        node = Node({}, place)
    elif isinstance(node.value, str) and key in OBJECT_KEYS:
        # a bare class path is short for a mapping with only that key
        node = Node({"class_path": Entry(node.place, node)}, node.place)
    if not isinstance(node.value, dict):
        message = f"{path or 'the configuration'} is {show(node.value)}, which has nothing below it to set"
        raise ConfigErrors([Problem(place, below, message)])
    if key in node.value:
        old = node.value[key]
        entry = Entry(old.place, _replace(old.node, keys[1:], value, place, below))
    else:
        entry = Entry(place, _replace(Node(None, place), keys[1:], value, place, below))
    return Node({**node.value, key: entry}, node.place)
