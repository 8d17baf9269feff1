"""Sources of a table's ids: saved with the features, compared before reuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .feature import Feature


def id_sources(features: Iterable[Feature]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return table -> feature -> what decides its ids in that table, as JSON."""
    sources: dict[str, dict[str, dict[str, Any]]] = {}
    for feature in features:
        for table, source in feature.id_sources().items():
            sources.setdefault(table, {})[feature.name] = source
    return sources


def id_problems(
    features: Iterable[Feature], state: Mapping[str, Any], table_there: Callable[[str], str] = str
) -> dict[str, str]:
    """Return table -> why its ids mean other rows in a state; empty without conflict.

    Args:
        features: the declared ones.
        state: of `Features.state_dict`; one of a version that did not record the sources contradicts nothing.
        table_there: the name of a table there.
    """
    problems: dict[str, str] = {}
    recorded = state["json"].get("ids") or {}
    for table, of_table in id_sources(features).items():
        saved = recorded.get(table_there(table)) or {}
        for name, declared in of_table.items():
            if saved and declared not in saved.values():
                other = name if name in saved else next(iter(saved))
                problems.setdefault(
                    table,
                    f"feature {name!r} is declared with {_shown(declared)}, and the rows of its table are of "
                    f"{_named(other, name)} with {_shown(saved[other])}: the same value would find another row, or "
                    "none. Declare it as it was, or give it a table of its own, under another name",
                )
    return problems


def _named(other: str, name: str) -> str:
    return "the same feature" if other == name else f"feature {other!r}"


def _shown(source: Mapping[str, Any]) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in source.items() if name != "kind")
    return arguments if source["kind"] == "values" else f"{source['kind']}: {arguments}"
