"""The position of a training in its data, which snapshots save."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from ..cadence import Every
from ..checks import whole
from ..data.batch_sizes import RowFilling
from ..data.position import Position
from ..data.source import Source
from ..state import Progress
from .tally import LossMeter

logger = logging.getLogger(__name__)


class Cursor:
    """The position of a training in its data; part of every snapshot.

    If `valid_every` is None, validation runs at the end of each epoch.
    """

    def __init__(
        self,
        source: Source,
        progress: Progress,
        valid_every: Every | None = None,
        filling: RowFilling | None = None,
        *,
        restore_seed: bool = False,  # whether a resumed run keeps the seed of its snapshot
    ) -> None:
        self.source, self.valid_every, self.filling, self._restore_seed = source, valid_every, filling, restore_seed
        self.position = Position() if source.endless else Position(progress.epoch)  # just after the last trained row
        self.updated = self.position  # just after the last row of a complete update
        self.rows_updated = 0  # rows of the Trainer's life up to there
        self.meter = LossMeter()  # losses of the current epoch
        self.validation_pending = False  # whether a validation was due and is not done
        self.base = {"epoch": progress.epoch, "step": progress.global_step}  # the limits of a call count from here
        self._progress = progress
        self._shared: tuple[Position, dict[str, Any]] | None = None
        if valid_every is not None:
            valid_every.start(progress)

    def shared_position(self) -> dict[str, Any]:
        """Return the joint position of all processes; a collective call."""
        if self._shared is None or self._shared[0] is not self.position:
            if self.updated is not self.position:  # first, because a stream forgets its states before `position`
                self.updated = self.source.resolve(self.updated)
            self._shared = self.position, self.source.joint_position(self.position).to_json()
        return self._shared[1]

    def state_dict(self) -> dict[str, Any]:
        """Return the position, start of the limits, loss sums and cadence, for a snapshot."""
        loop = {
            "position": self.shared_position(),
            "source": self.source.describe(),
            "meter": self.meter.state_dict(),
            "valid_every": None if self.valid_every is None else self.valid_every.state_dict(),
            "validation_pending": self.validation_pending,
            "filling": None if self.filling is None else self.filling.state_dict(),
            "first_epoch": self.source.first_epoch,
            "seed": self.source.seed if self.source.takes_seed else None,
        }
        return {"limits_base": self.base, "loop": loop}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; if the data differ, restart the epoch.

        The trainer's counters must be restored first.
        """
        base = state.get("limits_base", {"epoch": 0, "step": 0})
        self.base = {name: whole(f"limits_base {name}", base[name], 0) for name in ("epoch", "step")}
        if "loop" not in state:  # saved outside a training: the epoch begins anew
            self.position = Position() if self.source.endless else Position(self._progress.epoch)
            self._progress.step_in_epoch = 0
            if self.source.endless and self._progress.samples_seen:
                logger.warning(
                    "the snapshot was saved outside of a training, so it does not say where in the stream the %d rows "
                    "trained on end: a new stream begins at its start; ModelCheckpoint saves the position",
                    self._progress.samples_seen,
                )
            self._skip_due_validation()
            return
        loop = state["loop"]
        self.position = Position.from_json(loop["position"])
        self.meter.load_state_dict(loop["meter"])
        self.validation_pending = loop.get("validation_pending") is True
        if self.valid_every is not None and loop["valid_every"] is not None:
            self.valid_every.load_state_dict(loop["valid_every"])
        else:
            self._skip_due_validation()
        if not self.source.endless and self.position.epoch > self._progress.epoch:
            # Saved by a hook that runs after the last step of an epoch, before the epoch is counted.
            self._progress.epoch, self._progress.step_in_epoch = self.position.epoch, 0
            self.validation_pending = self.valid_every is None or self.valid_every.due(self._progress)
        if self.filling is not None and loop.get("filling") is not None:
            self.filling.load_state_dict(loop["filling"])
        saved = loop["source"]
        self.source.first_epoch = whole("first_epoch", loop.get("first_epoch", 0), 0)
        seed = whole("seed", loop.get("seed", saved.get("seed")), 0, optional=True)
        if self._restore_seed and self.source.takes_seed and seed is not None:
            self.source.seed = seed
        current = self.source.describe()
        saved = {"parts": current.get("parts"), **saved}  # snapshots of older releases do not name the parts
        self._convert_steps(current, saved)
        changed = [f"{key} {saved.get(key)!r} -> {current[key]!r}" for key in current if saved.get(key) != current[key]]
        if changed:
            logger.warning(
                "the dataset differs from that of the snapshot (%s): the epoch restarts, and %d batches are repeated",
                ", ".join(changed),
                self.position.batch,
            )
            self.position = Position(0 if self.source.endless else self._progress.epoch)
            self._progress.step_in_epoch = 0

    def _skip_due_validation(self) -> None:
        """Let no validation be due that the run of the snapshot did not have."""
        if self.valid_every is not None:
            self.valid_every.due(self._progress)

    def _convert_steps(self, current: dict[str, Any], saved: Mapping[str, Any]) -> None:
        """Convert a position that was saved with a different number of processes.

        Removes from `current` the properties that depend on the number of processes, so that they are not compared.
        """
        before, after = saved.get("processes", 1), current.pop("processes", 1)
        if before == after:
            return
        position = self.position
        if "rows" not in current:
            done, rest = divmod(position.batch * before, after)
            self.position = dataclasses.replace(position, batch=done)
            if rest:
                current["processes"] = after  # the position is inside a step, so the epoch must restart
        elif "batch_size" in saved and current["batch_size"] != saved["batch_size"]:
            first = position.state["row"] if position.state and position.state["epoch"] == position.epoch else 0
            row = first + position.batch * saved["batch_size"]
            self.position = dataclasses.replace(position, batch=0, state={"epoch": position.epoch, "row": row})
            del current["batch_size"]
