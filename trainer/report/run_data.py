"""`RunData`: the data of a run's page; `read_record`: reads a record file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Series:
    """The values of one name.

    Attributes:
        steps: optimizer step of each value, ascending.
        values: the values; None if not finite.
        times: event time of each value in seconds since the epoch, or None.
    """

    steps: list[int] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    times: list[float | None] = field(default_factory=list)


@dataclass
class Record:
    """The contents of ``record.jsonl``.

    Attributes:
        series: values by name: "train/loss", "val/auc", "window/decayed_auc", ...
        scores: latest score table by task, see `trainer.metrics.binary.score_table`.
        tables: (step, name -> rows, bytes and counters) of sparse tables, over the run.
        seconds: time spent by activity, summed over the attempts of a resumed run.
        seconds_beside: the same of the thread that reads and prepares data beside the training.
        set_aside: how many raw rows each attempt set aside, and why.
        hyperparameters: the hyperparameters of the run.
        directions: metric -> whether higher is better, None if not declared.
        began: when the newest process began to write, seconds since the epoch, or None.
        newest: time of the last line, seconds since the epoch, or None.
    """

    series: dict[str, Series] = field(default_factory=dict)
    scores: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    tables: list[tuple[int, Mapping[str, Mapping[str, int]]]] = field(default_factory=list)
    seconds: Counter[str] = field(default_factory=Counter)
    seconds_beside: Counter[str] = field(default_factory=Counter)
    set_aside: list[str] = field(default_factory=list)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    directions: Mapping[str, bool | None] = field(default_factory=dict)
    began: float | None = None
    newest: float | None = None


@dataclass(frozen=True)
class RunData:
    """The data of one run on a page.

    Attributes:
        state: how it ended, or that it is running.
        best: name -> {"value", "step", "snapshot"}.
        facts: (name, text) shown in its header: steps, rows, time, snapshot.
        config: dotted path -> value of the configuration.
        defaults: the paths of `config` that have their default values.
        environment: versions and platform by name.
        features: feature -> its kind.
        drift: column -> population stability index of the test rows relative to the training rows.
        snapshots: (name, bytes, time as text, pointers) of the snapshots in the folder.
        set_aside: (file, rows, reason -> rows, newest lines) of each file of bad rows.
    """

    name: str
    state: str = ""
    record: Record = field(default_factory=Record)
    results: Mapping[str, Any] = field(default_factory=dict)
    best: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    facts: Sequence[tuple[str, str]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    defaults: frozenset[str] = frozenset()
    environment: Mapping[str, Any] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)
    drift: Mapping[str, float] = field(default_factory=dict)
    snapshots: Sequence[tuple[str, int, str, str]] = ()
    set_aside: Sequence[tuple[str, int, Mapping[str, int], Sequence[str]]] = ()
    profile: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepData:
    """The trials of a sweep, best first.

    Attributes:
        paths: dotted paths of the varied settings.
        rows: per trial: name, state, values of `paths`, and value of the metric or None.
    """

    paths: Sequence[str]
    monitor: str
    rows: Sequence[tuple[str, str, Sequence[Any], float | None]]


_SPECIAL = ("time", "directions", "step", "event_time", "tables", "scores", "task", "seconds", "snapshot", "results")


def read_record(path: Path) -> Record:
    """Read a ``record.jsonl`` up to a truncated line; missing: an empty record."""
    record = Record()
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return record
    for text in lines:
        try:
            line = json.loads(text)
            step = int(line["step"])
        except (ValueError, KeyError, TypeError):  # still being written, or truncated by a kill
            continue
        _add(record, step, line)
    return record


def _add(record: Record, step: int, line: Mapping[str, Any]) -> None:
    record.newest = line.get("time", record.newest)
    if "tables" in line:
        record.tables.append((step, line["tables"]))
    elif "scores" in line:
        record.scores[line.get("task", "")] = line["scores"]
    elif "seconds" in line:
        record.seconds.update(line["seconds"])
    elif "seconds_beside" in line:
        record.seconds_beside.update(line["seconds_beside"])
    elif "set_aside" in line:
        record.set_aside.append(str(line["set_aside"]))
    elif "directions" in line:
        record.directions = line["directions"]
        record.began = line.get("time")  # the first line of a process
    elif "hyperparameters" in line:
        record.hyperparameters = line["hyperparameters"]
    elif "event_time" in line:
        for name, series in record.series.items():
            if name.startswith("window/") and series.steps[-1] == step:
                series.times[-1] = line["event_time"]
    else:
        for name, value in line.items():
            if name not in _SPECIAL and (value is None or isinstance(value, int | float)):
                series = record.series.setdefault(name, Series())
                series.steps.append(step)
                series.values.append(value)
                series.times.append(None)


def series_of_history(history: Mapping[str, Any]) -> dict[str, Series]:
    """Return values of a ``history.json`` by the record's names."""
    records = {}
    curve = history.get("curve", {})
    if curve.get("steps"):
        records["train/loss"] = Series(curve["steps"], curve["loss"], [None] * len(curve["steps"]))
    for name, values in history.get("history", {}).items():
        group = "epoch" if name == "loss" else "val" if name.startswith("val_") else "window"
        short = name.removeprefix("val_").removeprefix("window_")
        steps = history["steps"][name]
        records[f"{group}/{short}"] = Series(steps, values, [None] * len(steps))
    return records
