"""`RunRecord`: records the data for `trainer report` during the run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.cadence import Every

from .callback import Trainer
from .loggers.text_files import JSONLinesLogger

FLUSH_SECONDS = 1.0


class RunRecord(JSONLinesLogger):
    """Writes ``<run_dir>/record.jsonl``, the data of `trainer report` and `watch`.

    The commands `trainer fit` and `trainer online` add it automatically. In addition to the values of every `Logger`,
    it records the time of each line, the event time of windows, the rows of sparse tables, calibration and distribution
    of binary scores, and the number of raw rows that were set aside. The entry "seconds" divides the time of the run
    into waiting for data, preparing data, the time until the first step, validation, snapshots and the rest. Lines are
    flushed to disk about once a second.

    Args:
        path: the file; None for ``record.jsonl`` in the run folder.
        every: see `Logger`.
    """

    default_name = "record.jsonl"
    order = -10  # runs before other callbacks; the time from hook to hook includes theirs

    def __init__(self, path: str | Path | None = None, every: Every | int | None = None) -> None:
        super().__init__(path, every)
        self._restart()

    def _restart(self) -> None:
        self._seconds = dict.fromkeys(("waiting for data", "until the first step", "validation", "snapshots"), 0.0)
        self._start_time = self._epoch_start = self._eval_start = self._flushed = time.perf_counter()
        self._has_stepped = False

    def open(self, trainer: Trainer, step: int) -> None:
        super().open(trainer, step)
        self._restart()
        self._write(step, {"directions": dict(trainer.metric_directions)})

    def _write(self, step: int, values: Mapping[str, Any]) -> None:
        super()._write(step, {"time": round(time.time(), 3), **values})
        now = time.perf_counter()
        if now - self._flushed > FLUSH_SECONDS:
            self._flushed = now
            self._file.flush()

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Time the first call, and log the values that are due."""
        if not self._has_stepped:
            self._has_stepped = True
            self._seconds["until the first step"] = time.perf_counter() - self._start_time
            self._epoch_start = time.perf_counter()
        super().on_train_step_end(trainer)

    def _add_waiting(self, trainer: Trainer) -> None:
        now = time.perf_counter()
        if trainer.state.data_wait is not None:
            self._seconds["waiting for data"] += trainer.state.data_wait * (now - self._epoch_start)
        self._epoch_start = now

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        super().on_train_epoch_end(trainer)
        if self._is_open:
            self._add_waiting(trainer)
            self._write_tables(trainer)

    def on_window_end(self, trainer: Trainer) -> None:
        super().on_window_end(trainer)
        if not self._is_open:
            return
        window, step = trainer.state.window or {}, trainer.state.progress.global_step
        staleness = window.get("staleness", float("nan"))
        if not math.isnan(staleness):
            self._write(step, {"event_time": time.time() - staleness})
        self._add_waiting(trainer)
        self._write_tables(trainer)
        self._write_scores(trainer)

    def on_eval_begin(self, trainer: Trainer) -> None:
        self._eval_start = time.perf_counter()

    def on_eval_end(self, trainer: Trainer) -> None:
        super().on_eval_end(trainer)
        if self._is_open:
            self._seconds["validation"] += time.perf_counter() - self._eval_start
            self._write_scores(trainer)

    def _write_tables(self, trainer: Trainer) -> None:
        tables = trainer.read_tables()
        if tables:
            self._write(trainer.state.progress.global_step, {"tables": tables})

    def _write_scores(self, trainer: Trainer) -> None:
        for task, table in trainer.read_scores().items():
            table.pop("above", None)  # the report does not use it
            self._write(trainer.state.progress.global_step, {"scores": table, "task": task})

    def on_train_end(self, trainer: Trainer) -> None:
        super().on_train_end(trainer)
        if self._is_open:
            self._write_tables(trainer)

    def _write_data_times(self, trainer: Trainer) -> None:
        """Move the time of preparing data out of the waiting time.

        Also writes the times of the reading thread and the report of rows that were set aside.
        """
        if trainer.run is None:
            return
        seconds = trainer.run.seconds_preparing
        inline = min(seconds["preparing"], self._seconds["waiting for data"])
        self._seconds["waiting for data"] -= inline
        self._seconds["preparing data"] = inline
        step = trainer.state.progress.global_step
        self._write(step, {"seconds_beside": {"reading": seconds["reading"], "preparing": seconds["preparing ahead"]}})
        report = trainer.run.set_aside()
        if report is not None:
            self._write(step, {"set_aside": report})

    def teardown(self, trainer: Trainer) -> None:
        if self._is_open:
            self._seconds["snapshots"] = sum(trainer.saver.hold_seconds)
            total = time.perf_counter() - self._start_time
            if self._has_stepped and trainer.state.phase == "online":
                self._add_waiting(trainer)
            self._write_data_times(trainer)
            remainder = {"training and the rest": max(0.0, total - sum(self._seconds.values()))}
            step = trainer.state.progress.global_step
            self._write(step, {"seconds": {**self._seconds, **remainder}})
        super().teardown(trainer)
