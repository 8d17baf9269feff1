"""`TensorBoard`: writes event files from the calling thread.

It uses the protobuf messages and checksums of tensorboardX, but not its writer, which passes events to a thread through
a queue of length 10. A failed write ends that thread, and then the eleventh event blocks the caller forever.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.cadence import Every, cadence

from ..callback import Trainer
from ..output import in_run_folder, require_writable, window_numbers
from .logger import Logger

logger = logging.getLogger(__name__)

CURVE_SECONDS = 30.0
FLUSH_SECONDS = 10.0
FLUSH_BYTES = 1 << 16
_NAME = "events.out.tfevents."


class TensorBoard(Logger):
    """Logs a run for TensorBoard: scalars, HPARAMS tab, histograms, curves.

    A resumed run continues in the same folder and discards the points after the step from which it resumes. Windows of
    a stream are logged twice: as window/* over steps, and as window_by_event_time/*, for which "Wall" shows the event
    time of their rows.

    Args:
        log_dir: folder of the event files; None for ``<run_dir>/tensorboard``, or ``runs/<time>`` without a run folder.
        every, hparams: see `Logger`.
        histograms: cadence of histograms and norms of the weights; each time, all dense weights are copied to the host.
            None: never.
        curves: whether to log precision-recall curves of binary targets: after each evaluation, and after windows at
            most every 30 seconds. This needs a metric with a histogram of scores, such as "auc".

    Raises:
        ConfigurationError: an argument is invalid; at `setup`, tensorboardX is not installed or the
            folder cannot be written.
    """

    def __init__(
        self,
        log_dir: str | Path | None = None,
        every: Every | int | None = None,
        hparams: Mapping[str, Any] | None = None,
        histograms: Every | int | None = None,
        curves: bool = True,
    ) -> None:
        super().__init__(every, hparams)
        self.log_dir = None if log_dir is None else Path(log_dir)
        self.histograms = None if histograms is None else cadence("TensorBoard", histograms)
        self.curves = bool(curves)
        self._next_curves = 0.0
        self._curves_failed = False
        self.folder: Path | None = None

    def setup(self, trainer: Trainer) -> None:
        default = Path("runs") / time.strftime("%Y%m%d-%H%M%S")
        self.folder = self.log_dir or in_run_folder(trainer, "tensorboard") or default
        require_writable("TensorBoard(log_dir=...)", self.folder)

    def open(self, trainer: Trainer, step: int) -> None:
        assert self.folder is not None
        self._events = EventFile(self.folder, step + 1 if step else None)
        if self.histograms is not None:
            self.histograms.start(trainer.state.progress)

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._events.scalar(name, value, step)

    def log_hyperparameters(self, values: Mapping[str, Any], metrics: Sequence[str]) -> None:
        from tensorboardX.summary import hparams, text

        rows = [f"| {name} | {value} |" for name, value in values.items()]
        self._events.add(text("hparams", "\n".join(["| name | value |", "| --- | --- |", *rows])), 0)
        plain = {name: value if isinstance(value, int | float | str) else str(value) for name, value in values.items()}
        tags = [f"hparam/{name}" for metric in metrics for name in (metric, f"best_{metric}")]
        for summary in hparams(plain, dict.fromkeys(tags, 0.0)):
            self._events.add(summary, 0)

    def log_results(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._events.scalar(f"hparam/{name}", value, step)

    def on_train_step_end(self, trainer: Trainer) -> None:
        super().on_train_step_end(trainer)
        if self._is_open and self.histograms is not None and self.histograms.due(trainer.state.progress):
            self._add_histograms(trainer)

    def on_eval_end(self, trainer: Trainer) -> None:
        super().on_eval_end(trainer)
        if self._is_open and self.curves:
            self._add_curves(trainer, "val")

    def on_window_end(self, trainer: Trainer) -> None:
        """Log the window over steps and over event time, and curves when due."""
        super().on_window_end(trainer)
        if not self._is_open:
            return
        window, step = window_numbers(trainer), trainer.state.progress.global_step
        staleness = window.get("staleness", math.nan)
        if not math.isnan(staleness):
            event_time = time.time() - staleness
            for name, value in window.items():
                self._events.scalar(f"window_by_event_time/{name.removeprefix('window_')}", value, step, event_time)
        if self.curves and time.monotonic() >= self._next_curves:
            self._next_curves = time.monotonic() + CURVE_SECONDS
            self._add_curves(trainer, "window")

    def _add_curves(self, trainer: Trainer, group: str) -> None:
        if self._curves_failed:
            return
        step = trainer.state.progress.global_step
        try:
            for task, table in trainer.read_scores().items():
                name = f"{group}/{task}" if task else group
                self._events.add(_precision_recall(f"precision_recall/{name}", table), step)
        except OSError:
            raise
        except Exception as error:  # any exception of matplotlib or tensorboardX
            self._curves_failed = True
            logger.warning("TensorBoard: drawing curves has stopped: %s: %s", type(error).__name__, error)

    def _add_histograms(self, trainer: Trainer) -> None:
        import numpy as np
        from mindspore import nn
        from tensorboardX.summary import histogram

        step = trainer.state.progress.global_step
        for parameter in nn.Cell.trainable_params(trainer.network):
            values = parameter.asnumpy().astype(np.float64).ravel()
            if values.size and np.isfinite(values).all():
                self._events.add(histogram(f"weights/{parameter.name}", values, bins="auto"), step)
                self._events.scalar(f"weight_norm/{parameter.name}", float(np.linalg.norm(values)), step)

    def flush(self) -> None:
        self._events.flush()

    def close(self) -> None:
        self._events.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the folder, so that a resumed run without a run folder continues in it."""
        return {"folder": None if self.folder is None else str(self.folder)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state["folder"], str | None):
            raise TypeError(f"the folder is a path or None; received {state['folder']!r}")
        if self.log_dir is None and state["folder"] and Path(state["folder"]).is_dir():
            self.folder = Path(state["folder"])


def _precision_recall(tag: str, table: Mapping[str, Any]) -> Any:
    """Return the summary of a precision-recall curve from a score table."""
    import numpy as np
    from tensorboardX.summary import pr_curve_raw

    true_positives, false_positives = (np.array(table["above"][kind]) for kind in ("positives", "negatives"))
    false_negatives, true_negatives = true_positives[0] - true_positives, false_positives[0] - false_positives
    precision = true_positives / np.maximum(true_positives + false_positives, 1e-7)
    recall = true_positives / max(true_positives[0], 1e-7)
    counts = (true_positives, false_positives, true_negatives, false_negatives)
    return pr_curve_raw(tag, *counts, precision, recall, len(true_positives))


class EventFile:
    """Appends summaries to an event file in `folder`, created if missing.

    Events are written to the file every 10 seconds, every 64 KiB and at `flush`. If a write fails, the events since the
    previous write are dropped and the file is truncated to its previous end, so that readers never see a partial event.

    Args:
        folder: folder of the event file.
        purge_step: readers discard points of earlier files from this step on; None keeps them.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self.folder = folder
        self._file: Any = None
        self._events = bytearray()
        self._last_write = time.monotonic()
        self._header = _record(Event(file_version="brain.Event:2"))
        if purge_step is not None:
            self._header += _record(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def scalar(self, name: str, value: float, step: int, wall_time: float | None = None) -> None:
        """Add a number; raises OSError if this triggers a write and it fails."""
        from tensorboardX.proto.summary_pb2 import Summary

        self.add(Summary(value=[Summary.Value(tag=name, simple_value=value)]), step, wall_time)

    def add(self, summary: Any, step: int, wall_time: float | None = None) -> None:
        """Add a summary; raises OSError like `scalar`.

        `wall_time` is Unix time; None for the current time.
        """
        from tensorboardX.proto.event_pb2 import Event

        self._events += _record(Event(step=step, summary=summary), wall_time)
        if len(self._events) >= FLUSH_BYTES or time.monotonic() - self._last_write >= FLUSH_SECONDS:
            self.write()

    def write(self) -> None:
        """Write the added events to the file; after an OSError they are lost."""
        events, self._events, self._last_write = self._events, bytearray(), time.monotonic()
        if not events:
            return
        if self._file is None:
            self._file = self._open()
        size = self._file.tell()
        view = memoryview(events if size else self._header + events)
        try:
            while len(view):
                view = view[self._file.write(view) :]
        except OSError:
            self._file.truncate(size)
            self._file.seek(size)
            raise

    def _open(self) -> Any:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Readers sort files by name, and the clock may have been set back since the previous file was created.
        numbers = [name.removeprefix(_NAME).split(".")[0] for name in os.listdir(self.folder) if name.startswith(_NAME)]
        number = max([int(time.time()), *(int(number) + 1 for number in numbers if number.isdecimal())])
        path = self.folder / f"{_NAME}{number:010d}.{socket.gethostname()}.{os.getpid()}"
        return open(path, "xb", buffering=0)

    def flush(self) -> None:
        """Write all events and sync the file to disk; raises OSError like `write`."""
        self.write()
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write the remaining events and close the file; raises OSError like `write`."""
        try:
            self.write()
        finally:
            file, self._file = self._file, None
            if file is not None:
                file.close()


def _record(event: Any, wall_time: float | None = None) -> bytes:
    """Return the record of an event with checksums; sets the event's time."""
    from tensorboardX.record_writer import masked_crc32c

    event.wall_time = time.time() if wall_time is None else wall_time
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in (length, data))
