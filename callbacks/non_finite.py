"""`TerminateOnNaN` and `SkipNonFinite`: what to do about a loss or gradient that is NaN or infinite.

The decision itself is part of the compiled step: with one of these callbacks present it never applies such an update
and counts it on the device. The callbacks only say which of the two is wanted (`non_finite`) and read the counters at
a cadence, so a healthy step costs no host copy.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from callbacks.arguments import cadence, whole
from callbacks.cadence import Every
from callbacks.callback import Callback

if TYPE_CHECKING:
    from trainer.trainer import Trainer

logger = logging.getLogger(__name__)

_RECORDS = 100
_CHUNKS = 1024


class _NonFinite(Callback):
    """Reads the device's counters when due, and at the end of each epoch and of the run."""

    order = 90
    non_finite: str

    def __init__(self, every: Every | int | None) -> None:
        self.every = cadence(type(self).__name__, every, Every(steps=50))
        self._skipped = 0

    def on_train_begin(self, trainer: Trainer) -> None:
        """Count from here."""
        self.every.start(trainer.state.progress)
        self._skipped = trainer.read_counters()["skipped"]

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Look when due."""
        if self.every.unit != "epochs" and self.every.due(trainer.state.progress):
            self._look(trainer)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Look once more."""
        self._look(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        """Look once more."""
        self._look(trainer)

    def _look(self, trainer: Trainer) -> None:
        counters = trainer.read_counters()
        trainer.state.skipped_steps = counters["skipped"]
        new, self._skipped = counters["skipped"] - self._skipped, counters["skipped"]
        if new > 0:
            self._answer(trainer, new, counters)

    def _answer(self, trainer: Trainer, new: int, counters: Mapping[str, int]) -> None:
        raise NotImplementedError


class TerminateOnNaN(_NonFinite):
    """Ends the run at the first loss or gradient that is NaN or infinite; that update is never applied.

    Args:
        every: cadence, or number of optimizer steps, at which the device's counters are read. From the bad step
            to the next reading no update is applied any more.

    Raises:
        TypeError, ValueError: `every` is neither.
    """

    non_finite = "terminate"

    def __init__(self, every: Every | int | None = None) -> None:
        super().__init__(every)

    def _answer(self, trainer: Trainer, new: int, counters: Mapping[str, int]) -> None:
        step = trainer.state.progress.global_step
        reason = f"loss or gradient became NaN or infinite at or before step {step}; the update was not applied"
        logger.error("TerminateOnNaN: %s", reason)
        trainer.stop(reason, kind="non_finite")


class SkipNonFinite(_NonFinite):
    """Skips updates whose loss or gradient is NaN or infinite; after too many in a row rolls back to a snapshot.

    Args:
        max_consecutive: skipped steps in a row that are put up with.
        rollback: after that many go back to the newest snapshot, else end the run.
        max_rollbacks: rollbacks of one run; the next one ends it instead, since the cause is not passing.
        every: cadence, or number of optimizer steps, at which the device's counters are read.

    Attributes:
        skipped: the last 100 readings with skipped steps: dicts of "count", "first_step", "last_step" (the steps
            among which they are) and "positions" (where their batches came from: first and last).

    Raises:
        TypeError, ValueError: an argument is not of the kind named.
    """

    non_finite = "skip"

    def __init__(
        self,
        max_consecutive: int = 3,
        rollback: bool = True,
        max_rollbacks: int = 3,
        every: Every | int | None = None,
    ) -> None:
        super().__init__(every)
        self.max_consecutive = whole("SkipNonFinite", "max_consecutive", max_consecutive, 1)
        self.rollback = bool(rollback)
        self.max_rollbacks = whole("SkipNonFinite", "max_rollbacks", max_rollbacks, 0)
        self.skipped: list[dict[str, Any]] = []
        self._chunks: deque[tuple[int, Any]] = deque(maxlen=_CHUNKS)
        self._rollbacks = 0
        self._longest_run = 0

    def setup(self, trainer: Trainer) -> None:
        """Begin a new record."""
        self.skipped, self._rollbacks, self._longest_run = [], 0, 0

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Note the batch's position, look when due."""
        self._chunks.append((trainer.state.progress.global_step, trainer.state.outputs.chunk))
        super().on_train_step_end(trainer)

    def _look(self, trainer: Trainer) -> None:
        super()._look(trainer)
        self._chunks.clear()

    def _answer(self, trainer: Trainer, new: int, counters: Mapping[str, int]) -> None:
        first, last = self._chunks[0], self._chunks[-1]
        record = {
            "count": new,
            "first_step": first[0] - first[1].num_steps + 1,
            "last_step": last[0],
            "positions": [first[1].position, last[1].position],
        }
        self.skipped = [*self.skipped[1 - _RECORDS :], record]
        logger.warning(
            "SkipNonFinite: %d update(s) skipped between steps %d and %d, rows between %s and %s",
            *(new, record["first_step"], record["last_step"], first[1].position, last[1].position),
        )
        run = counters["consecutive"]
        longest = counters.get("longest_run", 0)
        if longest > self._longest_run:
            run, self._longest_run = max(run, longest), longest
        if run >= self.max_consecutive:
            self._give_up(trainer, run)

    def _give_up(self, trainer: Trainer, run: int) -> None:
        reason = f"{run} non-finite steps in a row (max_consecutive={self.max_consecutive})"
        if trainer.state.stop_reason is not None:
            logger.warning("SkipNonFinite: %s; the run is ending anyway", reason)
        elif not self.rollback:
            trainer.stop(reason, kind="non_finite")
        elif trainer.state.snapshot is None:
            trainer.stop(f"{reason}, and there is no snapshot to roll back to", kind="non_finite")
        elif self._rollbacks >= self.max_rollbacks:
            trainer.stop(f"{reason} again after {self._rollbacks} rollbacks", kind="non_finite")
        else:
            self._rollbacks += 1
            logger.warning("SkipNonFinite: %s; rolling back to %s", reason, trainer.state.snapshot)
            trainer.rollback()
            self._skipped = trainer.read_counters()["skipped"]

    def state_dict(self) -> dict[str, Any]:
        """Return the record of skipped steps; the count of rollbacks must outlive a rollback and is left out."""
        return {"skipped": self.skipped} if self.skipped else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep the record that knows more: a rollback restores a state older than what is known now."""
        if len(state["skipped"]) > len(self.skipped):
            self.skipped = list(state["skipped"])
