"""`LossMonitor`: prints the training loss."""

from __future__ import annotations

from trainer.cadence import Every, cadence

from .callback import Callback, Trainer
from .output import format_metrics, say


class LossMonitor(Callback):
    """Prints the loss of the latest step at a cadence, and validation results.

    Args:
        every: cadence, or a number of optimizer steps. The loss is copied to the host only when a line is due. None:
            after each training call, whether it trains one step or several.

    Raises:
        ConfigurationError: `every` is not a cadence or a positive whole number.
    """

    main_only = True
    reports_only = True

    def __init__(self, every: Every | int | None = None) -> None:
        self.every = cadence("LossMonitor", every, Every(steps=1))

    def on_train_begin(self, trainer: Trainer) -> None:
        self.every.start(trainer.state.progress)

    def on_train_step_end(self, trainer: Trainer) -> None:
        progress = trainer.state.progress
        if self.every.unit != "epochs" and self.every.due(progress):
            say(f"epoch {progress.epoch + 1} step {progress.global_step}: loss {trainer.state.outputs.loss:.6g}")

    def on_eval_end(self, trainer: Trainer) -> None:
        if trainer.state.metrics and trainer.state.phase != "evaluate":
            say(f"step {trainer.state.progress.global_step}: {format_metrics(trainer.state.metrics)}")

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        progress = trainer.state.progress
        if self.every.unit == "epochs" and self.every.due(progress) and trainer.state.train_loss is not None:
            tasks = trainer.state.task_losses
            task_text = f", {format_metrics(tasks)}" if tasks else ""
            say(f"epoch {progress.epoch}: mean loss {trainer.state.train_loss:.6g}{task_text}")
