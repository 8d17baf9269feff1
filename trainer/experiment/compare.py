"""`trainer compare RUN RUN`: how two runs were made differently and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..checks import is_number
from .rundir import Run
from .tree import join

_ABSENT = object()
_VERSIONS = ("python", "mindspore", "numpy", "mindspore-trainer", "platform", "machine", "cpus")


_NO_RESULTS = ("finished", "snapshot")


def compare(first: str | Path, second: str | Path) -> str:
    """Return a table of two runs side by side: differences of configuration and versions, then final metrics.

    Raises:
        ConfigurationError: one of them is not a run folder.
    """
    runs = Run.read(first), Run.read(second)
    names = [str(run.path) for run in runs]
    versions = [{name: run.versions.get(name) for name in _VERSIONS if name in run.versions} for run in runs]
    rows = _differences(*(flatten({**run.config, "run_dir": None}) for run in runs))
    lines = _section("Configuration", names, rows, "the same")
    lines += _section("Versions", names, _differences(*versions), "the same")
    lines += _section("Results", [*names, "difference"], _results(*(run.metrics for run in runs)), "none written yet")
    return "\n".join(lines)


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings and lists by dotted path; an empty one is a leaf."""
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


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[list[str]]:
    keys = [*first, *(key for key in second if key not in first)]
    pairs = [(key, first.get(key, _ABSENT), second.get(key, _ABSENT)) for key in keys]
    return [[key, _text(left), _text(right)] for key, left, right in pairs if left != right]


def _results(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[list[str]]:
    flat = flatten(first) if first else {}, flatten(second) if second else {}
    rows = []
    for key in [*flat[0], *(key for key in flat[1] if key not in flat[0])]:
        left, right = (side.get(key, _ABSENT) for side in flat)
        if key in _NO_RESULTS or (left == right and not is_number(left)):
            continue
        difference = f"{right - left:+.6g}" if is_number(left) and is_number(right) and left != right else ""
        rows.append([key.removeprefix("results."), _text(left), _text(right), difference])
    return rows


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _section(title: str, heads: list[str], rows: list[list[str]], empty: str) -> list[str]:
    if not rows:
        return [f"{title}: {empty}", ""]
    return [*table([[title, *heads], *rows]), ""]


def table(rows: list[list[str]]) -> list[str]:
    """Return the lines of a table whose first row is its head; columns after the first are aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: list[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return [line(rows[0]), rule, *(line(row) for row in rows[1:])]
