"""Train an experiment with many combinations of values, as a folder of runs.

    FOLDER/sweep.json      the plan (search space, method, metric), written once
    FOLDER/trials.jsonl    the values of each trial, written before it begins
    FOLDER/000, 001, ...   the run folder of each trial
    FOLDER/report.html     table, parallel coordinates and the best runs overlaid

Every trial is a separate process, ``trainer fit`` or ``online``. A killed sweep can be resumed: finished trials are
kept, and an unfinished trial resumes from its last snapshot.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checks import choice, is_number, refuse, whole
from ..errors import ConfigurationError, did_you_mean
from ..masking import mask_text
from .configuration.yaml_tree import dump_line
from .runs.compare import is_running
from .runs.run_folder import CONFIG, resume_overrides
from .sweep_plan import (
    FAILED,
    MODES,
    PLAN,
    PRUNED,
    TRIALS,
    Plan,
    Range,
    Trial,
    best_first,
    declared_direction,
    drop_torn_line,
    higher_is_better,
    measurements,
    plain,
    read_outcome,
    read_plan,
    read_trials,
    record_version,
    recorded_names,
)
from .sweep_search import SEARCHES

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2


def sweep(
    config: str | Path,
    vary: Mapping[str, Any],
    *,
    monitor: str,
    folder: str | Path,
    search: str = "grid",
    trials: int | None = None,
    mode: str = "auto",
    prune: bool = False,
    command: str = "fit",
    processes: int = 1,
    seed: int = 0,
    overrides: Sequence[str] = (),
) -> list[Trial]:
    """Train with many values, one process per trial; return the trials, best first.

    Args:
        config: experiment file (YAML).
        vary: values to try, by dotted path in the configuration: a list, or a range of numbers as (low, high) or
            (low, high, "log").
        monitor: metric to compare trials by, named as in the history, such as "val_auc", "window_auc" or "loss".
        folder: folder for runs, plan and report. If it holds the same sweep, the sweep is resumed.
        search: "grid" (all combinations), "random", or "optuna" (extra ``[sweep]``).
        trials: number of trials; required except for a grid.
        mode: "min", "max", or "auto" for the direction that the metric declares.
        prune: with "optuna", end a trial early if it is worse than the median of the others at the same step.
        command: "fit" or "online".
        processes: number of concurrent trials.
        seed: seed of the random draws.
        overrides: ``"a.b=c"`` overrides for every trial.

    Raises:
        ConfigurationError: invalid arguments, an invalid configuration of a trial, or the folder holds another sweep.
    """
    space = {path: _search_values(path, values) for path, values in vary.items()}
    plan = Plan(
        str(Path(config).absolute()), space, search, trials, monitor, mode, prune, command, seed, tuple(overrides)
    )
    _check(plan)
    whole("processes", processes)
    return _Sweep(plan, Path(folder)).run(processes)


def _search_values(path: str, values: Any) -> Any:
    if isinstance(values, tuple) and len(values) in (2, 3) and values[2:] in ((), ("log",)):
        low, high = values[:2]
        log = len(values) == 3
        if is_number(low) and is_number(high) and low < high and (low > 0 or not log):
            return Range(low, high, log)
    elif isinstance(values, list) and values:
        return list(values)
    accepted = "a list of values, or (low, high) or (low, high, 'log') of numbers with low < high, above 0 for 'log'"
    refuse(path, accepted, values)


def _check(plan: Plan) -> None:
    choice("search", plan.search, SEARCHES)
    choice("mode", plan.mode, MODES)
    choice("command", plan.command, ("fit", "online"))
    whole("trials", plan.trials, optional=True)
    if "run_dir" in (*plan.vary, *(override.partition("=")[0].strip() for override in plan.overrides)):
        raise ConfigurationError(
            "a sweep gives each trial a run folder of its own; received run_dir: choose the sweep's folder (--output)"
        )
    if not plan.vary:
        raise ConfigurationError("a sweep needs values to vary; give --vary PATH=VALUES")
    ranges = [path for path, values in plan.vary.items() if isinstance(values, Range)]
    if plan.search == "grid" and ranges:
        raise ConfigurationError(
            f"a grid takes lists of values; {ranges[0]} is a range: list values, or search 'random'"
        )
    if plan.search != "grid" and plan.trials is None:
        raise ConfigurationError(f"search {plan.search!r} needs the number of trials")
    if plan.prune and plan.search != "optuna":
        raise ConfigurationError(f"prune works with search 'optuna'; received search {plan.search!r}")
    _check_first(plan)


def _check_first(plan: Plan) -> None:
    """Check that the first combination of values is a valid configuration."""
    from .configuration.loader import load_config

    first = {path: v.low if isinstance(v, Range) else v[0] for path, v in plan.vary.items()}
    load_config(plan.config, [*plan.overrides, *_set_arguments(first)])


_PLACES = {  # callback of this package -> the argument that names its file or folder, and the name in a run folder
    "Publish": ("root", "published"),
    "ModelCheckpoint": ("dirpath", "checkpoints"),
    "TensorBoard": ("log_dir", "tensorboard"),
    "CSVLogger": ("path", "log.csv"),
    "JSONLinesLogger": ("path", "log.jsonl"),
    "Profiler": ("folder", "profile"),
}


def _own_places(path: str, settings: list[str], folder: Path, *, parallel: bool) -> list[str]:
    """Return overrides that give what a trial writes places of their own.

    With `parallel` trials, these include the ports of servers.
    """
    from .configuration.class_paths import resolve
    from .configuration.loader import load_config

    config = load_config(path, settings)
    places, counts = list[str](), Counter[str]()
    for spec in config.callbacks:
        kind = spec.class_path.rpartition(".")[2]
        known = kind in _PLACES or (kind == "PrometheusMonitor" and parallel)
        if not known or resolve(spec.class_path).__module__.partition(".")[0] not in ("callbacks", "trainer"):
            continue
        if kind not in _PLACES:
            places.append(f"{spec.path}.init_args.{0 if spec.args else 'port'}=0")  # any free port
            continue
        counts[kind] += 1
        argument, name = _PLACES[kind]
        if kind == "Publish" or spec.init_args.get(argument, next(iter(spec.args), None)) is not None:
            own = folder / name
            own = own if counts[kind] == 1 else own.with_name(f"{own.stem}-{counts[kind]}{own.suffix}")
            places.append(f"{spec.path}.init_args.{0 if spec.args else argument}={dump_line(str(own))}")
    if config.mirror is not None:
        url, question, query = config.mirror.partition("?")
        places.append(f"mirror={dump_line(f'{url}/{folder.name}{question}{query}')}")
    return places


def _set_arguments(values: Mapping[str, Any]) -> list[str]:
    return [f"{path}={dump_line(value)}" for path, value in values.items()]


@contextlib.contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, so that the trials are stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def exit_on_signal(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    previous_handler = signal.signal(signal.SIGTERM, exit_on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


class _Sweep:
    """Running sweep: proposes values, starts trials and monitors their processes."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / PLAN).is_file():
            if plain(read_plan(folder)) != plain(plan):
                raise ConfigurationError(f"{folder} holds another sweep; choose another folder, or --resume {folder}")
        else:
            from .runs.run_folder import write_json

            write_json(folder / PLAN, plain(plan))
        self.trials = read_trials(folder)
        self.search = SEARCHES[plan.search](plan, self.trials)

    def run(self, processes: int) -> list[Trial]:
        """Run all unfinished trials; return the trials, best first."""
        self._processes = processes
        from ..checkpoint.folder_lock import claim

        with claim(self.folder, "sweep folder"), _sigterm_as_exit():
            drop_torn_line(self.folder / TRIALS)
            for trial in self.trials:
                self._check_monitor(trial)
                if overrides := resume_overrides(trial.folder):
                    changed = ", ".join(overrides)
                    logger.warning("trial %d was resumed by hand with %s, unlike the others", trial.number, changed)
            self._check_unchanged()
            waiting = [trial for trial in self.trials if trial.state == "waiting"]
            running: list[Trial] = []
            try:
                while True:
                    while len(running) < processes and (started := waiting.pop(0) if waiting else self._next()):
                        self._start(started)
                        running += [started] if started.state == "running" else []
                    if not running:
                        break
                    time.sleep(POLL_SECONDS)
                    for trial in running:
                        self._update(trial)
                    running = [trial for trial in running if trial.state == "running"]
            finally:
                _stop(running)  # trials still run only after an interruption; a resumed sweep resumes them
        return best_first(self.trials, self.plan)

    def _next(self) -> Trial | None:
        if self.plan.trials is not None and len(self.trials) >= self.plan.trials:
            return None
        if (values := self.search.propose(len(self.trials))) is None:
            return None
        with open(self.folder / TRIALS, "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            os.fsync(file.fileno())
        trial = Trial(len(self.trials), dict(values), self.folder / f"{len(self.trials):03d}")
        self.trials.append(trial)
        return trial

    def _start(self, trial: Trial) -> None:
        """Start a trial; mark it as failed if its configuration is invalid."""
        trial.folder.with_suffix(FAILED).unlink(missing_ok=True)
        try:
            options = self._options(trial)
        except ConfigurationError as error:
            trial.state = "failed"
            trial.folder.with_suffix(FAILED).touch()
            trial.folder.with_suffix(".log").write_text(f"{mask_text(str(error))}\n", "utf-8")
            logger.warning("trial %d cannot start: %s", trial.number, mask_text(str(error)))
            self.search.ended(trial, None)
            return
        arguments = [sys.executable, "-m", "mindspore_trainer", self.plan.command, *options]
        if not is_running(trial.folder):  # otherwise, a process of the killed sweep still trains it
            with open(trial.folder.with_suffix(".log"), "ab") as log:
                # a new session, so that Ctrl+C reaches only this process, which then stops the trial once
                trial.process = subprocess.Popen(
                    arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
                )
        trial.state = "running"
        shown = ", ".join(f"{path}={value}" for path, value in trial.values.items())
        logger.info("trial %d: %s", trial.number, mask_text(shown))

    def _options(self, trial: Trial) -> list[str]:
        if (trial.folder / CONFIG).is_file():
            return ["--resume", str(trial.folder)]
        settings = self._settings(trial)
        settings += _own_places(self.plan.config, settings, trial.folder, parallel=self._processes > 1)
        return [self.plan.config, *(part for text in settings for part in ("--set", text))]

    def _settings(self, trial: Trial) -> list[str]:
        """Return the overrides that a trial begins with, except for `_own_places`."""
        return [*self.plan.overrides, *_set_arguments(trial.values), f"run_dir={dump_line(str(trial.folder))}"]

    def _check_unchanged(self) -> None:
        """Raise ConfigurationError if the experiment has changed since the first trial."""
        from .configuration.loader import load_config
        from .runs.restart import changed_settings

        trial = next((trial for trial in self.trials if (trial.folder / CONFIG).is_file()), None)
        if trial is None or not Path(self.plan.config).is_file():
            return
        settings = self._settings(trial)
        # The sweep may have been moved, or begun with another number of processes.
        places = _own_places(self.plan.config, settings, trial.folder, parallel=True)
        config = load_config(self.plan.config, [*settings, *places])
        overrides = [*places, *resume_overrides(trial.folder)]
        changed = changed_settings(trial.folder, config, [text.partition("=")[0].strip() for text in overrides])
        if changed:
            raise ConfigurationError(
                f"{self.plan.config} has changed since the sweep in {self.folder} began, and its trials would not be "
                f"comparable: {'; '.join(changed[:5])}{'; ...' if len(changed) > 5 else ''}. Choose another folder "
                "for a new sweep (--output)"
            )

    def _update(self, trial: Trial) -> None:
        ended = not is_running(trial.folder) if trial.process is None else trial.process.poll() is not None
        version = record_version(trial.folder)
        if not ended and version == trial.record_version:
            return
        trial.record_version = version
        recorded = measurements(trial.folder, self.plan.monitor)
        higher = bool(recorded) and higher_is_better(trial, self.plan)
        for step, value in recorded[trial.reported :]:
            trial.reported += 1
            if not ended and self.search.is_hopeless(trial, step, -value if higher else value):
                (trial.folder / PRUNED).touch()
                _stop([trial])
                ended = True
        if not ended:
            return
        read_outcome(trial, self.plan)
        self._check_monitor(trial)
        if trial.state == "waiting":  # it was killed, or ended without a result
            trial.state = "failed"
            trial.folder.with_suffix(FAILED).touch()
        if trial.state == "failed":
            logger.warning("trial %d failed; its output is in %s", trial.number, trial.folder.with_suffix(".log"))
        else:
            logger.info("trial %d %s: %s %s", trial.number, trial.state, self.plan.monitor, trial.value)
        self.search.ended(trial, None if trial.value is None else -trial.value if higher else trial.value)

    def _check_monitor(self, trial: Trial) -> None:
        """Raise ConfigurationError if the metric of a finished trial ranks nothing.

        It was not recorded, or it has no direction, as the bias of predictions, which is best at 0.
        """
        if trial.state != "done":
            return
        if trial.value is not None:
            if self.plan.mode == "auto" and declared_direction(trial.folder, self.plan.monitor) is None:
                raise ConfigurationError(
                    f"mode 'auto' cannot tell whether more or less of {self.plan.monitor!r} is better: the metric "
                    f"declares no higher_is_better (trial {trial.number} has ended; begin the sweep again in another "
                    "folder, with --mode min or --mode max)"
                )
            return
        names = recorded_names(trial.folder)
        if names and self.plan.monitor not in names:
            raise ConfigurationError(
                f"monitor takes a metric that the trials record: {', '.join(names)}; received "
                f"{self.plan.monitor!r}{did_you_mean(self.plan.monitor, names)} (trial {trial.number} has ended; begin "
                "the sweep again in another folder)"
            )


def _stop(trials: Sequence[Trial]) -> None:
    """Terminate the processes of trials, and wait until they have ended."""
    processes = [trial.process for trial in trials if trial.process is not None]
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        process.wait()


def resume(folder: str | Path, processes: int = 1) -> list[Trial]:
    """Resume the sweep in a folder; return its trials, best first."""
    return _Sweep(read_plan(Path(folder)), Path(folder)).run(whole("processes", processes))
