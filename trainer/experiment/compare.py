"""`trainer compare RUN...` and `trainer runs`: runs side by side, and the runs of a folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..checkpoint.folder_lock import claim
from ..checks import is_number
from ..errors import ConfigurationError, FolderInUseError
from . import rundir
from .rundir import Run
from .tree import join

_ABSENT = object()
_VERSIONS = ("python", "mindspore", "numpy", "mindspore-trainer", "platform", "machine", "cpus")
_NO_RESULTS = ("finished", "snapshot", "directions")


def compare(*folders: str | Path) -> str:
    """Return tables of runs side by side: differences of configuration and versions, then final results.

    Runs that do not fit beside each other into the terminal follow below each other.

    Raises:
        ConfigurationError: one of them is not a run folder.
    """
    runs = [Run.read(folder) for folder in folders]
    names = [str(run.path) for run in runs]
    versions = [{name: run.versions[name] for name in _VERSIONS if name in run.versions} for run in runs]
    differences = _differing([flatten({**run.config, "run_dir": None}) for run in runs])
    lines = _section("Configuration", names, differences, "the same")
    lines += _section("Versions", names, _differing(versions), "the same")
    heads = [*names, "difference"] if len(runs) == 2 else names
    lines += _section("Results", heads, _results([run.metrics for run in runs]), "none written yet")
    return "\n".join(lines)


def list_runs(folder: str | Path) -> str:
    """Return a table of the runs below a folder, the newest first: state, best metric, time, size.

    Raises:
        ConfigurationError: a file of a run cannot be read.
    """
    paths = sorted({path.parent for path in Path(folder).rglob(rundir.CONFIG)}, key=_started, reverse=True)
    runs = [run for run in map(Run.read, paths) if "command" in run.versions]  # a snapshot has a configuration too
    if not runs:
        return f"no runs below {folder}"
    rows = [[str(run.path), *_summary(run)] for run in runs]
    return "\n".join(table([["run", "state", "steps", "best", "started", "time", "size"], *rows]))


def _started(path: Path) -> float:
    return (path / rundir.CONFIG).stat().st_mtime


def _summary(run: Run) -> list[str]:
    metrics = run.metrics
    state = "running" if _is_running(run.path) else str(metrics.get("stop_reason", "killed"))
    steps = str(metrics["progress"]["global_step"]) if metrics else ""
    seconds = duration(metrics["seconds"]) if metrics else ""
    size = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file() and not path.is_symlink())
    started = str(run.versions.get("started", ""))[:16].replace("T", " ")
    return [state, steps, _main_result(metrics), started, seconds, f"{size / 1e6:,.1f} MB"]


def _is_running(folder: Path) -> bool:
    """Return whether a run holds the folder's lock; one that may not be locked by us counts as ended."""
    try:
        claim(folder, "run folder").release()
    except FolderInUseError:
        return True
    except (ConfigurationError, OSError):
        return False
    return False


def _main_result(metrics: Mapping[str, Any]) -> str:
    """Return the metric to judge a run by with its best value: of those that validate the first that is no loss."""
    best: Mapping[str, Any] = metrics.get("best", {})
    order = sorted(best, key=lambda name: (not name.startswith(("val_", "window_")), name.endswith("loss")))
    return f"{order[0]} {number(best[order[0]]['value'])}" if order else ""


def duration(seconds: float) -> str:
    """Return seconds as people read them: "3.7 s", "4 min 05 s", "2 h 10 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


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


def _differing(sides: list[dict[str, Any]]) -> list[list[str]]:
    keys = dict.fromkeys(key for side in sides for key in side)
    rows = [[key, *(side.get(key, _ABSENT) for side in sides)] for key in keys]
    return [[key, *map(_text, values)] for key, *values in rows if any(value != values[0] for value in values)]


def _results(metrics: list[Mapping[str, Any]]) -> list[list[str]]:
    sides = [flatten(side) if side else {} for side in map(_without_places, metrics)]
    rows = []
    for key in dict.fromkeys(key for side in sides for key in side):
        values = [side.get(key, _ABSENT) for side in sides]
        same = all(value == values[0] for value in values)
        if key.split(".")[0] in _NO_RESULTS or (same and not is_number(values[0])):
            continue
        row = [key.removeprefix("results."), *map(_text, values)]
        if len(values) == 2:
            numbers = all(map(is_number, values))
            row.append(f"{values[1] - values[0]:+.6g}" if numbers and not same else "")
        rows.append(row)
    return rows


def _without_places(metrics: Mapping[str, Any]) -> dict[str, Any]:
    best = {f"best {name}": best["value"] for name, best in metrics.get("best", {}).items()}
    return {name: value for name, value in metrics.items() if name != "best"} | best


def _text(value: Any) -> str:
    return "-" if value is _ABSENT else number(value)


def number(value: Any) -> str:
    """Return a value for a table: six significant digits of a float, anything else as it is."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _section(title: str, heads: list[str], rows: list[list[str]], empty: str) -> list[str]:
    if not rows:
        return [f"{title}: {empty}", ""]
    return [*table([[title, *heads], *rows]), ""]


def table(rows: list[list[str]], columns: int | None = None) -> list[str]:
    """Return the lines of a table whose first row is its head; columns after the first are aligned to the right.

    Args:
        rows: cells, as many in every row.
        columns: width to keep to; None for the terminal's, without bound where there is none. A table that is wider
            goes on below, with its first column repeated; no word is broken.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    room = shutil.get_terminal_size((10**6, 24)).columns if columns is None else columns
    parts: list[list[int]] = [[]]
    used = widths[0]
    for column in range(1, len(widths)):
        if parts[-1] and used + 2 + widths[column] > room:
            parts.append([])
            used = widths[0]
        parts[-1].append(column)
        used += 2 + widths[column]
    lines: list[str] = []
    for part in parts:
        lines += [""] if lines else []
        lines += _lines([[row[0], *(row[column] for column in part)] for row in rows])
    return lines


def _lines(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: list[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return [line(rows[0]), rule, *(line(row) for row in rows[1:])]
