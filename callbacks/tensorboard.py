"""`TensorBoard`: scalars of a run as TensorBoard event files."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cadence import Every, cadence
from trainer.checks import refuse
from trainer.errors import ConfigurationError
from trainer.masking import mask_value

from ._support.event_file import EventFile
from ._support.folders import writable
from .callback import Callback

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
