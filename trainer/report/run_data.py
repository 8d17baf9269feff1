"""The data of a run's report page (`RunData`), and the reader of its record file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Series:
    """The recorded values of one metric or other number."""

    steps: list[int] = field(default_factory=list)  # optimizer step of each value, ascending
    values: list[float | None] = field(default_factory=list)  # None for values that are not finite
    times: list[float | None] = field(default_factory=list)  # event times, seconds since the epoch


@dataclass
class Record:
    """The contents of ``record.jsonl``."""

    series: dict[str, Series] = field(default_factory=dict)  # "train/loss", "val/auc", "window/decayed_auc", ...
    scores: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # latest `binary.score_table` of each task
    # (step, statistics of each sparse table: rows, bytes and counters)
    tables: list[tuple[int, Mapping[str, Mapping[str, int]]]] = field(default_factory=list)
    seconds: Counter[str] = field(default_factory=Counter)  # by activity, summed over the attempts of a resumed run
    seconds_beside: Counter[str] = field(default_factory=Counter)  # by activity, on the reading thread
    set_aside: list[str] = field(default_factory=list)  # per attempt: how many raw rows were set aside, and why
    directions: Mapping[str, bool | None] = field(default_factory=dict)  # metric -> higher is better; None if unknown
    began: float | None = None  # start of the last process that wrote the record, seconds since the epoch
    newest: float | None = None  # time of the last line, seconds since the epoch


@dataclass(frozen=True)
class RunData:
    """The data of one run for a report page."""

    name: str
    state: str = ""  # sentence about how the run ended, or that it is running
    record: Record = field(default_factory=Record)
    results: Mapping[str, Any] = field(default_factory=dict)
    best: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> value, step, snapshot
    facts: Sequence[tuple[str, str]] = ()  # (name, text) pairs for the header: steps, rows, time, snapshot
    config: Mapping[str, Any] = field(default_factory=dict)  # dotted path -> value
    defaults: frozenset[str] = frozenset()  # paths of `config` with default values
    environment: Mapping[str, Any] = field(default_factory=dict)  # versions and platform
    features: Mapping[str, str] = field(default_factory=dict)  # feature -> kind
    drift: Mapping[str, float] = field(default_factory=dict)  # column -> stability index, test against training rows
    baseline: Mapping[str, Any] = field(default_factory=dict)  # result of `Baseline.compare`
    snapshots: Sequence[tuple[str, int, str, str]] = ()  # name, bytes, time as text, pointers
    set_aside: Sequence[tuple[str, int, Mapping[str, int], Sequence[str]]] = ()  # file, rows, reasons, newest lines
    profile: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepData:
    """The trials of a sweep, best first."""

    paths: Sequence[str]  # dotted paths of the varied settings
    monitor: str
    rows: Sequence[tuple[str, str, Sequence[Any], float | None]]  # name, state, values of `paths`, metric


_NOT_SERIES = ("time", "directions", "step", "event_time", "tables", "scores", "task", "seconds", "snapshot", "results")


def read_record(path: Path) -> Record:
    """Read a ``record.jsonl``, skipping invalid lines; empty if the file is missing."""
    record = Record()
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return record
    for text in lines:
        try:
            line = json.loads(text)
            step = int(line["step"])
        except (ValueError, KeyError, TypeError):  # the line is still being written, or was truncated by a crash
            continue
        _add_line(record, step, line)
    return record


def _add_line(record: Record, step: int, line: Mapping[str, Any]) -> None:
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
        record.began = line.get("time")  # this is the first line that a process writes
    elif "event_time" in line:
        for name, series in record.series.items():
            if name.startswith("window/") and series.steps[-1] == step:
                series.times[-1] = line["event_time"]
    else:
        for name, value in line.items():
            if name not in _NOT_SERIES and (value is None or isinstance(value, int | float)):
                series = record.series.setdefault(name, Series())
                series.steps.append(step)
                series.values.append(value)
                series.times.append(None)


def series_of_history(history: Mapping[str, Any]) -> dict[str, Series]:
    """Return the series of a ``history.json``, with the names used in a record."""
    records = {}
    curve = history.get("curve", {})
    if curve.get("steps"):
        records["train/loss"] = Series(curve["steps"], curve["loss"], [None] * len(curve["steps"]))
    for name, values in history.get("history", {}).items():
        group = "epoch" if name == "loss" else "val" if name.startswith("val_") else "window"
        metric = name.removeprefix("val_").removeprefix("window_")
        steps = history["steps"][name]
        records[f"{group}/{metric}"] = Series(steps, values, [None] * len(steps))
    return records
