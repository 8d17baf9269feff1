"""`TerminateOnNaN` and `SkipNonFinite`: handle NaN or infinite updates.

With one of these callbacks, the compiled step does not apply an update whose loss or gradient norm is not finite in
float32; it counts the update on the device instead. The callbacks only request "terminate" or "skip" (`non_finite`) and
read the counters at a cadence, so normal steps need no host copy.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from trainer.cadence import Every, cadence
from trainer.checks import whole

from .callback import Callback, Trainer

logger = logging.getLogger(__name__)

_MAX_RECORDS = 100  # maximum length of `SkipNonFinite.skipped`
_MAX_CALLS = 1024  # maximum number of calls remembered between two readings
# Consecutive overflows that the loss scaler may handle. A dynamic loss scale of 2**24 reaches 1 after 24 halvings, so
# later overflows are not caused by scaling.
_MAX_SCALING_OVERFLOWS = 32


class _NonFinite(Callback):
    """Reads the device's counters when due, and at the end of epochs and runs."""

    order = 90
    non_finite: str

    def __init__(self, every: Every | int | None = None) -> None:
        self.every = cadence(type(self).__name__, every, Every(steps=50))
        self._skipped = 0

    def on_train_begin(self, trainer: Trainer) -> None:
        self.every.start(trainer.state.progress)
        self._skipped = trainer.read_counters()["skipped"]

    def on_train_step_end(self, trainer: Trainer) -> None:
        if self.every.unit != "epochs" and self.every.due(trainer.state.progress):
            self._check_losses(trainer)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        self._check_losses(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        self._check_losses(trainer)

    def _check_losses(self, trainer: Trainer) -> None:
        counters = trainer.read_counters()
        new_skips, self._skipped = counters["skipped"] - self._skipped, counters["skipped"]
        if new_skips > 0:
            self._handle(trainer, new_skips, counters)

    def _handle(self, trainer: Trainer, new_skips: int, counters: Mapping[str, int]) -> None:
        raise NotImplementedError


class TerminateOnNaN(_NonFinite):
    """Ends the run at the first NaN or infinite loss or gradient.

    Neither this update nor any later one is applied. With a loss scale, the scaler handles gradients that overflow if
    the loss is finite, unless 32 consecutive steps overflow.

    Args:
        every: cadence, or number of optimizer steps, at which the device's counters are read. The run may continue
            until the next reading, but without updates.

    Raises:
        ConfigurationError: `every` is neither a cadence nor a number of steps.
    """

    non_finite = "terminate"

    def _handle(self, trainer: Trainer, new_skips: int, counters: Mapping[str, int]) -> None:
        if not counters["fatal"] and counters["consecutive"] < _MAX_SCALING_OVERFLOWS:
            return
        step = trainer.state.progress.global_step
        reason = f"loss or gradient became NaN or infinite at or before step {step}; the update was not applied"
        logger.error("TerminateOnNaN: %s", reason)
        trainer.stop(reason, kind="non_finite")


class SkipNonFinite(_NonFinite):
    """Skips updates whose loss or gradient norm is NaN or infinite.

    After too many skipped steps in a row, it rolls back to a snapshot or ends the run. A rollback restores weights,
    optimizer and step state; the data continues from its current position. `Trainer.online_train` adds this callback by
    default, without rollbacks. With a loss scale, the scaler handles gradients that overflow if the loss is finite,
    unless 32 consecutive steps overflow.

    Args:
        max_consecutive: number of consecutive skipped steps that triggers a rollback or the end of the run.
        rollback: whether to roll back to the newest snapshot; False ends the run.
        max_rollbacks: maximum number of rollbacks in a run. After them the run ends, because the cause persists.
        every: cadence, or number of optimizer steps, at which the device's counters are read.

    Attributes:
        skipped: the latest 100 skipped steps, as dicts with "step" (counted from 1) and "between": the data positions
            before and after the call that contained the step.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    non_finite = "skip"

    def __init__(
        self, max_consecutive: int = 3, rollback: bool = True, max_rollbacks: int = 3, every: Every | int | None = None
    ) -> None:
        super().__init__(every)
        self.max_consecutive = whole("SkipNonFinite(max_consecutive=...)", max_consecutive, 1)
        self.rollback = bool(rollback)
        self.max_rollbacks = whole("SkipNonFinite(max_rollbacks=...)", max_rollbacks, 0)
        self.skipped: list[dict[str, Any]] = []
        # (first step, last step, position before, position after) of each call since the last reading.
        self._calls: deque[tuple[int, int, Any, Any]] = deque(maxlen=_MAX_CALLS)
        self._rollbacks = 0
        self._longest_run = self._fatal = 0

    def setup(self, trainer: Trainer) -> None:
        self.skipped, self._rollbacks = [], 0
        self._calls.clear()

    def on_train_begin(self, trainer: Trainer) -> None:
        super().on_train_begin(trainer)
        counters = trainer.read_counters()  # earlier bad steps must not cause a rollback
        self._longest_run, self._fatal = counters["longest_run"], counters["fatal"]
        run: Any = trainer.run
        self._position = None if run is None else run.cursor.position

    def on_train_step_end(self, trainer: Trainer) -> None:
        step, outputs = trainer.state.progress.global_step, trainer.state.outputs
        before, self._position = self._position, outputs.chunk.position
        self._calls.append((step - outputs.chunk.num_steps + 1, step, before, self._position))
        super().on_train_step_end(trainer)

    def _check_losses(self, trainer: Trainer) -> None:
        super()._check_losses(trainer)
        self._calls.clear()

    def _handle(self, trainer: Trainer, new_skips: int, counters: Mapping[str, int]) -> None:
        for step in trainer.read_bad_steps():
            call = next((call for call in self._calls if call[0] <= step <= call[1]), None)
            if call is not None:
                between = [position.to_json() for position in call[2:]]
                self.skipped = [*self.skipped[1 - _MAX_RECORDS :], {"step": step, "between": between}]
                logger.warning("SkipNonFinite: skipped step %d, its data lies between %s and %s", step, *between)
        total = counters["skipped"]
        logger.warning("SkipNonFinite: %d updates skipped since the last check, %d in total", new_skips, total)
        run_length = counters["consecutive"]
        if counters["longest_run"] > self._longest_run:
            self._longest_run = counters["longest_run"]
            run_length = max(run_length, self._longest_run)
        new_fatal, self._fatal = counters["fatal"] - self._fatal, counters["fatal"]
        if run_length >= self.max_consecutive and (new_fatal or run_length >= _MAX_SCALING_OVERFLOWS):
            self._respond(trainer, run_length)

    def _respond(self, trainer: Trainer, run_length: int) -> None:
        if self.rollback:
            trainer.saver.wait()  # a snapshot that is being written may be the one to roll back to
        reason = f"{run_length} non-finite steps in a row (max_consecutive={self.max_consecutive})"
        if trainer.state.stop_reason is not None:
            logger.warning("SkipNonFinite: %s; the run is ending anyway", reason)
        elif not self.rollback:
            trainer.stop(f"{reason}; none of them changed the weights; the log names their rows", kind="non_finite")
        elif trainer.state.snapshot is None:
            trainer.stop(f"{reason}, and there is no snapshot to roll back to", kind="non_finite")
        elif self._rollbacks >= self.max_rollbacks:
            trainer.stop(f"{reason} again after {self._rollbacks} rollbacks", kind="non_finite")
        else:
            self._rollbacks += 1
            logger.warning("SkipNonFinite: %s; rolling back to %s", reason, trainer.state.snapshot)
            trainer.rollback()
            # Read the counters again, because the rollback has restored them too.
            counters = trainer.read_counters()
            self._skipped, self._longest_run = counters["skipped"], counters["longest_run"]
            self._fatal = counters["fatal"]

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped} if self.skipped else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.skipped = [
            {"step": whole("step", entry["step"], 0), "between": list(entry["between"])}
            for entry in state.get("skipped", ())
        ]
