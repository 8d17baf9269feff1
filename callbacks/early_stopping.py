"""`EarlyStopping`: end the run when a metric has stopped improving."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trainer.checks import number

from .watched import Patience

if TYPE_CHECKING:
    import numpy as np
    from mindspore import Parameter

    from trainer.trainer import Trainer

logger = logging.getLogger(__name__)


class EarlyStopping(Patience):
    """Stops after `patience` measurements in a row without an improvement.

    A measurement is a validation ("val_*"), a closed online window ("window_*") or an epoch's mean loss ("loss").

    Args:
        monitor: name of the metric.
        patience: measurements without improvement that are put up with.
        min_delta: least change that counts as an improvement, in the metric's unit.
        mode: "min", "max", or "auto": as the metric's ``higher_is_better`` says.
        baseline: value the metric must beat for its improvements to count, or None.
        restore_best: put the network's weights of the best measurement back when this callback or a limit ends the
            run. The copy is held in host memory (one network) and is not part of a snapshot.

    Attributes:
        best: best value so far, or None.
        best_step: optimizer step of the best value.
        wait: measurements since the last improvement.

    Raises:
        ConfigurationError: an argument is not of the kind named; before training, "auto" with a metric that
            declares no direction.
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
        super().__init__(monitor, patience, min_delta, mode)
        self.baseline = number("EarlyStopping(baseline=...)", baseline, optional=True)
        self.restore_best = bool(restore_best)

    def _clear(self) -> None:
        super()._clear()
        self._fired = False
        self._weights: dict[str, np.ndarray] | None = None

    def measured(self, trainer: Trainer, value: float, improved: bool) -> None:
        """Keep the best weights; ask for the end of the run when the patience is used up."""
        if improved and self.restore_best:
            self._weights = {p.name: p.asnumpy().copy() for p in _parameters(trainer)}
        if self.out_of_patience(improved and (self.baseline is None or self.watched.better(value, self.baseline))):
            self._fired = True
            best = "no value" if self.best is None else f"best {self.best:.6g} at step {self.best_step}"
            reason = f"{self.monitor} has not improved in {self.wait} measurements ({best}, now {value:.6g})"
            trainer.stop(reason, kind="callback")

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

            for parameter in _parameters(trainer):
                if parameter.name in self._weights:
                    # Not set_data: a compiled step with a branch in it goes on with the old value after that.
                    ops.assign(parameter, Tensor(self._weights[parameter.name]))
            logger.info("EarlyStopping: restored the weights of step %s", self.best_step)
        self._weights = None


def _parameters(trainer: Trainer) -> list[Parameter]:
    """Return the network's parameters by the class's method: a user's network may hold a value under its name."""
    from mindspore import nn

    return [parameter for _, parameter in nn.Cell.parameters_and_names(trainer.network)]
