"""``extends: base.yaml``: an experiment based on another file."""

from __future__ import annotations

from pathlib import Path

from .problems import ConfigErrors, Problem, format_value
from .yaml_tree import Entry, Node, read_tree

KEY = "extends"
_MOST = 10
_OBJECTS = ("class_path", "model", "kind")  # keys that identify an object; a different one drops the base arguments


def read_extended(path: Path, above: tuple[Path, ...] = ()) -> Node:
    """Return the tree of the YAML file `path` merged over the files it extends.

    Mappings are merged key by key; anything else replaces the base value, including objects of another class, model or
    kind. In a list of files, later ones override earlier ones. Paths are relative to the file; `above` are the resolved
    files that extend it.

    Raises:
        ConfigErrors: see `read_tree`; or a file extends itself or an unreadable file.
    """
    root = read_tree(path)
    if not isinstance(root.value, dict) or KEY not in root.value:
        return root
    entries = dict(root.value)
    named = entries.pop(KEY).node
    own = Node(entries, root.location)
    items = named.value if isinstance(named.value, tuple) else (named,)
    base: Node | None = None
    for item in items:
        file = path.parent / (item.value if isinstance(item.value, str) else "")
        chain = (*above, path.resolve())
        if not isinstance(item.value, str) or not item.value.strip():
            message = f"received {format_value(item.value)}; accepts the path of an experiment, or a list of them"
        elif file.resolve() in chain or len(chain) > _MOST:
            files = " -> ".join(map(str, (*chain, file.resolve())))
            message = f"a file extends itself, or one of {_MOST} others: {files}"
        elif not file.is_file():
            there = f"there is no file {file} (paths are relative to {path.parent})"
            message = f"received {format_value(item.value)}; {there}"
        else:
            read = read_extended(file, chain)
            base = read if base is None else merged(base, read)
            continue
        raise ConfigErrors([Problem(item.location, KEY, message)])
    return own if base is None else merged(base, own)


def merged(base: Node, over: Node) -> Node:
    """Return `base` overridden by `over`."""
    if not isinstance(base.value, dict) or not isinstance(over.value, dict) or _is_another(base, over):
        return over
    entries = dict(base.value)
    for key, entry in over.value.items():
        before = entries.get(key)
        entries[key] = entry if before is None else Entry(entry.location, merged(before.node, entry.node))
    return Node(entries, over.location)


def _is_another(base: Node, over: Node) -> bool:
    kinds = [(base.get(key), over.get(key)) for key in _OBJECTS]
    return any(after and (before is None or before.value != after.value) for before, after in kinds)
