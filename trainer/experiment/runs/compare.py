"""Format tables that compare runs, or list the runs in a folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from callbacks.output import without_equal_losses

from ...checkpoint.folder_lock import claim
from ...checks import four_digits, is_number
from ...errors import ConfigurationError, FolderInUseError
from ..configuration.object_spec import flatten
from . import run_folder
from .run_folder import Run

_ABSENT = object()


_VERSIONS = ("python", "mindspore", "numpy", "mindspore-trainer", "platform", "machine", "cpus")
_HIDDEN_RESULTS = ("finished", "snapshot", "directions", "features", "drift", "seconds_before")
_LABELS = {
    "progress.epoch": "epochs",
    "progress.global_step": "steps",
    "progress.samples_seen": "rows",
    "best loss": "best train_loss",
    "stop_reason": "state",
    "sink_mode": "steps per call",
}
_STATES = {
    "limit": "finished",
    "stream_end": "finished",
    "idle": "finished",
    "callback": "stopped early",
    "user": "stopped",
    "signal": "interrupted",
    "non_finite": "not finite",
    "exception": "failed",
}


def compare(*folders: str | Path) -> str:
    """Return tables of the differences between runs, and of their results.

    Columns that do not fit into the terminal continue in a second table below.
    """
    runs = [Run.read(folder) for folder in folders]
    names = [str(run.path) for run in runs]
    versions = [{name: run.versions[name] for name in _VERSIONS if name in run.versions} for run in runs]
    differences = _differing_texts([flatten({**run.config, "run_dir": None}) for run in runs])
    lines = _section("Configuration", names, differences, "the same")
    lines += _section("Versions", names, _differing_texts(versions), "the same")
    headings = [*names, "difference"] if len(runs) == 2 else names
    metrics = [run.metrics for run in runs]
    lines += _section("Results", headings, _results(metrics), "the same" if any(metrics) else "none written yet")
    return "\n".join(lines)


def list_runs(folder: str | Path) -> str:
    """Return a table of the runs below a folder, newest first."""
    configs = sorted(Path(folder).rglob(run_folder.CONFIG), key=lambda path: path.stat().st_mtime, reverse=True)
    # snapshots and other software have such files too, but no versions.json with a command
    folders = [path.parent for path in configs]
    runs = [Run.read(path) for path in folders if "command" in run_folder.read_json_or(path / run_folder.VERSIONS, {})]
    if not runs:
        return f"no runs below {folder}"
    rows = [[str(run.path), *_summary(run)] for run in runs]
    return "\n".join(table([["run", "state", "steps", "best", "started", "time", "size"], *rows]))


def _summary(run: Run) -> list[str]:
    metrics = run.metrics
    state, _ = state_of(run)
    steps = str(metrics["progress"]["global_step"]) if metrics else ""
    seconds = duration(metrics["seconds"]) if metrics else ""
    size = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file() and not path.is_symlink())
    started = str(run.versions.get("started", ""))[:16].replace("T", " ")  # cut to minutes
    started = started.removeprefix(f"{run_folder.now()[:4]}-")
    return [state, steps, _main_metric(metrics), started, seconds, f"{size / 1e6:,.1f} MB"]


def state_of(run: Run) -> tuple[str, str]:
    """Return (state of a run in one or two words, reason for its end or "").

    A run is "killed" if its last process ended without writing results.
    """
    if is_running(run.path):
        return "running", ""
    if not run.metrics or run.resumed_since_results():
        return "killed", ""
    reason = str(run.metrics.get("stop_reason", "killed"))
    return _STATES.get(reason.partition(":")[0], reason), reason


def is_running(folder: Path) -> bool:
    """Return whether a process holds the folder's lock; False if this is unknown."""
    try:
        claim(folder, "run folder").release()
    except (ConfigurationError, OSError) as error:
        return isinstance(error, FolderInUseError)
    return False


def _main_metric(metrics: Mapping[str, Any]) -> str:
    """Return a run's main metric with its best value; a loss only without metrics."""
    # a value that is not finite is None
    best = {name: best for name, best in metrics.get("best", {}).items() if best["value"] is not None}
    names = sorted(best, key=lambda name: (not name.startswith(("val_", "window_")), name.endswith("loss")))
    return f"{names[0]} {four_digits(best[names[0]]['value'])}" if names else ""


def duration(seconds: float) -> str:
    """Format seconds for display: "3.7 s", "4 min 05 s", "2 h 10 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _differing_rows(values_by_run: list[dict[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Yield (key, values of all runs) for each key whose values differ."""
    for key in dict.fromkeys(key for values_of_run in values_by_run for key in values_of_run):
        values = [values_of_run.get(key, _ABSENT) for values_of_run in values_by_run]
        if any(value != values[0] for value in values):
            yield key, values


def _differing_texts(values_by_run: list[dict[str, Any]]) -> list[list[str]]:
    return [[key, *map(_text, values)] for key, values in _differing_rows(values_by_run)]


def _results(metrics: list[Mapping[str, Any]]) -> list[list[str]]:
    rows = []
    shown = [_distinct_results(values_of_run) if values_of_run else {} for values_of_run in metrics]
    for key, values in _differing_rows([flatten(values_of_run) for values_of_run in shown]):
        if key.split(".")[0] in _HIDDEN_RESULTS:
            continue
        row = [_LABELS.get(key, key.removeprefix("results.")), *map(_text, values)]
        if len(values) == 2:
            row.append(f"{values[1] - values[0]:+.6g}" if all(map(is_number, values)) else "")
        rows.append(row)
    return rows


def _distinct_results(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's results for a table, without metrics that repeat another's value."""
    shown = {name: value for name, value in metrics.items() if name not in ("best", "baseline")}
    shown["results"] = without_equal_losses(metrics.get("results", {}))
    shown["stop_reason"] = _STATES.get(kind := str(metrics.get("stop_reason")).partition(":")[0], kind)
    best = {name: best["value"] for name, best in metrics.get("best", {}).items()}
    shown |= {f"best {name}": value for name, value in without_equal_losses(best).items()}
    baseline = metrics.get("baseline", {})  # the key "model" repeats the results on the test rows
    shown |= {
        f"{name}, {metric}": value for name, of in baseline.get("plain", {}).items() for metric, value in of.items()
    }
    importance = baseline.get("importance", {}).items()
    return shown | {
        f"cost of shuffling {name}": "unknown" if mean is None else f"{mean:.3f} +- {noise:.3f}"  # None: not finite
        for name, (mean, noise) in importance
    }


def _text(value: Any) -> str:
    return "-" if value is _ABSENT else number(value)


def number(value: Any) -> str:
    """Format a value for a table; floats have six significant digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _section(title: str, headings: list[str], rows: list[list[str]], empty: str) -> list[str]:
    return [*(table([[title, *headings], *rows]) if rows else [f"{title}: {empty}"]), ""]


def table(rows: list[list[str]]) -> list[str]:
    """Return the lines of a table; the first row is its header.

    Columns that exceed the width of the terminal follow below, with the first column repeated.
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    max_width = shutil.get_terminal_size((10**6, 24)).columns  # unlimited without a terminal
    blocks: list[list[int]] = [[]]
    width = widths[0]
    for column in range(1, len(widths)):
        if blocks[-1] and width + 2 + widths[column] > max_width:
            blocks.append([])
            width = widths[0]
        blocks[-1].append(column)
        width += 2 + widths[column]
    lines: list[str] = []
    separators = ["-" * width for width in widths]
    for block in blocks:
        lines += [""] if lines else []
        for row in (rows[0], separators, *rows[1:]):
            cells = [row[0].ljust(widths[0]), *(row[column].rjust(widths[column]) for column in block)]
            lines.append("  ".join(cells).rstrip())
    return lines
