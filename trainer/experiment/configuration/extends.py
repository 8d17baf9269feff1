"""Support ``extends: base.yaml``: an experiment that is based on another file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .problems import ConfigErrors, Problem, format_value
from .yaml_tree import Tree, read_tree

KEY = "extends"
_MAX_DEPTH = 10
_TYPE_KEYS = ("class_path", "model", "kind")  # if one differs, the base's arguments are dropped


def read_extended(path: Path, above: tuple[Path, ...] = ()) -> Tree:
    """Return the tree of the YAML file `path` merged over the files it extends.

    Mappings are merged key by key. Other values replace those of the base, and so do objects of another class, model or
    kind. In a list of files, later files override earlier ones. A relative path starts at the folder of the file that
    contains it.

    Args:
        above: resolved paths of the files that extend this file.

    Raises:
        ConfigErrors: a file cannot be read (see `read_tree`), is missing, or extends itself.
    """
    tree = read_tree(path)
    if not isinstance(tree.value, dict) or KEY not in tree.value:
        return tree
    named = tree.value[KEY]
    values = {key: value for key, value in tree.value.items() if key != KEY}
    chain = (*above, path.resolve())
    locations, merged = dict[Any, Any](), None
    for index, item in enumerate(named if isinstance(named, list) else [named]):
        file = path.parent / (item if isinstance(item, str) else "")
        if not isinstance(item, str) or not item.strip():
            message = f"received {format_value(item)}; accepts the path of an experiment, or a list of them"
        elif file.resolve() in chain or len(chain) > _MAX_DEPTH:
            files = " -> ".join(map(str, (*chain, file.resolve())))
            message = f"a file extends itself, or one of {_MAX_DEPTH} others: {files}"
        elif not file.is_file():
            there = f"there is no file {file} (paths are relative to {path.parent})"
            message = f"received {format_value(item)}; {there}"
        else:
            base = read_extended(file, chain)
            merged, locations = _merged(merged, base.value), locations | dict(base.locations)
            continue
        raise ConfigErrors([Problem(tree.location((KEY, index)), KEY, message)])
    return Tree(_merged(merged, values), {**locations, **tree.locations})


def _merged(base: Any, override: Any) -> Any:
    """Return the plain value `base`, overridden by `override`."""
    if isinstance(base, str) and isinstance(override, dict) and override.keys() == {"init_args"}:
        base = {"class_path": base}  # a bare class path is shorthand for a mapping with only that key
    if not isinstance(base, dict) or not isinstance(override, dict):
        return override
    if any(override.get(key) is not None and override[key] != base.get(key) for key in _TYPE_KEYS):
        return override
    return {**base, **{key: _merged(base.get(key), value) for key, value in override.items()}}
