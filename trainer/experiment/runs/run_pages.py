"""Render the report page of run folders, and serve it during a run."""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from callbacks.output import without_equal_losses

from ...errors import ConfigurationError
from ...report.page import page
from ...report.run_data import Record, RunData, SweepData, read_record, series_of_history
from ..configuration.object_spec import flatten
from ..sweep_plan import FAILED, PLAN, best_first, read_plan, read_trials
from . import run_folder
from .compare import duration, is_running, state_of
from .run_folder import Run

logger = logging.getLogger(__name__)

LINES_SHOWN = 5
PROFILE = Path("profile") / "profile.json"  # written by `callbacks.Profiler`
SHOWN_OF_PROFILE = {"milliseconds", "steps", "parts", "operators", "layers"}
RUNS_SHOWN = 8  # runs of a sweep that are overlaid in the curves
HIDDEN = ("defaults", "variables")  # keys of versions.json that are not shown; only earlier versions wrote "variables"


def render(folders: Sequence[str | Path], refresh_seconds: int | None = None) -> str:
    """Render the page of the runs in `folders`."""
    paths = [Path(folder) for folder in folders]
    if len(paths) == 1 and (paths[0] / PLAN).is_file():
        return render_sweep(paths[0])
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"trainer report takes each run once; received {', '.join(names)}")
    runs = [run_data(Run.read(path), name) for path, name in zip(paths, names, strict=True)]
    title = names[0] if len(names) == 1 else f"{len(names)} runs: {', '.join(names)}"
    return page(runs, title, refresh_seconds)


def render_sweep(folder: Path) -> str:
    """Render the page of a sweep: its trials, and the best runs overlaid."""
    plan = read_plan(folder)
    trials = best_first(read_trials(folder), plan)
    for trial in trials:
        if trial.state == "waiting" and trial.folder.with_suffix(FAILED).is_file():
            trial.state = "failed"
    rows = [(t.folder.name, t.state, [t.values[path] for path in plan.vary], t.value) for t in trials]
    shown = [trial.folder for trial in trials if (trial.folder / run_folder.CONFIG).is_file()][:RUNS_SHOWN]
    runs = [run_data(Run.read(path), path.name) for path in shown]
    return page(runs, f"Sweep {folder.name}", None, SweepData(list(plan.vary), plan.monitor, rows))


def run_data(run: Run, name: str) -> RunData:
    """Return the data that a page shows about a run."""
    record = read_record(run.path / run_folder.RECORD)
    if not record.series and (run.path / run_folder.HISTORY).is_file():
        record.series = series_of_history(run_folder.read_json(run.path / run_folder.HISTORY))
    metrics, versions = run.metrics, run.versions
    state, reason = state_of(run)
    return RunData(
        name=name,
        state=f"{state} ({reason})" if reason else state,
        record=record,
        results=without_equal_losses(metrics.get("results", {})),
        best={name: best for name, best in metrics.get("best", {}).items() if best["value"] is not None},
        facts=list(_facts(run, record)),
        config=flatten(run.config),
        defaults=frozenset(versions.get("defaults", ())),
        environment={key: value for key, value in versions.items() if key not in HIDDEN and value not in (None, [])},
        features=metrics.get("features", {}),
        drift=metrics.get("drift", {}),
        baseline=metrics.get("baseline", {}),
        snapshots=list(_snapshots(run.path / run_folder.CHECKPOINTS)),
        set_aside=list(_set_aside(run.config)),
        profile=_profile(run.path / PROFILE),
    )


def _profile(path: Path) -> Mapping[str, Any]:
    """Return the results of `Profiler`, or {} if the file is missing or damaged."""
    try:
        profile = run_folder.read_json(path) if path.is_file() else {}
    except ConfigurationError as error:
        logger.warning("the page shows no profile: %s", error)
        return {}
    return profile if isinstance(profile, dict) and profile.keys() >= SHOWN_OF_PROFILE else {}


def _facts(run: Run, record: Record) -> Iterator[tuple[str, str]]:
    """Yield the main facts about a run as (name, value).

    A run without results has its progress so far among the facts.
    """
    metrics = run.metrics
    if metrics:
        progress = metrics["progress"]
        yield "trained", f"{progress['global_step']:,} steps, {progress['samples_seen']:,} rows"
        yield "time", duration(metrics["seconds"])
        yield "snapshot", Path(metrics["snapshot"] or "none").name
        yield "steps per call", str(metrics.get("sink_mode", ""))
    elif record.series:
        yield "so far", f"{max(series.steps[-1] for series in record.series.values()):,} steps"
        if record.newest is not None:
            yield "last value", f"{datetime.fromtimestamp(record.newest, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    features = run.config.get("features") or {}
    if features.get("label_classes"):
        yield "classes of the label", ", ".join(map(str, features["label_classes"]))
    if run.versions.get("started"):
        yield "started", str(run.versions["started"])[:16].replace("T", " ") + " UTC"
    yield "folder", str(run.path)


def _snapshots(folder: Path) -> Iterator[tuple[str, int, str, str]]:
    if not folder.is_dir():
        return
    pointers: dict[str, list[str]] = {}
    for pointer in sorted(path for path in folder.iterdir() if path.is_file() and path.stat().st_size < 200):
        pointers.setdefault(pointer.read_text("utf-8", errors="replace").strip(), []).append(pointer.name)
    for path in sorted(path for path in folder.iterdir() if path.is_dir() and (path / "manifest.json").is_file()):
        size = sum(part.stat().st_size for part in path.rglob("*") if part.is_file())
        written = datetime.fromtimestamp((path / "manifest.json").stat().st_mtime, timezone.utc)
        yield path.name, size, f"{written:%Y-%m-%d %H:%M:%S} UTC", ", ".join(pointers.get(path.name, ()))


def _set_aside(config: Mapping[str, Any]) -> Iterator[tuple[str, int, Mapping[str, int], Sequence[str]]]:
    """Yield (path, line count, counts by reason, last lines) of each dead-letter file."""
    for path, value in flatten(config).items():
        if "dead_letter" not in path or not isinstance(value, str) or not Path(value).is_file():
            continue
        lines = Path(value).read_text("utf-8", errors="replace").splitlines()
        reasons: Counter[str] = Counter()
        for line in lines:
            try:
                reasons[str(json.loads(line)["reason"])] += 1
            except (ValueError, KeyError, TypeError):
                reasons["a line that cannot be read"] += 1
        yield value, len(lines), dict(reasons.most_common(20)), lines[-LINES_SHOWN:]


def make_server(folders: Sequence[str | Path], port: int, every: int) -> ThreadingHTTPServer:
    """Return a server of the page on 127.0.0.1; the page reloads itself during a run."""

    @functools.lru_cache(maxsize=1)
    def rendered(modified: tuple[Any, ...], reloads: bool) -> bytes:
        return render(folders, every if reloads else None).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with the page."""
            if self.path != "/" or self.headers.get("Host", "").partition(":")[0] not in ("127.0.0.1", "localhost"):
                self.send_error(404)  # refuse DNS rebinding: a foreign host name that resolves to this machine
                return
            try:
                body = rendered(_modification_times(folders), any(is_running(Path(folder)) for folder in folders))
            except (ConfigurationError, OSError) as error:  # the run may be replacing a file
                self.send_error(503, str(error).splitlines()[0])
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Discard the log of requests."""

    return _PageServer(("127.0.0.1", port), Handler)


class _PageServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report the error of a request, unless the browser closed the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _modification_times(folders: Sequence[str | Path]) -> tuple[Any, ...]:
    files = (
        Path(folder) / name
        for folder in folders
        for name in (run_folder.RECORD, run_folder.METRICS, run_folder.HISTORY)
    )
    return tuple((path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.is_file())
