"""``extends: base.yaml``: an experiment that changes another one; every value keeps the place it was written at."""

from __future__ import annotations

from pathlib import Path

from .problems import ConfigErrors, Problem, show
from .tree import Entry, Node, read_tree

KEY = "extends"
_MOST = 10
_OBJECTS = ("class_path", "model", "kind")  # what an object is; another one has no use for the arguments


def read_extended(path: Path) -> Node:
    """Return the tree of the YAML file `path` over those it extends.

    Mappings are merged key by key; anything else replaces what it extends, as do objects of another class, model or
    kind. Of several files in a list the later ones come over the earlier ones. Paths are relative to the file.

    Raises:
        ConfigErrors: see `read_tree`; or a file extends itself, or none that can be read.
    """
    return _read(path, ())


def _read(path: Path, above: tuple[Path, ...]) -> Node:
    root = read_tree(path)
    if not isinstance(root.value, dict) or KEY not in root.value:
        return root
    entries = dict(root.value)
    named = entries.pop(KEY).node
    own = Node(entries, root.place)
    items = named.value if isinstance(named.value, tuple) else (named,)
    base: Node | None = None
    for item in items:
        if not isinstance(item.value, str) or not item.value.strip():
            message = f"received {show(item.value)}; accepts the path of an experiment, or a list of them"
            raise ConfigErrors([Problem(item.place, KEY, message)])
        file = path.parent / item.value
        chain = (*above, path.resolve())
        if file.resolve() in chain or len(chain) > _MOST:
            files = " -> ".join(map(str, (*chain, file.resolve())))
            raise ConfigErrors([Problem(item.place, KEY, f"a file extends itself, or one of {_MOST} others: {files}")])
        if not file.is_file():
            message = f"received {show(item.value)}; there is no file {file} (paths are relative to {path.parent})"
            raise ConfigErrors([Problem(item.place, KEY, message)])
        read = _read(file, chain)
        base = read if base is None else merged(base, read)
    return own if base is None else merged(base, own)


def merged(base: Node, over: Node) -> Node:
    """Return `base` changed by `over`."""
    if not isinstance(base.value, dict) or not isinstance(over.value, dict) or _is_another(base, over):
        return over
    entries = dict(base.value)
    for key, entry in over.value.items():
        before = entries.get(key)
        entries[key] = entry if before is None else Entry(entry.place, merged(before.node, entry.node))
    return Node(entries, over.place)


def _is_another(base: Node, over: Node) -> bool:
    for key in _OBJECTS:
        before, after = base.get(key), over.get(key)
        if after is not None and (before is None or before.value != after.value):
            return True
    return False
