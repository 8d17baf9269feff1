"""Define the plan and the trials of a sweep, and read them from its folder."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..report.run_data import read_record
from .runs.run_folder import METRICS, RECORD, read_json_or

PLAN, TRIALS, PRUNED = "sweep.json", "trials.jsonl", "pruned"
FAILED = ".failed"  # suffix of the mark of a trial that failed without a result; a resumed sweep starts it again
MODES = ("auto", "min", "max")


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; integers if both ends are integers."""

    low: float
    high: float
    log: bool = False

    def draw(self, generator: random.Random) -> float:
        """Return a random number in the range."""
        ends = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = generator.uniform(*ends)
        value = min(max(math.exp(value) if self.log else value, self.low), self.high)
        return round(value) if self.is_whole else value

    @property
    def is_whole(self) -> bool:
        """Whether the range holds integers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True)
class Plan:
    """Plan of a sweep: the arguments of `sweep`, with ranges as `Range`."""

    config: str
    vary: Mapping[str, Any]
    search: str = "grid"
    trials: int | None = None
    monitor: str = "val_loss"
    mode: str = "auto"
    prune: bool = False
    command: str = "fit"
    seed: int = 0
    overrides: Sequence[str] = ()


@dataclass
class Trial:
    """One run of a sweep."""

    number: int
    values: dict[str, Any]
    folder: Path
    state: str = "waiting"  # "waiting", "running", "done", "pruned" or "failed"
    value: float | None = None  # best value of the monitored metric, or None
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)  # None if a killed sweep started it
    reported: int = 0  # how many measurements were passed to the search
    record_version: tuple[int, int] | None = None  # `record_version` of the run's record when it was last read


def read_plan(folder: Path) -> Plan:
    """Return the plan of the sweep in a folder."""
    try:
        saved = json.loads((folder / PLAN).read_text("utf-8"))
        vary = {path: Range(**v) if isinstance(v, dict) else v for path, v in saved.pop("vary").items()}
        return Plan(**{**saved, "vary": vary, "overrides": tuple(saved["overrides"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{folder} holds no sweep: {PLAN} cannot be read: {error}") from error


def read_trials(folder: Path) -> list[Trial]:
    """Return the trials recorded so far, in order of number."""
    plan = read_plan(folder)
    trials: list[Trial] = []
    path = folder / TRIALS
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            values = json.loads(line)
        except ValueError:  # the sweep was killed during this write
            break
        trial = Trial(len(trials), values, folder / f"{len(trials):03d}")
        read_outcome(trial, plan)
        trials.append(trial)
    return trials


def drop_torn_line(path: Path) -> None:
    """Remove an unfinished last line of a file, if there is one."""
    if path.is_file():
        complete = path.read_bytes().rfind(b"\n") + 1
        if complete < path.stat().st_size:
            os.truncate(path, complete)


def best_first(trials: Sequence[Trial], plan: Plan) -> list[Trial]:
    """Return the trials sorted by value, best first; those without a value are last."""
    sign = -1.0 if any(higher_is_better(trial, plan) for trial in trials) else 1.0
    return sorted(trials, key=lambda trial: (trial.value is None, sign * (trial.value or 0.0), trial.number))


def read_outcome(trial: Trial, plan: Plan) -> None:
    """Set the `state` and the `value` of a trial from its run folder."""
    metrics = read_json_or(trial.folder / METRICS, {})
    reason = str(metrics.get("stop_reason", ""))
    if (trial.folder / PRUNED).exists():
        trial.state = "pruned"
    elif not metrics or reason.startswith("signal"):
        trial.state = "waiting"
    else:
        trial.state = "failed" if reason.startswith("exception") else "done"
    recorded = [value for _, value in measurements(trial.folder, plan.monitor)]
    if recorded:
        trial.value = (max if higher_is_better(trial, plan) else min)(recorded)


def measurements(folder: Path, monitor: str) -> list[tuple[int, float]]:
    """Return the (step, value) pairs of a metric that a run has recorded so far."""
    all_series = read_record(folder / RECORD).series
    series = next((series for name, series in all_series.items() if monitor in _monitors_of(name)), None)
    if series is None:
        return []
    return [(step, value) for step, value in zip(series.steps, series.values, strict=True) if value is not None]


def recorded_names(folder: Path) -> list[str]:
    """Return the monitor names of all metrics that a run recorded."""
    series = read_record(folder / RECORD).series
    return sorted({monitor for name in series for monitor in _monitors_of(name)})


def _monitors_of(name: str) -> tuple[str, ...]:
    """Return the monitor names of a series, such as "val_auc" for "val/auc"."""
    group, _, short = name.partition("/")
    names = {"epoch": (short,), "val": (f"val_{short}",), "window": (f"window_{short}", short)}
    return names.get(group, ())


def record_version(folder: Path) -> tuple[int, int] | None:
    """Return (modification time in ns, size) of a run's record, or None without one."""
    try:
        status = (folder / RECORD).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def higher_is_better(trial: Trial, plan: Plan) -> bool:
    """Return whether higher is better for the monitored metric."""
    if plan.mode != "auto":
        return plan.mode == "max"
    return declared_direction(trial.folder, plan.monitor) is True


def declared_direction(folder: Path, monitor: str) -> bool | None:
    """Return whether a metric declares that higher is better; None if it does not."""
    directions = read_record(folder / RECORD).directions
    whole = re.sub(r"_\d+$", "", monitor)  # "val_auc_0" is the "val_auc" of one label
    names = (monitor, f"window_{monitor}", whole, f"window_{whole}")  # "auc" is that of a window
    return next((directions[name] for name in names if name in directions), None)


def plain(plan: Plan) -> dict[str, Any]:
    """Convert a plan to plain JSON values."""
    return json.loads(json.dumps(asdict(plan)))  # type: ignore[no-any-return]
