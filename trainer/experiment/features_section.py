"""The section `features` of an experiment: what is wrong with it, by key, and the `Features` it declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, did_you_mean
from .problems import Problem, show
from .tree import Node, join

if TYPE_CHECKING:
    from ..features import Features

FEATURES_KEYS = ("columns", "label", "weight", "group", "event_time", "label_dtype")
_ROWS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".arrows", ".feather")
_ARGUMENT = re.compile(r"\w+\((\w+)=")


def make_features(section: Mapping[str, Any]) -> Features:
    """Return what the section declares.

    Raises:
        ConfigurationError: it cannot work; the message begins with the key.
    """
    from ..features import Features

    return Features(section["columns"], **{name: value for name, value in section.items() if name != "columns"})


def is_path_of_rows(text: str) -> bool:
    """Return whether a text names a file or folder of rows, and no class."""
    return text.lower().endswith(_ROWS) or "/" in text or Path(text).is_dir()


def feature_problems(node: Node, path: str, *, together: bool) -> list[Problem]:
    """Return what is wrong with each feature, at the key it is wrong with; else, if `together`, with all of them."""
    columns = node.get("columns")
    assert columns is not None
    assert isinstance(columns.value, tuple)
    problems = [
        problem
        for index, item in enumerate(columns.value)
        for problem in _of_feature(item, join(join(path, "columns"), index))
    ]
    if together and not problems:
        try:
            make_features(node.plain())
        except (ConfigurationError, TypeError) as error:
            problems.append(Problem(node.place, path, str(error)))
    return problems


def _of_feature(node: Node, path: str) -> Iterator[Problem]:
    from ..features import KINDS
    from ..features.features import as_feature

    if not isinstance(node.value, dict):
        yield Problem(node.place, path, f"received {show(node.plain(), path)}; accepts a mapping with kind and name")
        return
    entries = node.value
    kind = None if "kind" not in entries else entries["kind"].node.value
    if kind not in KINDS:
        place = entries["kind"].place if "kind" in entries else node.place
        hint = did_you_mean(kind, KINDS) if isinstance(kind, str) else ""
        yield Problem(place, join(path, "kind"), f"received {show(kind)}; accepts {', '.join(KINDS)}{hint}")
        return
    accepted = ["kind", *KINDS[kind].__dataclass_fields__]
    unknown = [name for name in entries if name not in accepted]
    for name in unknown:
        message = (
            f"unknown key; a feature of kind {kind} accepts {', '.join(accepted)}{did_you_mean(str(name), accepted)}"
        )
        yield Problem(entries[name].place, join(path, name), message)
    if unknown:
        return
    try:
        as_feature(node.plain())
    except (ConfigurationError, TypeError) as error:
        argument = _ARGUMENT.match(str(error))
        entry = entries.get(argument.group(1)) if argument else None
        place = node.place if entry is None else entry.place
        yield Problem(place, path if entry is None else join(path, argument.group(1)), str(error))
