"""Where a training is in its data, and what a snapshot holds of it besides tensors and counters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..checks import whole
from ..data.row_padding import RowFilling
from ..data.sources import Source
from ..state import Progress
from .limits import Every
from .loss_meter import LossMeter

logger = logging.getLogger(__name__)


class Cursor:
    """The place of a training in its data; part of every snapshot.

    Args:
        source: the data.
        progress: the trainer's counters; limits of this call count from their present values.
        valid_every: cadence of validation, or None for every epoch end.
        filling: which batches are filled up, or None.

    Attributes:
        position: JSON-able place right after the last row trained on.
        meter: sum of the losses of the epoch under way.
        base: epoch and step that the limits of the call count from.
    """

    def __init__(
        self,
        source: Source,
        progress: Progress,
        valid_every: Every | None = None,
        filling: RowFilling | None = None,
    ) -> None:
        self.source = source
        self.valid_every = valid_every
        self.filling = filling
        self.position: dict[str, Any] = {} if source.endless else {"epoch": progress.epoch, "batch": 0}
        self.meter = LossMeter()
        self.base = {"epoch": progress.epoch, "step": progress.global_step}
        self._progress = progress
        self._of_all: tuple[Any, dict[str, Any]] | None = None
        if valid_every is not None:
            valid_every.start(progress)

    def of_all(self) -> dict[str, Any]:
        """Return the position of all processes; before a snapshot all call it together."""
        if self._of_all is None or self._of_all[0] is not self.position:
            self._of_all = self.position, self.source.of_all(dict(self.position))
        return self._of_all[1]

    def state_dict(self) -> dict[str, Any]:
        """Return what the limits count from, and position, what a position means, loss sums and cadence."""
        loop = {
            "position": self.of_all(),
            "source": describe(self.source),
            "meter": self.meter.state_dict(),
            "valid_every": None if self.valid_every is None else self.valid_every.state_dict(),
            "filling": None if self.filling is None else self.filling.state_dict(),
        }
        return {"limits_base": self.base, "loop": loop}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; a position in other data is replaced by the start of its epoch.

        The trainer's counters must have been restored before.
        """
        base = state.get("limits_base", self.base)
        self.base = {name: whole(f"limits_base {name}", base[name], 0) for name in ("epoch", "step")}
        if "loop" not in state:  # saved outside a training
            return
        loop = state["loop"]
        self.position = dict(loop["position"])
        for name in () if self.source.endless else ("epoch", "batch"):
            whole(f"position {name}", self.position.get(name, 0), 0)
        self.meter.load_state_dict(loop["meter"])
        if self.valid_every is not None and loop["valid_every"] is not None:
            self.valid_every.load_state_dict(loop["valid_every"])
        if self.filling is not None and loop.get("filling") is not None:
            self.filling.load_state_dict(loop["filling"])
        now, then = describe(self.source), loop["source"]
        self._count_anew(now, then)
        changed = [f"{key} {then.get(key)!r} -> {now[key]!r}" for key in now if then.get(key) != now[key]]
        if changed:
            batch = self.position.get("batch", 0)
            self.position = {"epoch": self.position.get("epoch", 0), "batch": 0}
            self._progress.step_in_epoch = 0
            logger.warning(
                "the dataset is not the one of the snapshot (%s): its epoch starts again, %d batches are repeated",
                ", ".join(changed),
                batch,
            )

    def _count_anew(self, now: dict[str, Any], then: Mapping[str, Any]) -> None:
        """Count the position in steps of this number of processes, where the snapshot was taken with another.

        What then need not be the same any more is taken out of `now`.
        """
        before, after = then.get("processes", 1), now.pop("processes", 1)
        if before == after:
            return
        batch, epoch = self.position.get("batch", 0), self.position.get("epoch", 0)
        if "rows" not in now:
            done, rest = divmod(batch * before, after)
            self.position["batch"] = done
            if rest:
                now["processes"] = after  # no step begins there: the epoch has to start again
        elif now["batch_size"] != then.get("batch_size"):
            counted_from = self.position.get("state")
            first = counted_from["row"] if counted_from and counted_from["epoch"] == epoch else 0
            row = first + batch * then["batch_size"]
            self.position |= {"batch": 0, "state": {"epoch": epoch, "row": row}}
            del now["batch_size"]


def describe(source: Source) -> dict[str, Any]:
    """Return what has to be the same for a position to mean the same rows, as far as all processes know it."""
    return {"kind": "separate"} if source.separate else source.describe()
