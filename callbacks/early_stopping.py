"""`EarlyStopping`: ends the run when a metric stops improving."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer.checks import any_number, boolean, number, whole
from trainer.errors import ConfigurationError

from .callback import Trainer
from .watched import Patience

if TYPE_CHECKING:
    import numpy as np
    from mindspore import Parameter


logger = logging.getLogger(__name__)


class EarlyStopping(Patience):
    """Stops the run after `patience` consecutive measurements without improvement.

    A measurement is a validation ("val_*"), a closed online window ("window_*") or an epoch's mean loss ("loss").

    Args:
        monitor: name of the metric.
        patience: number of measurements without improvement after which the run stops; 0 and 1 both stop at the first
            such measurement.
        min_delta: minimum change that counts as an improvement, in the metric's unit.
        mode: "min", "max", or "auto", which uses the metric's ``higher_is_better``.
        baseline: value that the metric must beat before an improvement resets the patience, or None. As in Keras, the
            run does not stop at a measurement that is an improvement.
        restore_best: when this callback or a limit ends the run, restore the network's weights of the best measurement;
            publishing then uses them. If a validation measured the averages of `EMA` or `SWA`, these are restored. The
            copy takes the host memory of one network and is not part of snapshots. Not for networks with sparse tables.
        start_from_epoch: number of initial epochs whose measurements are ignored, as in Keras; not for windows.
        check_finite: whether a NaN or infinite value stops the run; False counts it as a measurement without
            improvement.
        stopping_threshold: stop as soon as the metric is better than this value, as in Lightning, or None.
        divergence_threshold: stop as soon as the metric is worse than this value, as in Lightning, or None.

    Attributes:
        best: best value so far, or None.
        best_step: optimizer step of the best value.
        wait: measurements since the last improvement.

    Raises:
        ConfigurationError: an argument is invalid; before training, "auto" with a metric that declares no direction, or
            `restore_best` of a network with sparse tables.
    """

    order = 50
    end_order = 105  # after the last snapshot of ModelCheckpoint, before Publish
    minimum_patience = 0

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 3,
        min_delta: float = 0.0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best: bool = False,
        *,
        start_from_epoch: int = 0,
        check_finite: bool = False,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
    ) -> None:
        super().__init__(monitor, patience, min_delta, mode)
        self.baseline = number("EarlyStopping(baseline=...)", baseline, optional=True)
        self.restore_best = bool(restore_best)
        self.start_from_epoch = whole("EarlyStopping(start_from_epoch=...)", start_from_epoch, 0)
        if start_from_epoch and monitor.startswith("window_"):
            raise ConfigurationError(
                f"EarlyStopping(start_from_epoch={start_from_epoch}): {monitor} is measured in windows of a "
                "stream, which has no epochs"
            )
        self.check_finite = boolean("EarlyStopping(check_finite=...)", check_finite)
        self.stopping_threshold = number("EarlyStopping(stopping_threshold=...)", stopping_threshold, optional=True)
        self.divergence_threshold = number(
            "EarlyStopping(divergence_threshold=...)", divergence_threshold, optional=True
        )

    def _clear(self) -> None:
        super()._clear()
        self._has_stopped_run = False
        self._latest: tuple[float, bool] | None = None  # the latest measurement, and whether it was an improvement
        self._weights: list[np.ndarray] | None = None
        self._calibration: dict[str, Any] | None = None

    def on_train_begin(self, trainer: Trainer) -> None:
        super().on_train_begin(trainer)
        sparse = {} if trainer.tables is None else trainer.tables.tables.tables  # dense tables are parameters
        if self.restore_best and sparse:
            raise ConfigurationError(
                "EarlyStopping(restore_best=True) would not restore the rows of sparse tables "
                f"({', '.join(sparse)}), only the network's weights; use "
                f"ModelCheckpoint(folder, monitor={self.monitor!r}, restore_best=True), which restores both"
            )
        # The resumed run may have stopped at its snapshot; a stream is resumed for the rows that have come since.
        if self._latest is not None and trainer.state.phase == "fit":
            self._stop_if_due(trainer, *self._latest, self.wait >= self.patience)

    def handle_measurement(self, trainer: Trainer, value: float, improved: bool) -> None:
        if improved and self.restore_best:
            is_validation = self.watched.hook(trainer) == "on_eval_end"  # a validation uses averaged weights, if any
            with trainer.averaged_weights() if is_validation else contextlib.nullcontext():
                self._weights = [parameter.asnumpy().copy() for parameter in _parameters(trainer)]
            self._calibration = None if trainer.calibrator is None else trainer.calibrator.state_dict()
        beats_baseline = self.baseline is None or self.watched.better(value, self.baseline)
        self._latest = value, improved
        self._stop_if_due(trainer, value, improved, self.out_of_patience(improved and beats_baseline))

    def _stop_if_due(self, trainer: Trainer, value: float, improved: bool, is_exhausted: bool) -> None:
        """Stop the run if this measurement gives a reason."""
        best = "no value" if self.best is None else f"best {self.best:.6g} at step {self.best_step}"
        label, lower_is_better = self.watched.name, self.watched.mode == "min"
        target, limit = self.stopping_threshold, self.divergence_threshold
        reason = ""
        if self.check_finite and not math.isfinite(value):
            reason = f"{label} is {value} ({best})"
        elif target is not None and (value < target if lower_is_better else value > target):
            reason = f"{label} is {value:.6g}, better than stopping_threshold={target:g}"
        elif limit is not None and (value > limit if lower_is_better else value < limit):
            reason = f"{label} is {value:.6g}, worse than divergence_threshold={limit:g} ({best})"
        elif is_exhausted and not improved:
            reason = f"{label} has not improved in {self.wait} measurements ({best}, now {value:.6g})"
        if reason:
            self._has_stopped_run = True
            trainer.stop(reason, kind="callback")

    def _measure(self, hook: str, trainer: Trainer) -> None:
        progress = trainer.state.progress
        # `progress.epoch` counts finished epochs: after the last step of an epoch it is one more than its index.
        epoch = progress.epoch if progress.step_in_epoch else progress.epoch - 1
        epoch += trainer.state.first_epoch - trainer.base["epoch"]  # counted from where the call began, as in Keras
        if not self.start_from_epoch or epoch >= self.start_from_epoch:
            super()._measure(hook, trainer)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "latest": None if self._latest is None else list(self._latest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        latest = state.get("latest")  # not in snapshots of earlier releases
        self._latest = None
        if latest is not None and state.get("monitor", self.monitor) == self.monitor:
            self._latest = any_number("latest", latest[0]), latest[1] is True

    def on_train_end(self, trainer: Trainer) -> None:
        """Restore the best weights if requested.

        This happens after the last snapshot, so a resumed run continues from the final weights, and before the last
        version is published. After a signal, nothing is restored.
        """
        reason = trainer.state.stop_reason
        if not self.restore_best or not (self._has_stopped_run or (reason is not None and reason.kind == "limit")):
            return
        if self._weights is None:
            logger.warning("EarlyStopping: no weights restored: those of the best %s are not in memory", self.monitor)
            return
        average = trainer.builder.average  # the best weights may be averages, also those of the last step
        if self.best_step != trainer.state.progress.global_step or average is not None:
            from mindspore import Tensor, ops

            for parameter, value in zip(_parameters(trainer), self._weights, strict=True):
                # Use assign, because after set_data a compiled step with a branch would still use the old value.
                ops.assign(parameter, Tensor(value))
            if average is not None:
                average.restart()
            if self._calibration is not None:
                trainer.calibrator.load_state_dict(self._calibration)
            logger.info("EarlyStopping: restored the weights of step %s", self.best_step)
        self._weights = None


def _parameters(trainer: Trainer) -> list[Parameter]:
    """Return the parameters of network and loss, even if one overrides the method."""
    from mindspore import nn

    cells = [cell for cell in (trainer.network, trainer.loss_fn) if isinstance(cell, nn.Cell)]
    parameters = [parameter for cell in cells for _, parameter in nn.Cell.parameters_and_names(cell)]
    return list({id(parameter): parameter for parameter in parameters}.values())
