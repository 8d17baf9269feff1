"""Times of the individual operators of a graph on CPU, from MindSpore's profiler.

This module relies on the following behaviour of MindSpore:
- `mindspore.profiler.profile` writes a file ``*_ascend_ms/FRAMEWORK/cpu_op_execute_timestamp_0.txt`` when it stops,
  with one line per operator of the graph: ``full name;device;start,duration,thread ...``. The start is in nanoseconds
  since the epoch, the duration in milliseconds.
- `ProfilerInterface.is_initialized` says whether a profile is running; a process runs one at a time.
- `tensorboard_trace_handler` sets the folder.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMES = "cpu_op_execute_timestamp_0.txt"


@dataclass(frozen=True)
class OperatorTimes:
    """The runs of one operator of a graph."""

    name: str  # full name in the graph: "Default/step-TrainStep/optimizer-Adam/Adam-op0"
    runs: tuple[tuple[float, float], ...]  # (start, duration) in seconds

    @property
    def kind(self) -> str:
        """Kind of operator, such as "MatMul"."""
        return re.sub(r"-op\d+$", "", self.name.rpartition("/")[2])

    @property
    def is_backward(self) -> bool:
        """Whether the operator computes gradients."""
        return self.name.startswith("Gradients/")

    @property
    def layer(self) -> str:
        """Path of the operator's cell, such as "network.0"; "step" if it has none."""
        cells = [part.partition("-")[0] for part in self.name.split("/")[:-1] if "-" in part]
        outer = {"step", "forward", "value_and_grad"}
        return ".".join(cell for cell in cells if cell not in outer) or "step"


class OperatorProfile:
    """A running profile; start it with `begin`."""

    def __init__(self, profile: Any, folder: str) -> None:
        self._profile: Any = profile
        self._folder = folder

    @classmethod
    def begin(cls) -> OperatorProfile | None:
        """Start timing operators.

        Returns None if another profile is running, or if the device cannot time operators.
        """
        from mindspore import profiler
        from mindspore.profiler.profiler_interface import ProfilerInterface

        from . import device

        if ProfilerInterface.is_initialized or not device.current().times_operators:
            return None
        folder = tempfile.mkdtemp(prefix="mindspore-trainer-profile-")
        try:
            handler = profiler.tensorboard_trace_handler(folder, analyse_flag=False)
            activities = [profiler.ProfilerActivity.CPU]
            profile = profiler.profile(activities=activities, start_profile=False, on_trace_ready=handler)
            profile.start()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(profile, folder)

    def end(self) -> list[OperatorTimes]:
        """End the profile and return the times of all operators, possibly none."""
        try:
            self._profile.stop()
            return [times for path in Path(self._folder).rglob(TIMES) for times in _read(path)]
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def _read(path: Path) -> Iterator[OperatorTimes]:
    """Yield the operators in MindSpore's file; skip lines with another format."""
    for line in path.read_text("utf-8", errors="replace").splitlines():
        name, _, rest = line.partition(";")
        runs = []
        for entry in rest.partition(";")[2].split():
            with contextlib.suppress(ValueError):
                start, duration, *_ = entry.split(",")
                runs.append((int(start) / 1e9, float(duration) / 1e3))
        if runs:
            yield OperatorTimes(name, tuple(runs))
