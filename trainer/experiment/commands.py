"""What the commands `fit`, `online`, `evaluate` and `predict` do with a checked configuration."""

from __future__ import annotations

import contextlib
import csv
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from callbacks import Callback, ProgressBar

from ..checkpoint.folder_lock import claim
from ..data.finite.datasets import is_arrays
from ..distributed.launched import note_run_folder
from ..errors import ConfigurationError
from ..masking import MASK
from ..metrics.defaults import meaning_of
from ..metrics.predictions import activate
from . import rundir
from .experiment_config import ExperimentConfig
from .instantiate import Experiment, build, keyword_values
from .loader import BETTER
from .resolve import expand
from .tree import dump

if TYPE_CHECKING:
    from ..trainer import Trainer

logger = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE = 1024  # for evaluating arrays, where it makes no difference to the result
SPLITS = ("test", "valid", "train")


def fit(config: ExperimentConfig, resume: bool = False) -> Path:
    """Train as `config` says, evaluate on ``data.test`` where there is one, and call the report.

    Args:
        config: a checked configuration. Its run folder is taken as it is with `resume`; otherwise the next free one.
        resume: go on from the last snapshot in the run folder; from the beginning when there is none yet.

    Returns:
        The run folder.

    Raises:
        ConfigErrors, ConfigurationError: the experiment cannot be made or run.
        TrainerError: what a run may raise.
        KeyboardInterrupt, SystemExit: a signal stopped the run after it had wound up.
    """
    _require(config, "train", "fit")
    return _train(config, "fit", resume)


def online(config: ExperimentConfig, resume: bool = False) -> Path:
    """Train on ``data.stream`` as `config` says; everything else as in `fit`."""
    _require(config, "stream", "online")
    return _train(config, "online", resume)


def _require(config: ExperimentConfig, split: str, command: str) -> None:
    if getattr(config.data, split) is None:
        raise ConfigurationError(f"{config.source}: data.{split}: is missing; trainer {command} needs it")


def _train(config: ExperimentConfig, command: str, resume: bool) -> Path:
    splits = ("train", "valid", "test") if command == "fit" else ("stream", "test")
    learns = command == "online" and not resume and config.features is not None
    experiment = build(config, (*splits, "train") if learns else splits)
    if config.init_from is not None and not resume:
        begin = {name: value for name, value in config.init_from.items() if value is not None}
        experiment.trainer.init_from(**{**begin, "path": expand(str(begin["path"]), "path")})
    if learns:
        _learn_features(experiment)
    with contextlib.ExitStack() as held:

        def take() -> str:
            run_dir = config.run_dir if resume else rundir.claim_run_dir(config.run_dir)
            held.enter_context(claim(run_dir, "run folder"))
            return str(run_dir)

        run_dir = Path(experiment.trainer.group.from_main(take))
        if run_dir != config.run_dir:
            logger.info("%s is in use by an earlier run; this one goes to %s", config.run_dir, run_dir)
        config = replace(config, run_dir=run_dir)
        try:
            return _train_in(config, experiment, command, resume)
        except ConfigurationError:
            if not resume and experiment.trainer.state.progress.global_step == 0:
                held.close()
                rundir.withdraw(run_dir)
            raise


def _learn_features(experiment: Experiment) -> None:
    """Let features that learn from data do so before a stream, which has no end, is read: from data.train."""
    features = experiment.trainer.features
    earlier = experiment.datasets.pop("train", None)
    if features is not None and not features.is_fitted and earlier is not None:
        logger.info("features: %s learn from data.train", ", ".join(features.statistics))
        features.fit(earlier)


def _train_in(config: ExperimentConfig, experiment: Experiment, command: str, resume: bool) -> Path:
    run_dir, offline, group = config.run_dir, command == "fit", experiment.trainer.group
    trainer = experiment.trainer
    trainer.run_dir = run_dir
    recorded = dump(config.to_dict())
    trainer.saver.config = recorded
    if MASK in recorded:
        logger.warning("the configuration holds a credential, which is not written to the run folder: %s", BETTER)
    callbacks = [*(experiment.callbacks or [ProgressBar()])]
    if group.is_main:
        note_run_folder(run_dir)
    else:
        run_dir = rundir.scratch_folder()  # what every process writes down, rank 0 alone keeps
    if resume and group.is_main:
        callbacks.append(_ResumeRecord(config))
    else:
        rundir.write_record(run_dir, config, command)
    logger.info("run folder: %s", config.run_dir)
    # "auto" starts over, with a warning, when the run was killed before its first snapshot
    from_where = "auto" if resume else None
    began = time.monotonic()
    results: dict[str, Any] = {}
    outcome: dict[str, Any] = {}
    try:
        if offline:
            options = keyword_values(config.fit, trainer.fit)
            data = experiment.datasets
            trainer.fit(
                data["train"], valid_dataset=data.get("valid"), callbacks=callbacks, resume=from_where, **options
            )
        else:
            options = keyword_values(config.online, trainer.online_train)
            trainer.online_train(experiment.datasets["stream"], callbacks=callbacks, resume=from_where, **options)
    finally:
        results = _results(trainer)
        outcome = _outcome(trainer, command, time.monotonic() - began, results)
        _write_results(run_dir, trainer, outcome)
    if "test" in experiment.datasets:
        test = evaluate_on(experiment, "test")
        results.update({f"test_{name}": value for name, value in test.items()})
        rundir.write_json(run_dir / rundir.METRICS, outcome)
    if experiment.report is not None:
        told = experiment.report(trainer, run_dir)
        if isinstance(told, Mapping):
            outcome["report"] = told
            rundir.write_json(run_dir / rundir.METRICS, outcome)
    return run_dir


class _ResumeRecord(Callback):
    """Notes in the run folder which snapshot the run went on from, once it has been restored."""

    def __init__(self, config: ExperimentConfig) -> None:
        self._config = config

    def on_load_checkpoint(self, trainer: Trainer) -> None:
        """Write the note."""
        config = self._config
        rundir.record_resume(config.run_dir, config, trainer.state.snapshot, config.overrides)


def _results(trainer: Trainer) -> dict[str, Any]:
    """Return the last value of everything the run recorded."""
    history = trainer.history.history if trainer.history is not None else {}
    return {("train_loss" if name == "loss" else name): values[-1] for name, values in history.items() if values}


def _outcome(trainer: Trainer, command: str, seconds: float, results: dict[str, Any]) -> dict[str, Any]:
    state = trainer.state
    ended = str(state.stop_reason) if state.exception is None else f"exception: {type(state.exception).__name__}"
    return {
        "command": command,
        "results": results,
        "best": {} if trainer.history is None else trainer.history.as_dict()["best"],
        "progress": state.progress.state_dict(),
        "stop_reason": ended,
        "seconds": round(seconds, 3),
        "snapshot": state.snapshot,
        "sink_mode": trainer.sink_mode,
        "finished": rundir.now(),
    }


def _write_results(run_dir: Path, trainer: Trainer, outcome: dict[str, Any]) -> None:
    try:
        rundir.write_json(run_dir / rundir.METRICS, outcome)
        if trainer.history is not None:
            rundir.write_json(run_dir / rundir.HISTORY, trainer.history.as_dict())
    except OSError as error:  # a full disk must not hide what ended the run
        logger.error("the results cannot be written to %s: %s", run_dir, error.strerror or error)


def evaluate_on(experiment: Experiment, split: str) -> dict[str, float]:
    """Return the metrics of the trained network on one dataset of the experiment."""
    dataset = experiment.datasets[split]
    return experiment.trainer.evaluate(dataset, batch_size=_batch_size(experiment.config, dataset))


def _batch_size(config: ExperimentConfig, dataset: Any) -> int | None:
    if not is_arrays(dataset):
        return None
    return config.fit.get("batch_size") or config.online.get("batch_size") or DEFAULT_BATCH_SIZE


def evaluate(config: ExperimentConfig, checkpoint: Path, split: str | None = None) -> tuple[str, dict[str, float]]:
    """Evaluate the weights of a snapshot.

    Args:
        config: a checked configuration.
        checkpoint: a snapshot, a pointer, a folder of snapshots, a run folder or a .ckpt file.
        split: "test", "valid" or "train"; None for the first of them that the configuration has.

    Returns:
        The split and its metrics.

    Raises:
        ConfigurationError: the configuration has no such dataset.
        CheckpointError: there is nothing sound to load, or it belongs to another network.
    """
    split = _split(config, split)
    experiment = _restored(config, checkpoint, split)
    return split, evaluate_on(experiment, split)


def predict(config: ExperimentConfig, checkpoint: Path, output: Path, split: str | None = None) -> tuple[str, Any]:
    """Write predictions to `output`.

    ``.csv`` has a column for each output, in the unit of the label where the loss says so (probabilities); other files
    the network's own output: ``.npy``, or ``.npz`` for several outputs.

    Args and errors as in `evaluate`.

    Returns:
        The split and the shape of what was written.
    """
    split = _split(config, split)
    experiment = _restored(config, checkpoint, split)
    dataset = experiment.datasets[split]
    made = experiment.trainer.predict(dataset, batch_size=_batch_size(config, dataset))
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.suffix == ".csv":
        write_answers(output, experiment.trainer, made)
    elif isinstance(made, tuple):
        np.savez(output.with_suffix(".npz"), *made)
    else:
        with open(output, "wb") as file:  # np.save would add a suffix to a name without one
            np.save(file, made)
    return split, tuple(part.shape for part in made) if isinstance(made, tuple) else made.shape


def write_answers(output: Path, trainer: Trainer, predictions: Any) -> None:
    """Write predictions as CSV, with their rows' numbers; those of a binary label as probabilities.

    Raises:
        ConfigurationError: an output has more than one number per row.
    """
    tasks = () if trainer.tasks is None else trainer.tasks.tasks
    parts = predictions if isinstance(predictions, tuple) else (predictions,)
    losses = [trainer.loss_fn] if trainer.tasks is None else list(trainer.tasks.losses)
    columns = {}
    for index, part in enumerate(parts):
        name = tasks[index] if index < len(tasks) else "prediction" if len(parts) == 1 else f"prediction_{index}"
        declared = trainer.prediction_activations.get(name if tasks else "")
        loss = losses[index] if index < len(losses) else None
        values = activate(meaning_of(loss, declared).activation, np.asarray(part))
        if values.size != len(values):
            raise ConfigurationError(
                f"{output}: output {name} has the shape {list(values.shape)}, no column of a CSV; write .npy"
            )
        columns[name] = values.reshape(-1)
    with open(output, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["row", *columns])
        writer.writerows(zip(range(len(parts[0])), *(map(float, column) for column in columns.values()), strict=True))


def _split(config: ExperimentConfig, split: str | None) -> str:
    given = [name for name in SPLITS if getattr(config.data, name) is not None]
    if split is None and given:
        return given[0]
    if split in given:
        return split
    if not given and config.data.stream is not None:
        raise ConfigurationError(
            f"{config.source}: data: has a stream alone, which has no end; give the dataset to evaluate, "
            "as data.test in the configuration or by --set data.test.class_path=... --set data.test.init_args...=..."
        )
    wanted = f"no dataset {split!r}" if split else "no dataset"
    raise ConfigurationError(f"{config.source}: data: has {wanted}; it has {', '.join(given) or 'none'}")


def _restored(config: ExperimentConfig, checkpoint: Path, split: str) -> Experiment:
    experiment = build(config, (split,))
    experiment.trainer.load(checkpoint, weights_only=True)
    return experiment


def default_checkpoint(run_dir: Path, which: str | None) -> Path:
    """Return the snapshot of a run to apply: the best where one is marked, else the last; or the one asked for.

    Args:
        run_dir: the run folder.
        which: "best", "last", a path, or None.
    """
    if which not in (None, "best", "last"):
        return Path(which)
    folder = run_dir / rundir.CHECKPOINTS
    best = folder / "best"
    if which == "best" or (which is None and best.is_file()):
        return best
    return folder
