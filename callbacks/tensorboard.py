"""`TensorBoard`: scalars of a run as TensorBoard event files, written by the calling thread.

tensorboardX's own writer hands events to a thread through a queue of ten. Once a write has failed, the thread is dead
and the eleventh event blocks the caller for ever. Its messages and checksums are used here, not its writer.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cadence import Every, cadence
from trainer.checks import refuse
from trainer.errors import ConfigurationError
from trainer.masking import mask_value

from .callback import Callback
from .output import writable

if TYPE_CHECKING:
    from trainer.trainer import Trainer


class TensorBoard(Callback):
    """Writes train/loss, train/learning_rate, train/loss_scale, train/samples_per_second, val/*, window/* and hparams.

    The x-axis is the optimizer step. A resumed run goes on in the same folder and discards what was written after
    the step it resumes from.

    Args:
        log_dir: folder of the event files; None for ``<run_dir>/tensorboard``, or ``runs/<time>`` without a run folder.
        every: cadence of the train/* scalars (one host copy each), or number of optimizer steps.
        hparams: values shown as a table under "hparams", or None for what the trainer itself tells.

    Raises:
        ConfigurationError: an argument is not of the kind named; at `setup`, tensorboardX is not installed or the
            folder cannot be written.
    """

    main_only = True
    reports_only = True

    def __init__(
        self,
        log_dir: str | Path | None = None,
        every: Every | int = 50,
        hparams: Mapping[str, Any] | None = None,
    ) -> None:
        self.log_dir = None if log_dir is None else Path(log_dir)
        self.every = cadence("TensorBoard", every)
        if hparams is not None and not isinstance(hparams, Mapping):
            refuse("TensorBoard(hparams=...)", "a mapping of names to values or None", hparams)
        self.hparams = hparams
        self.folder: Path | None = None
        self._writer: Any = None
        self._mark = (0.0, 0)

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

    def on_train_begin(self, trainer: Trainer) -> None:
        """Open the event file and write the hyperparameters."""
        progress = trainer.state.progress
        step = progress.global_step
        self._writer = EventFile(self.folder, step + 1 if step else None)
        self.every.start(progress)
        self._mark = (time.perf_counter(), progress.samples_seen)
        if not step:
            rows = [f"| {name} | {value} |" for name, value in mask_value(self._table(trainer)).items()]
            self._writer.text("hparams", "\n".join(["| name | value |", "| --- | --- |", *rows]), 0)

    def _table(self, trainer: Trainer) -> Mapping[str, Any]:
        if self.hparams is not None:
            return self.hparams
        return {
            "network": type(trainer.network).__name__,
            "loss_fn": None if trainer.loss_fn is None else type(trainer.loss_fn).__name__,
            "optimizer": None if trainer.optimizer is None else type(trainer.optimizer).__name__,
            "learning_rate": trainer.learning_rate,
            "sink_mode": trainer.sink_mode,
            **({} if trainer.tasks is None else {"tasks": trainer.tasks.describe()}),
        }

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Write the training scalars when due."""
        if self.every.unit != "epochs" and self.every.due(trainer.state.progress):
            self._train(trainer, trainer.state.outputs.loss)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Write the epoch's mean loss; with a cadence in epochs the other training scalars too."""
        step = trainer.state.progress.global_step
        if trainer.state.train_loss is not None:
            self._writer.scalar("epoch/loss", trainer.state.train_loss, step)
            for name, value in trainer.state.task_losses.items():
                self._writer.scalar(f"epoch/{name}", value, step)
        if self.every.unit == "epochs" and self.every.due(trainer.state.progress):
            self._train(trainer, trainer.state.train_loss)

    def _train(self, trainer: Trainer, loss: float | None) -> None:
        now, samples = time.perf_counter(), trainer.state.progress.samples_seen
        values = {
            "loss": loss,
            "learning_rate": trainer.learning_rate,
            "loss_scale": trainer.loss_scale,
            "samples_per_second": (samples - self._mark[1]) / max(now - self._mark[0], 1e-9),
        }
        self._mark = (now, samples)
        if trainer.tasks is not None:  # means of the epoch or the window so far, or of the epoch that has just ended
            so_far = trainer.tasks.read_losses(keep=True)
            ended = trainer.state.task_losses
            values |= {name: ended.get(name) if math.isnan(mean) else mean for name, mean in so_far.items()}
        for name, value in values.items():
            if value is not None:
                self._writer.scalar(f"train/{name}", value, trainer.state.progress.global_step)

    def on_eval_end(self, trainer: Trainer) -> None:
        """Write the validation results."""
        if self._writer is not None:
            for name, value in trainer.state.metrics.items():
                self._writer.scalar(f"val/{name.removeprefix('val_')}", value, trainer.state.progress.global_step)

    def on_window_end(self, trainer: Trainer) -> None:
        """Write the metrics of the window that closed."""
        for name, value in (trainer.state.window or {}).items():
            if isinstance(value, int | float):
                tag = f"window/{name.removeprefix('window_')}"
                self._writer.scalar(tag, value, trainer.state.progress.global_step)

    def on_save_checkpoint(self, trainer: Trainer) -> None:
        """Bring the events up to the snapshot onto disk."""
        if self._writer is not None:
            self._writer.flush()

    def teardown(self, trainer: Trainer) -> None:
        """Close the event file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

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

        self._add_summary(Summary(value=[Summary.Value(tag=name, simple_value=value)]), step)

    def text(self, name: str, text: str, step: int) -> None:
        """Add a text in Markdown; OSError as `scalar`."""
        from tensorboardX.summary import text as summary

        self._add_summary(summary(name, text), step)

    def _add_summary(self, summary: Any, step: int) -> None:
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
