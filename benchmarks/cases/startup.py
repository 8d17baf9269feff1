"""(f) From the command to the first trained step: interpreter, imports, building, compiling. A process each time.

"first start" has an empty cache of compiled graphs, "second start" the one that the first has left. MindSpore has such
a cache for graphs (MS_COMPILER_CACHE_ENABLE); where it does nothing for a device, the two are the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import OURS, PEERS, ROOT, Group, Ratio

FIRST, SECOND, RAW = "fit, first start", "fit, second start", "raw MindSpore"
TORCH, LIGHTNING, KERAS = "torch", "Lightning", "Keras on torch"
SCRIPT = ROOT / "benchmarks" / "first_step.py"  # a file, without which MindSpore caches no graph


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    names = dict.fromkeys((FIRST, SECOND, RAW), OURS) | dict.fromkeys((TORCH, LIGHTNING, KERAS), PEERS)
    ratios = (Ratio(SECOND, FIRST, 0.6), Ratio(FIRST, RAW), Ratio(FIRST, LIGHTNING), Ratio(FIRST, KERAS))
    return [Group("startup", "time to the first step", "startup", names, {}, ratios, unit="s")]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return Start(name)


class Start:
    """Starts a process and waits until it has trained a step."""

    def __init__(self, name: str) -> None:
        from benchmarks.cases import mlp

        self.name = name
        self._cache = Path(tempfile.mkdtemp(prefix="graphs-"))
        kinds = {RAW: mlp.RAW, TORCH: mlp.TORCH, LIGHTNING: mlp.LIGHTNING, KERAS: mlp.KERAS}
        self._command = [sys.executable, str(SCRIPT), kinds.get(name, mlp.SINGLE)]
        self._start()  # what the operating system reads once

    def __del__(self) -> None:
        shutil.rmtree(self._cache, ignore_errors=True)

    def window(self) -> dict[str, float]:
        """Start once."""
        return {"seconds": self._start(), "steps": 1}

    def _start(self) -> float:
        environment = dict(os.environ)
        if self.name in (FIRST, SECOND):
            environment |= {"MS_COMPILER_CACHE_ENABLE": "1", "MS_COMPILER_CACHE_PATH": str(self._cache)}
        if self.name == FIRST:
            shutil.rmtree(self._cache, ignore_errors=True)
        began = time.perf_counter()
        process = subprocess.Popen(self._command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        seconds = 0.0
        for line in process.stdout:
            if line.strip() == "stepped":
                seconds = time.perf_counter() - began
        if process.wait() or not seconds:
            raise RuntimeError(f"{self.name} ended with exit code {process.returncode} before its first step")
        return seconds
