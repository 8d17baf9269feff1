"""`ModelCheckpoint`: takes snapshots and removes old ones."""

from __future__ import annotations

import copy
import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.cadence import Every, cadence
from trainer.checks import any_number, refuse, whole
from trainer.errors import ConfigurationError, did_you_mean

from .callback import Callback, Trainer
from .output import in_run_folder
from .watched import Watched

logger = logging.getLogger(__name__)


class ModelCheckpoint(Callback):
    """Takes snapshots at a cadence and keeps the best and the last of them.

    A metric value ranks only a snapshot of the same step. If a value that is measured between two snapshots is among
    the best, an additional snapshot is taken. The callback removes only its own snapshots and those of the run that it
    resumes, and only after a newer snapshot is durable.

    Args:
        dirpath: folder of the snapshots; None for ``<run_dir>/checkpoints``.
        every: cadence, or number of optimizer steps; "window" for the end of each online window; None for the end
            of each epoch.
        monitor: metric that ranks snapshots: "val_*", "window_*", or "loss" (mean of an epoch, which ranks only
            snapshots at epoch ends). None for no ranking.
        mode: "min", "max", or "auto", which uses the metric's ``higher_is_better``.
        keep_best: number of best snapshots to keep (with `monitor`); the file ``best`` names the best one.
        keep_last: number of newest snapshots to keep in addition, or None for all.
        background: write snapshots on a background thread; training waits only while tensors are copied.
        save_on_exit: take a snapshot when the run ends, also after SIGTERM, but not after an exception.
        restore_best: load the weights of the best snapshot, sparse tables included, when a limit or a callback ends the
            run. Tests and publishing then use them. The last snapshot still holds the final weights of the training, so
            a resumed run continues from those.

    Attributes:
        root: folder of the snapshots, set by `setup`.
        best_name: name of the best snapshot, or None.

    Raises:
        ConfigurationError: an argument is invalid; at `setup`, there is no writable folder.
        FolderInUseError: at `setup`, another run, named in the message, writes to the folder.
    """

    order = 100
    leaves_files = True

    def __init__(
        self,
        dirpath: str | Path | None = None,
        every: Every | int | str | None = None,
        monitor: str | None = None,
        mode: str = "auto",
        keep_best: int = 1,
        keep_last: int | None = 2,
        background: bool = False,
        save_on_exit: bool = True,
        restore_best: bool = False,
    ) -> None:
        self.dirpath = None if dirpath is None else Path(dirpath)
        if isinstance(every, str) and every != "window":
            accepted = "an Every, a whole number of optimizer steps, 'window' or None"
            refuse("ModelCheckpoint(every=...)", accepted, every, did_you_mean(every, ["window"]))
        self.every = every if every == "window" else cadence("ModelCheckpoint", every, Every(epochs=1))
        self.watched = None if monitor is None else Watched("ModelCheckpoint", monitor, mode)
        self.monitor = monitor
        self.keep_best = whole("ModelCheckpoint(keep_best=...)", keep_best, 0)
        self.keep_last = whole("ModelCheckpoint(keep_last=...)", keep_last, 1, optional=True)
        self.background = bool(background)
        self.save_on_exit = bool(save_on_exit)
        self.restore_best = bool(restore_best)
        if self.restore_best and (monitor is None or self.keep_best == 0):
            raise ConfigurationError("ModelCheckpoint(restore_best=True) needs monitor=... and keep_best of 1 or more")
        self.root: Path | None = None
        self.best_name: str | None = None
        self._records: list[dict[str, Any]] = []
        self._loaded_root: str | None = None  # folder that the records belong to
        self._due = False
        self._latest_value: float | None = None

    @property
    def snapshot_root(self) -> Path | None:  # type: ignore[override]
        """Folder of the snapshots; without `dirpath`, None before `setup`."""
        return self.root or self.dirpath

    def setup(self, trainer: Trainer) -> None:
        folder = self.dirpath or in_run_folder(trainer, "checkpoints")
        if folder is None:
            raise ConfigurationError("ModelCheckpoint needs a folder: give dirpath=..., or a run folder to the trainer")
        if trainer.state.phase == "online" and self.monitor is None and getattr(self.every, "unit", "") == "epochs":
            logger.warning(
                "ModelCheckpoint: a stream has no epochs, so only the end of the run is saved, nothing after a kill "
                "or an error; every='window', or a number of steps, saves on the way"
            )
        root = trainer.saver.claim(folder)
        if root != self.root or not trainer.state.progress.global_step:  # the records are of another training
            self._records, self.best_name = [], None
        self.root, self._loaded_root = root, str(root)

    def use_direction(self, higher_is_better: bool | None) -> None:
        if self.watched is not None:
            self.watched.use_direction(higher_is_better)

    def without_monitor(self) -> ModelCheckpoint:
        """Return a copy that takes the same snapshots without ranking them."""
        other = copy.copy(self)
        other.watched = other.monitor = None
        other.restore_best = False
        return other

    def on_train_begin(self, trainer: Trainer) -> None:
        """Start the cadence; save the initial state only if its value is among the best."""
        self._due, self._latest_value = False, None
        self._saved_step = trainer.state.progress.global_step
        if isinstance(self.every, Every):
            self.every.start(trainer.state.progress)

    def on_eval_end(self, trainer: Trainer) -> None:
        if trainer.state.phase != "evaluate":
            self._measure("on_eval_end", trainer)

    def on_window_end(self, trainer: Trainer) -> None:
        """Measure a window metric; if every="window", a snapshot is due."""
        self._measure("on_window_end", trainer)
        self._due = self._due or self.every == "window"

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        self._measure("on_train_epoch_end", trainer)

    def on_checkpoint(self, trainer: Trainer) -> None:
        """Take a snapshot if one is due or the latest value is among the best."""
        if isinstance(self.every, Every):
            due = self.every.due(trainer.state.progress)
            # All processes take part in a snapshot, but their clocks differ, so they decide together.
            self._due |= trainer.group.any(due) if self.every.unit == "seconds" else due
        if self._due or self._latest_value is not None:
            self._save_if_due(trainer, self.background)

    def on_train_end(self, trainer: Trainer) -> None:
        self._due = self._due or self.save_on_exit or self.restore_best
        self._save_if_due(trainer, background=False)
        reason = trainer.state.stop_reason
        if self.restore_best and reason is not None and reason.kind in ("limit", "callback"):
            self._restore_best(trainer)

    def _restore_best(self, trainer: Trainer) -> None:
        trainer.saver.wait()  # the snapshot being written in the background may be the best
        best = [record for record in self._ranked() if record["durable"]]
        if not best:
            logger.warning("ModelCheckpoint: %s was never measured; no best weights restored", self.monitor)
        elif best[0]["name"] != _snapshot_name(trainer.state.progress.global_step):
            trainer.load(self.root / best[0]["name"], weights_only=True, averaged=True)
            value = f"{self.monitor} {best[0]['value']:.6g}"
            logger.info("ModelCheckpoint: restored the weights of the best snapshot, %s (%s)", best[0]["name"], value)
        else:
            trainer.use_averaged_weights()  # a validation has measured the averages of `EMA` or `SWA`, if there are any

    def _measure(self, hook: str, trainer: Trainer) -> None:
        if self.watched is not None and self.watched.hook(trainer) == hook:
            value = self.watched.read(trainer)
            self._latest_value = value if value is not None and math.isfinite(value) else None

    def _save_if_due(self, trainer: Trainer, background: bool) -> None:
        step, value = trainer.state.progress.global_step, self._latest_value
        is_among_best = value is not None and self._among_best(value)
        is_due = self._due or is_among_best
        self._due, self._latest_value = False, None
        # A snapshot without a value was taken before a validation that a signal interrupted.
        ranked = [record["name"] for record in self._ranked()]
        is_unrecorded = is_among_best and _snapshot_name(step) not in ranked
        if is_due and (is_unrecorded or step != self._saved_step):
            self._save(trainer, step, value, background)

    def _save(self, trainer: Trainer, step: int, value: float | None, background: bool) -> None:
        assert self.root is not None  # `setup` has set it
        # The record is saved in the snapshot that it describes, so it is created first.
        name = _snapshot_name(step)
        self._records = [record for record in self._records if record["name"] != name]
        record = {"name": name, "value": value, "durable": False}
        self._records.append(record)
        try:
            trainer.save(self.root, background=background)
        except BaseException:
            self._records.remove(record)
            raise
        self._saved_step = step

    def _ranked(self) -> list[dict[str, Any]]:
        if self.watched is None:
            return []
        ranked = [record for record in self._records if record["value"] is not None]
        return sorted(ranked, key=lambda record: record["value"], reverse=self.watched.mode == "max")

    def _among_best(self, value: float) -> bool:
        if self.watched is None or self.keep_best == 0:
            return False
        ranked = self._ranked()
        return len(ranked) < self.keep_best or self.watched.better(value, ranked[self.keep_best - 1]["value"])

    def on_save_checkpoint(self, trainer: Trainer) -> None:
        """Update the file ``best`` and remove old snapshots: the new one is durable."""
        path, root = trainer.state.snapshot, self.root
        if path is None or root is None:
            return
        written = [record for record in self._records if Path(path) == root / record["name"]]
        if not written:
            return
        written[0]["durable"] = True
        durable = [record for record in self._records if record["durable"]]
        best = [record for record in self._ranked() if record["durable"]]
        if best and best[0]["name"] != self.best_name:
            trainer.set_pointer(root, "best", best[0]["name"])
            self.best_name = best[0]["name"]
        if self.keep_last is None:
            return
        pointed = [record for record in durable if record["name"] == self.best_name]  # by a metric of earlier
        kept = durable[-self.keep_last :] + best[: self.keep_best] + pointed
        dropped = [record for record in durable if record not in kept]
        names = {record["name"] for record in dropped} - self._names_of_others(trainer)
        if names and trainer.group.is_main:
            others = [entry.name for entry in root.iterdir() if entry.is_dir() and entry.name not in names]
            try:
                needed = trainer.saver.prune(root, sorted(others))  # they are removed once nothing builds on them
                dropped = [record for record in dropped if record["name"] not in needed]
            except OSError as error:
                logger.warning("ModelCheckpoint: %s could not be removed: %s", ", ".join(sorted(names)), error)
        self._records = [record for record in self._records if record not in dropped]

    def _names_of_others(self, trainer: Trainer) -> set[str]:
        """Return the names of the snapshots that other callbacks keep in this folder."""
        others = [c for c in trainer.callbacks if isinstance(c, ModelCheckpoint) and c is not self]
        return {record["name"] for other in others if other.root == self.root for record in other._records}

    def on_load_checkpoint(self, trainer: Trainer) -> None:
        """Treat the restored snapshot as this callback's own if it is in its folder."""
        path = trainer.state.snapshot
        if path is None or self.root is None:
            return
        if Path(path).parent == self.root:
            name = Path(path).name
            if all(record["name"] != name for record in self._records):
                self._records.append({"name": name, "value": None, "durable": True})
            ModelCheckpoint.on_train_begin(self, trainer)
        elif self._loaded_root != str(self.root):  # the records are of another folder
            self._records, self.best_name = [], None
        # Since this snapshot was taken, others may have been removed or completed. A snapshot is durable once its
        # folder has its final name.
        for record in self._records:
            record["durable"] = (self.root / record["name"]).is_dir()
        self._records = [record for record in self._records if record["durable"]]
        if self.best_name is not None and not (self.root / self.best_name).is_dir():
            self.best_name = None

    def state_dict(self) -> dict[str, Any]:
        records = [dict(record) for record in self._records]
        root = None if self.root is None else str(self.root)
        return {"monitor": self.monitor, "root": root, "records": records, "best_name": self.best_name}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the records of snapshots; values of another metric rank nothing."""
        records = [
            {
                "name": _checked_name(record["name"]),
                "value": None if record["value"] is None else any_number("value", record["value"]),
                "durable": record["durable"] is True,
            }
            for record in state["records"]
        ]
        if state.get("monitor", self.monitor) != self.monitor:  # not in snapshots of earlier releases
            records = [{**record, "value": None} for record in records]
        self.best_name = None if state["best_name"] is None else _checked_name(state["best_name"])
        self._records = records
        self._loaded_root = state.get("root")  # not in snapshots of earlier releases


def _snapshot_name(step: int) -> str:
    return f"step_{step:08d}"


def _checked_name(value: Any) -> str:
    # The name comes from a snapshot and becomes part of a path, which must not leave the folder.
    if not isinstance(value, str) or not re.fullmatch(r"step_\d{8,18}", value):
        raise ValueError(f"{value!r} is not the name of a snapshot")
    return value
