"""`TensorBoard`: a run as TensorBoard event files, written by the calling thread.

tensorboardX's own writer hands events to a thread through a queue of ten. Once a write has failed, the thread is dead
and the eleventh event blocks the caller for ever. Its messages and checksums are used here, not its writer.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cadence import Every, cadence
from trainer.errors import ConfigurationError

from ..output import writable
from .logger import Logger

if TYPE_CHECKING:
    from trainer.trainer import Trainer


class TensorBoard(Logger):
    """Logs a run for TensorBoard: scalars, the HPARAMS tab with last and best metrics, histograms of weights.

    A resumed run goes on in the same folder and discards what was written after the step it resumes from.

    Args:
        log_dir: folder of the event files; None for ``<run_dir>/tensorboard``, or ``runs/<time>`` without a run folder.
        every, hparams: see `Logger`.
        histograms: cadence of histograms and norms of the weights (each copies all dense weights); None: never.

    Raises:
        ConfigurationError: an argument is not of the kind named; at `setup`, tensorboardX is not installed or the
            folder cannot be written.
    """

    def __init__(
        self,
        log_dir: str | Path | None = None,
        every: Every | int | None = None,
        hparams: Mapping[str, Any] | None = None,
        histograms: Every | int | None = None,
    ) -> None:
        super().__init__(every, hparams)
        self.log_dir = None if log_dir is None else Path(log_dir)
        self.histograms = None if histograms is None else cadence("TensorBoard", histograms)
        self.folder: Path | None = None
        self._file: EventFile | None = None

    def setup(self, trainer: Trainer) -> None:
        """Find the folder, and refuse to start without tensorboardX."""
        try:
            import tensorboardX  # noqa: F401
        except ImportError as error:
            raise ConfigurationError("TensorBoard needs tensorboardX: pip install tensorboardX") from error
        if self.log_dir is not None:
            self.folder = self.log_dir
        elif trainer.run_dir is not None:
            self.folder = Path(trainer.run_dir) / "tensorboard"
        else:
            self.folder = Path("runs") / time.strftime("%Y%m%d-%H%M%S")
        writable("TensorBoard(log_dir=...)", self.folder)

    def open(self, trainer: Trainer, step: int) -> None:
        """Open the event file."""
        assert self.folder is not None
        self._file = EventFile(self.folder, step + 1 if step else None)
        if self.histograms is not None:
            self.histograms.start(trainer.state.progress)

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Add scalars."""
        for name, value in values.items():
            self._events.scalar(name, value, step)

    def log_hyperparameters(self, values: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Add the table of the TEXT tab and the session of the HPARAMS tab."""
        from tensorboardX.summary import hparams

        rows = [f"| {name} | {value} |" for name, value in values.items()]
        self._events.text("hparams", "\n".join(["| name | value |", "| --- | --- |", *rows]), 0)
        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in values.items()
        }
        tags = [f"hparam/{name}" for metric in metrics for name in (metric, f"best_{metric}")]
        for summary in hparams(plain, dict.fromkeys(tags, 0.0)):
            self._events.add(summary, 0)

    def log_results(self, values: Mapping[str, float], step: int) -> None:
        """Add the results of the HPARAMS tab."""
        for name, value in values.items():
            self._events.scalar(f"hparam/{name}", value, step)

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Add what is due."""
        super().on_train_step_end(trainer)
        if self.histograms is not None and self.histograms.due(trainer.state.progress):
            self._add_histograms(trainer)

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

    @property
    def _events(self) -> EventFile:
        assert self._file is not None, "the log is written between on_train_begin and teardown"
        return self._file

    def flush(self) -> None:
        """Force the events to the disk."""
        self._events.flush()

    def close(self) -> None:
        """Close the event file."""
        file, self._file = self._events, None
        file.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the folder, so that a resumed run without a run folder goes on in it."""
        return {"folder": None if self.folder is None else str(self.folder)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if not isinstance(state["folder"], str | None):
            raise TypeError(f"the folder is a path or None; received {state['folder']!r}")
        if self.log_dir is None and state["folder"] and Path(state["folder"]).is_dir():
            self.folder = Path(state["folder"])


FLUSH_SECONDS = 10.0
FLUSH_BYTES = 1 << 16
_NAME = "events.out.tfevents."


class EventFile:
    """Appends scalars and texts to an event file in `folder`, which is made when missing.

    Events reach the file every 10 seconds, every 64 KiB and at `flush`. When a write fails, the events since the one
    before are dropped and the file ends where it did, so that no reader meets half an event.

    Args:
        folder: folder of the event files of a run.
        purge_step: step from which on readers are to forget what earlier files hold, or None.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self.folder = folder
        self._file: Any = None
        self._events = bytearray()
        self._written = time.monotonic()
        self._header = _record(Event(file_version="brain.Event:2"))
        if purge_step is not None:
            self._header += _record(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def scalar(self, name: str, value: float, step: int) -> None:
        """Add a number; OSError when it is time to write and the file system refuses."""
        from tensorboardX.proto.summary_pb2 import Summary

        self.add(Summary(value=[Summary.Value(tag=name, simple_value=value)]), step)

    def text(self, name: str, text: str, step: int) -> None:
        """Add a text in Markdown; OSError as `scalar`."""
        from tensorboardX.summary import text as summary

        self.add(summary(name, text), step)

    def add(self, summary: Any, step: int) -> None:
        """Add a summary; OSError as `scalar`."""
        from tensorboardX.proto.event_pb2 import Event

        self._events += _record(Event(step=step, summary=summary))
        if len(self._events) >= FLUSH_BYTES or time.monotonic() - self._written >= FLUSH_SECONDS:
            self.write()

    def write(self) -> None:
        """Write what was added to the file.

        Raises:
            OSError: the file system refused; these events are lost.
        """
        events, self._events, self._written = self._events, bytearray(), time.monotonic()
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
        # Readers go by name, and a clock may have been set back since the file before.
        numbers = [name.removeprefix(_NAME).split(".")[0] for name in os.listdir(self.folder) if name.startswith(_NAME)]
        number = max([int(time.time()), *(int(number) + 1 for number in numbers if number.isdecimal())])
        path = self.folder / f"{_NAME}{number:010d}.{socket.gethostname()}.{os.getpid()}"
        return open(path, "xb", buffering=0)

    def flush(self) -> None:
        """Force everything added to the disk; OSError as `write`."""
        self.write()
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write the rest and close the file; OSError as `write`."""
        try:
            self.write()
        finally:
            file, self._file = self._file, None
            if file is not None:
                file.close()


def _record(event: Any) -> bytes:
    """Return an event with the time, its length and the checksums of both, as TensorBoard reads it."""
    from tensorboardX.record_writer import masked_crc32c

    event.wall_time = time.time()
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
    return length + checksums[0] + data + checksums[1]
