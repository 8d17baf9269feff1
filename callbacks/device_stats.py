"""`DeviceStats`: CPU, memory and disk statistics during training."""

from __future__ import annotations

import time

from trainer.cadence import Every, cadence
from trainer.checks import require

from .callback import Callback, Trainer


class DeviceStats(Callback):
    """Measures the process and its machine; loggers include the latest values.

    The values are device/process_cpu (mean cores in use since the previous measurement), device/process_memory_mb
    (resident memory in units of 10**6 bytes), device/threads, device/machine_cpu and device/machine_memory (shares, 0
    to 1), device/read_mb_per_second and device/written_mb_per_second (in units of 10**6 bytes, by this process).

    Args:
        every: cadence of the measurements, or a number of optimizer steps. None: every 5 seconds.

    Attributes:
        records: the latest 10,000 measurements, as dicts that also have the "step".

    Raises:
        ConfigurationError: `every` has the wrong type; at `setup`, psutil is not installed.
    """

    main_only = True
    reports_only = True
    max_records = 10_000

    def __init__(self, every: Every | int | None = None) -> None:
        self.every = cadence("DeviceStats", every, Every(seconds=5.0))
        self.records: list[dict[str, float]] = []

    def setup(self, trainer: Trainer) -> None:
        self._psutil = require("psutil", "DeviceStats needs psutil", "monitor")
        self._process = self._psutil.Process()

    def on_train_begin(self, trainer: Trainer) -> None:
        self.records = []
        self._previous = self._totals()
        self._psutil.cpu_percent()  # the first call of a process returns 0
        self.every.start(trainer.state.progress)

    def on_train_step_end(self, trainer: Trainer) -> None:
        if self.every.due(trainer.state.progress):
            self.records.append({"step": trainer.state.progress.global_step, **self._measure()})
            del self.records[: -self.max_records]

    def _totals(self) -> tuple[float, float, float, float]:
        """Return time, CPU seconds of the process, and bytes read and written."""
        cpu, read, written = self._process.cpu_times(), 0, 0
        if hasattr(self._process, "io_counters"):  # missing on kernels without /proc/PID/io
            counters = self._process.io_counters()
            read, written = counters.read_bytes, counters.write_bytes
        return time.monotonic(), cpu.user + cpu.system, read, written

    def _measure(self) -> dict[str, float]:
        previous, self._previous = self._previous, self._totals()
        seconds, cpu, read, written = (now - then for now, then in zip(self._previous, previous, strict=True))
        seconds = max(seconds, 1e-9)
        return {
            "process_cpu": cpu / seconds,
            "process_memory_mb": self._process.memory_info().rss / 1e6,
            "threads": float(self._process.num_threads()),
            "machine_cpu": self._psutil.cpu_percent() / 100,
            "machine_memory": self._psutil.virtual_memory().percent / 100,
            "read_mb_per_second": read / 1e6 / seconds,
            "written_mb_per_second": written / 1e6 / seconds,
        }

    def logged_values(self) -> dict[str, float]:
        newest = self.records[-1] if self.records else {}
        return {f"device/{name}": value for name, value in newest.items() if name != "step"}
