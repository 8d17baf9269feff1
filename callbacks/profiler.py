"""`Profiler`: measures how the time of a training step is spent."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

from trainer.checks import whole

from .callback import Callback, Trainer
from .output import in_run_folder, replace_text, require_writable, say
from .step_profile import Span, StepProfile

logger = logging.getLogger(__name__)

# The first call of a program compiles it, and the second checks it; neither is representative.
MIN_CALLS = 2


class Profiler(Callback):
    """Measures how the time of a training step is spent, during a part of a run.

    After `skip` steps, it times the parts of `steps` steps: waiting for data, reading and preparing data, the program,
    each callback. During the next `steps` steps it times every operator with MindSpore's own profiler (on CPU only). At
    the end of the run it prints a table and writes three files to its folder: ``profile.txt`` (the table),
    ``profile.json`` (the numbers, which `trainer report` shows) and ``trace.json`` (for https://ui.perfetto.dev).
    Before and after the measured steps, it does not slow down the run.

    Args:
        steps: optimizer steps in each of the two measurements, rounded up to whole calls of the program.
        skip: optimizer steps before the first measurement, for compiling and warming up; at least two calls of the
            program are skipped.
        operators: whether single operators are timed. This makes the steps slower; the table shows by how much.
        folder: folder of the files; None for ``<run_dir>/profile``, or no files without a run folder.
        rows: maximum number of operators and of layers in the table.
        verbose: whether the table is printed.

    Attributes:
        profile: the measurement (`callbacks.step_profile.StepProfile`), or None before the end of the run. A notebook
            displays it as tables.

    Raises:
        ConfigurationError: an argument is invalid; at `setup`, the folder cannot be written.
    """

    order = -2000  # before all other callbacks, because its hooks mark where steps begin and end
    main_only = True
    reports_only = True
    leaves_files = True

    def __init__(
        self,
        steps: int = 50,
        skip: int = 10,
        operators: bool = True,
        folder: str | Path | None = None,
        rows: int = 12,
        verbose: bool = True,
    ) -> None:
        self.steps = whole("Profiler(steps=...)", steps)
        self.skip = whole("Profiler(skip=...)", skip, 0)
        self.operators = bool(operators)
        self.folder = None if folder is None else Path(folder)
        self.rows = whole("Profiler(rows=...)", rows)
        self.verbose = bool(verbose)
        self.profile: StepProfile | None = None
        self._unfinished: StepProfile | None = None
        self._operators: Any = None
        self._state = "done"

    def setup(self, trainer: Trainer) -> None:
        self._output_folder = self.folder or in_run_folder(trainer, "profile")
        if self._output_folder is not None:
            require_writable("Profiler(folder=...)", self._output_folder)

    def on_train_begin(self, trainer: Trainer) -> None:
        self.profile = self._unfinished = None
        self._state, self._calls = "skipping", 0
        self._first_step = trainer.state.progress.global_step

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Begin or end a measurement, which lasts from the end of one call to another."""
        if self._state == "done":
            return
        self._calls += 1
        step = trainer.state.progress.global_step
        if self._state == "skipping":
            if step - self._first_step >= self.skip and self._calls >= MIN_CALLS:
                self._unfinished = StepProfile(training_thread=threading.get_ident())
                self._validation_start: float | None = None
                self._validation_end = 0.0  # end of the latest validation
                self._state = "steps"
                self._unfinished.phase.began = time.perf_counter()
                trainer.run.observe(self._record)
            return
        assert self._unfinished is not None
        phase = self._unfinished.operators_phase if self._state == "operators" else self._unfinished.phase
        phase.calls += 1
        phase.steps += trainer.state.outputs.chunk.num_steps
        phase.rows += trainer.state.outputs.num_samples
        if phase.steps >= self.steps:
            self._end_measurement(trainer)

    def _end_measurement(self, trainer: Trainer) -> None:
        """End the current measurement; begin the next one, if any."""
        assert self._unfinished is not None
        if self._state == "steps":
            self._unfinished.phase.ended = time.perf_counter()
            if self.operators and self._begin_operators(trainer.run):
                self._state = "operators"
                self._unfinished.operators_phase.began = time.perf_counter()
                return
        self._finish(trainer)

    def _begin_operators(self, run: Any) -> bool:
        try:
            self._operators = run.profile_operators()
        except Exception as error:  # MindSpore's profiler raises many types; none of them should end the training
            logger.warning("Profiler: operators are not timed: %s: %s", type(error).__name__, error)
            return False
        if self._operators is None:
            logger.warning("Profiler: operators are not timed: another profiler is active, or the device is not a CPU")
        return self._operators is not None

    def _finish(self, trainer: Trainer) -> None:
        """End the measurement; the profile holds the steps measured so far."""
        state, self._state = self._state, "done"
        measured, run = self._unfinished, trainer.run
        if state in ("done", "skipping") or measured is None:
            return
        if run is not None:
            run.observe(None)
        phase = measured.operators_phase if state == "operators" else measured.phase
        phase.ended = phase.ended or time.perf_counter()
        if self._operators is not None:
            operators, self._operators = self._operators, None
            clock = time.time() - time.perf_counter()
            try:
                measured.add_operators(operators.end(), clock)
            except Exception as error:  # see `_begin_operators`
                logger.warning("Profiler: times of operators are lost: %s: %s", type(error).__name__, error)
        if measured.phase.calls:
            self.profile = measured

    def _record(self, part: str, began: float, ended: float) -> None:
        # Ignore work inside a validation, and the hook that ends it, because its span overlaps the validation.
        if self._validation_start is None and self._unfinished is not None and began >= self._validation_end:
            self._unfinished.spans.append(Span(part, began, ended, threading.get_ident()))

    def on_eval_begin(self, trainer: Trainer) -> None:
        if self._state in ("steps", "operators") and self._validation_start is None:  # the first validation set starts
            self._validation_start = time.perf_counter()

    def on_eval_end(self, trainer: Trainer) -> None:
        if self._state in ("steps", "operators") and self._validation_start is not None:
            assert self._unfinished is not None
            began, self._validation_start = self._validation_start, None
            self._record("validation", began, ended := time.perf_counter())
            self._validation_end = ended

    def on_train_end(self, trainer: Trainer) -> None:
        skipping = self._state == "skipping"
        self._finish(trainer)
        if self.profile is None:
            if skipping or self._unfinished is not None:
                text = "Profiler: the run ended after %d calls, before its measurement; lower Profiler(skip=%d)"
                logger.warning(text, self._calls, self.skip)
            return
        text = self.profile.table(self.rows)
        if self.verbose:
            say(text)
        if self._output_folder is not None:
            self._output_folder.mkdir(parents=True, exist_ok=True)
            replace_text(self._output_folder / "profile.txt", text + "\n")
            replace_text(self._output_folder / "profile.json", json.dumps(self.profile.as_dict()))
            replace_text(self._output_folder / "trace.json", json.dumps(self.profile.trace()))
            if self.verbose:
                say(f"a trace for https://ui.perfetto.dev: {self._output_folder / 'trace.json'}")

    def teardown(self, trainer: Trainer) -> None:
        self._finish(trainer)
