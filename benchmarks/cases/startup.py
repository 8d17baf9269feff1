"""(f) From the command to the first trained step, and the first rows of a stream. A process each time.

"first start" has an empty cache of compiled graphs, "second start" the one that the first has left. MindSpore has such
a cache for graphs (MS_COMPILER_CACHE_ENABLE); where it does nothing for a device, the two are the same.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import criteo, raw_way
from benchmarks.measure import OURS, PEERS, ROOT, Group, Ratio

FIRST, SECOND, RAW = "fit, first start", "fit, second start", "raw MindSpore"
TORCH, LIGHTNING, KERAS = "torch", "Lightning", "Keras on torch"
SCRIPT = ROOT / "benchmarks" / "first_step.py"  # a file, without which MindSpore caches no graph
STREAM = "Criteo-shaped Parquet, strings, declared features, DeepFM"
STEP, BUILT = "first step, from online_train on", "first step, from declaring features on"
EARLY, STEPPED = "first 100,000 rows, from online_train on", "first 100,000 rows, from the first step on"
FIGURES = {STEP: "first_step", BUILT: "first_step_with_building", EARLY: "early", STEPPED: "early_after_first_step"}


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    names = dict.fromkeys((FIRST, SECOND, RAW), OURS) | dict.fromkeys((TORCH, LIGHTNING, KERAS), PEERS)
    ratios = (Ratio(SECOND, FIRST, 0.65), Ratio(FIRST, RAW, 1.15), Ratio(FIRST, LIGHTNING), Ratio(FIRST, KERAS))
    return [
        Group("startup", "time to the first step", "startup", names, {}, ratios, unit="s"),
        Group(
            "startup",
            STREAM,
            "startup",
            dict.fromkeys((STEP, BUILT), OURS),
            {"rows": 110_000},
            unit="seconds",
            most={STEP: 2.5},
            windows=3,
        ),
        Group(
            "startup",
            STREAM,
            "startup",
            dict.fromkeys((EARLY, STEPPED), OURS),
            {"rows": 200_000 if quick else 400_000},
            unit="% of the later rows/s",
            goals={EARLY: 70},
            windows=3,
        ),
    ]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return Stream(name, **options) if name in FIGURES else Start(name)


def started(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start the script, which may keep compiled Python files as by default."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **variables}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


class Start:
    """Starts a process and waits until it has trained a step."""

    def __init__(self, name: str) -> None:
        from benchmarks.cases import mlp

        self.name = name
        self._cache = Path(tempfile.mkdtemp(prefix="graphs-"))
        kinds = {RAW: mlp.RAW, TORCH: mlp.TORCH, LIGHTNING: mlp.LIGHTNING, KERAS: mlp.KERAS}
        self._kind = kinds.get(name, mlp.SINGLE)
        self._start()  # what the operating system reads once

    def __del__(self) -> None:
        shutil.rmtree(self._cache, ignore_errors=True)

    def window(self) -> dict[str, float]:
        """Start once."""
        return {"seconds": self._start(), "steps": 1}

    def _start(self) -> float:
        variables = {}
        if self.name in (FIRST, SECOND):
            variables = {"MS_COMPILER_CACHE_ENABLE": "1", "MS_COMPILER_CACHE_PATH": str(self._cache)}
        if self.name == FIRST:
            shutil.rmtree(self._cache, ignore_errors=True)
        began = time.perf_counter()
        process = started(self._kind, **variables)
        seconds = 0.0
        for line in process.stdout:
            if line.strip() == "stepped":
                seconds = time.perf_counter() - began
        if process.wait() or not seconds:
            raise RuntimeError(f"{self.name} ended with exit code {process.returncode} before its first step")
        return seconds


class Stream:
    """Starts a process that trains on a stream from its first row on."""

    def __init__(self, name: str, rows: int) -> None:
        self.figure = FIGURES[name]
        self._folder = tempfile.TemporaryDirectory()
        criteo.write(Path(self._folder.name) / "0.parquet", "strings", rows, 0, raw_way.counts)
        self.window()

    def window(self) -> dict[str, float]:
        """Start once."""
        process = started("stream", self._folder.name)
        output = process.communicate()[0]
        if process.returncode:
            raise RuntimeError(f"the stream ended with exit code {process.returncode}")
        return {"value": json.loads(output.splitlines()[-1])[self.figure]}
