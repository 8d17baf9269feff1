"""`EarlyStopping`: end the run when a metric has stopped improving."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from callbacks.arguments import number, whole
from callbacks.callback import Callback
from callbacks.metric import Watched

if TYPE_CHECKING:
    import numpy as np

    from trainer.trainer import Trainer

logger = logging.getLogger(__name__)


class EarlyStopping(Callback):
    """Stops after `patience` measurements in a row without an improvement.

    A measurement is a validation ("val_*"), a closed online window ("window_*") or an epoch's mean loss ("loss").

    Args:
        monitor: name of the metric.
        patience: measurements without improvement that are put up with.
        min_delta: least change that counts as an improvement, in the metric's unit.
        mode: "min", "max", or "auto" to read it from the metric's name.
        baseline: value the metric must beat for its improvements to count, or None.
        restore_best: put the network's weights of the best measurement back when this callback or a limit ends the
            run. The copy is held in host memory (one network) and is not part of a snapshot.

    Attributes:
        best: best value so far, or None.
        best_step: optimizer step of the best value.
        wait: measurements since the last improvement.

    Raises:
        TypeError, ValueError: an argument is not of the kind named, or "auto" cannot tell the direction.
    """

    order = 50

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 3,
        min_delta: float = 0.0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best: bool = False,
    ) -> None:
        self.watched = Watched("EarlyStopping", monitor, mode, min_delta)
        self.monitor = monitor
        self.patience = whole("EarlyStopping", "patience", patience, 1)
        self.baseline = None if baseline is None else number("EarlyStopping", "baseline", baseline)
        self.restore_best = bool(restore_best)
        self._clear()

    def _clear(self) -> None:
        self.best: float | None = None
        self.best_step: int | None = None
        self.wait = 0
        self._fired = False
        self._weights: dict[str, np.ndarray] | None = None

    def setup(self, trainer: Trainer) -> None:
        """Forget earlier runs; a restored snapshot then puts back its own."""
        self._clear()

    def _measure(self, hook: str, trainer: Trainer) -> None:
        if hook != self.watched.hook or trainer.state.phase == "evaluate":
            return
        value = self.watched.read(trainer)
        if value is None:
            return
        step = trainer.state.progress.global_step
        if self.watched.better(value, self.best):
            self.best, self.best_step = value, step
            if self.restore_best:
                self._weights = {p.name: p.asnumpy().copy() for p in trainer.network.get_parameters()}
            if self.baseline is None or self.watched.better(value, self.baseline):
                self.wait = 0
                return
        self.wait += 1
        if self.wait >= self.patience:
            self._fired = True
            best = "no value" if self.best is None else f"best {self.best:.6g} at step {self.best_step}"
            reason = f"{self.monitor} has not improved in {self.wait} measurements ({best}, now {value:.6g})"
            trainer.stop(reason, kind="callback")

    def on_eval_end(self, trainer: Trainer) -> None:
        """Measure a validation metric."""
        self._measure("on_eval_end", trainer)

    def on_window_end(self, trainer: Trainer) -> None:
        """Measure a window metric."""
        self._measure("on_window_end", trainer)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Measure the training loss."""
        self._measure("on_train_epoch_end", trainer)

    def teardown(self, trainer: Trainer) -> None:
        """Put the best weights back where that was asked for; a run that a signal ended keeps its own, to go on.

        After the last snapshot, which holds what a longer run would go on from.
        """
        reason = trainer.state.stop_reason
        if not self.restore_best or not (self._fired or (reason is not None and reason.kind == "limit")):
            return
        if self._weights is None:
            logger.warning("EarlyStopping: the weights of the best %s are not in memory; none restored", self.monitor)
            return
        if self.best_step != trainer.state.progress.global_step:
            from mindspore import Tensor, ops

            for parameter in trainer.network.get_parameters():
                if parameter.name in self._weights:
                    # Not set_data: a compiled step with a branch in it goes on with the old value after that.
                    ops.assign(parameter, Tensor(self._weights[parameter.name]))
            logger.info("EarlyStopping: restored the weights of step %s", self.best_step)
        self._weights = None

    def state_dict(self) -> dict[str, Any]:
        """Return best value, its step and the patience used up."""
        return {"best": self.best, "best_step": self.best_step, "wait": self.wait}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.best, self.best_step, self.wait = state["best"], state["best_step"], int(state["wait"])
