"""Train and evaluate the network of a configuration."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callbacks import Callback, ModelCheckpoint, ProgressBar, RunRecord

from ...checkpoint.catalog import available, find
from ...checkpoint.folder_lock import claim
from ...checkpoint.saver import FOLDER
from ...data.user_data import UserData
from ...distributed.launched import note_run_folder
from ...errors import CheckpointNotFoundError, ConfigurationError, TrainerError
from ...masking import MASK
from ...report.baseline import Baseline
from ...storage import fetch
from ...storage.location import Location, is_url
from ...storage.mirror import Mirror
from ..configuration.class_paths import expand
from ..configuration.experiment_config import ExperimentConfig
from ..configuration.instantiate import Experiment, build, keyword_values
from ..configuration.reader import ENV_HINT
from ..configuration.yaml_tree import dump, read_tree
from . import run_folder

if TYPE_CHECKING:
    from ...trainer import Trainer

logger = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE = 1024  # batch size for evaluating arrays; does not affect the result
DRIFT_ROWS = 10_000
SPLITS = ("test", "valid", "train")


def train(config: ExperimentConfig, command: str, resume: bool) -> Path:
    """Train, evaluate on ``data.test`` if configured, and call the report.

    Args:
        config: a checked configuration.
        command: "fit" trains on ``data.train``, "online" on ``data.stream``.
        resume: True: continue from the last snapshot in the run folder, or start over there if it has none. False:
            start a new run in the next free folder.

    Returns:
        The run folder.

    Raises:
        ConfigErrors, ConfigurationError: the experiment cannot be built or run.
        TrainerError: the run failed.
        KeyboardInterrupt, SystemExit: a signal stopped the run, which then shut down cleanly.
    """
    splits = ("train", "valid", "test") if command == "fit" else ("stream", "test")
    if command == "fit" and config.baseline is not None and config.data.test is config.data.valid is None:
        raise ConfigurationError(f"{config.source}: baseline: compares on data.test or data.valid; neither is given")
    if getattr(config.data, splits[0]) is None:
        raise ConfigurationError(f"{config.source}: data.{splits[0]}: is missing; trainer {command} needs it")
    mirror = None if config.mirror is None else Mirror(expand(config.mirror, "mirror"))
    # a run that was killed before its first snapshot starts over
    has_snapshot = resume and bool(available(config.run_dir / FOLDER))
    if resume:
        _check_overrides(config, has_snapshot)
    fits_features = command == "online" and not has_snapshot and config.features is not None
    experiment = build(config, (*splits, "train") if fits_features else splits)
    if config.init_from is not None and not has_snapshot:
        experiment.trainer.init_from(**keyword_values(config.init_from, experiment.trainer.init_from))
    if fits_features:
        _fit_features(experiment)
    with contextlib.ExitStack() as locks:

        def claim_folder() -> str:
            run_dir = config.run_dir if resume else run_folder.claim_run_dir(config.run_dir)
            locks.enter_context(claim(run_dir, "run folder"))
            return str(run_dir)

        run_dir = Path(experiment.trainer.group.from_main(claim_folder))
        if run_dir != config.run_dir:
            logger.info("%s is in use by an earlier run; this one goes to %s", config.run_dir, run_dir)
        config = config.model_copy(update={"run_dir": run_dir})
        try:
            return _train_in(config, experiment, command, resume, mirror)
        except ConfigurationError:
            if not resume and experiment.trainer.state.progress.global_step == 0:
                if mirror is not None:
                    mirror.remove_new_mirror()
                locks.close()
                run_folder.remove_rejected(run_dir)
            raise
        finally:
            if mirror is not None:  # mirror the results too, which are written after training
                mirror.catch_up()


def _check_overrides(config: ExperimentConfig, has_snapshot: bool) -> None:
    """Raise ConfigurationError if an override has no place in a resumed run."""
    ignored = {"run_dir": "a run stays in its folder, which may be moved between two runs"}
    if has_snapshot:
        ignored["init_from"] = "the run continues from its own snapshot"
    for override in config.overrides:
        name = override.partition("=")[0].strip().partition(".")[0]
        if name == "fit" and config.fit.get("fast_dev_run"):
            raise ConfigurationError(
                "fit.fast_dev_run trains new weights, whose results would replace those of the resumed run "
                f"{config.run_dir}; leave --resume or fast_dev_run out"
            )
        if name in ignored:
            raise ConfigurationError(
                f"--set {name}=... has no effect on the resumed run {config.run_dir}: {ignored[name]}; leave it out, "
                "or begin another run"
            )


def _fit_features(experiment: Experiment) -> None:
    """Fit unfitted features on data.train, because a stream has no end to fit on."""
    features = experiment.trainer.features
    rows = experiment.datasets.pop("train", None)
    if features is not None and not features.is_fitted and rows is not None:
        logger.info("features: %s learn from data.train", ", ".join(features.statistics))
        features.fit(rows)


def _train_in(
    config: ExperimentConfig, experiment: Experiment, command: str, resume: bool, mirror: Mirror | None
) -> Path:
    run_dir, trainer, datasets = config.run_dir, experiment.trainer, experiment.datasets
    group = trainer.group
    trainer.run_dir = run_dir
    config_text = dump(config.to_dict())
    trainer.saver.config = config_text
    if MASK in config_text:
        logger.warning("the configuration holds a credential, which is not written to the run folder: %s", ENV_HINT)
    callbacks = [*(experiment.callbacks or [ProgressBar()]), *([] if mirror is None else [mirror])]
    if command == "online":
        callbacks = [adapted for callback in callbacks for adapted in _without_validation(callback)]
    _check_shared_snapshots(config, callbacks, resume)
    for callback in callbacks:
        if isinstance(callback, ProgressBar):
            callback.results = False  # the command prints them together with the test results
    if group.is_main:
        note_run_folder(run_dir)
        if not any(isinstance(callback, RunRecord) and callback.path is None for callback in callbacks):
            callbacks.append(RunRecord(run_dir / run_folder.RECORD))
    else:
        run_dir = fetch.scratch_folder("rank")  # all ranks write records, but only those of rank 0 are kept
    seconds_before, resumed = 0.0, None
    if resume:
        callbacks.append(_GivenValues(config, trainer.optimizer))
    if resume and group.is_main:
        seconds_before = run_folder.seconds_before(run_dir)
        resumed = _ResumeRecord(config, seconds_before)
        callbacks.append(resumed)
    else:
        run_folder.write_record(run_dir, config, command)
    baseline = None
    if command == "fit" and config.baseline is not None:
        arguments = keyword_values(config.baseline, Baseline)
        baseline = Baseline(datasets["train"], datasets.get("test", datasets.get("valid")), **arguments)
        callbacks.insert(0, baseline)
    logger.info("run folder: %s", config.run_dir)
    # "auto" starts over, with a warning, if the run was killed before its first snapshot
    resume_from = "auto" if resume else None
    start_time = time.monotonic()
    common_options: dict[str, Any] = {"callbacks": callbacks, "resume": resume_from}
    try:
        if command == "fit":
            options = common_options | keyword_values(config.fit, trainer.fit)
            trainer.fit(datasets["train"], valid_dataset=datasets.get("valid"), **options)
        else:
            options = common_options | keyword_values(config.online, trainer.online_train)
            trainer.online_train(datasets["stream"], **options)
    finally:
        results = _last_values(trainer)
        outcome = _outcome(trainer, command, (seconds_before, time.monotonic() - start_time), results)
        if resumed is None or resumed.has_begun:  # a resume that is rejected leaves the results of the run
            _write_results(run_dir, trainer, outcome)
    with trainer.averaged_weights():  # those of EMA or SWA, as in a validation and in `trainer evaluate`
        if "test" in datasets:
            test = evaluate_on(experiment, "test")
            results.update({f"test_{name}": value for name, value in test.items()})
            outcome["drift"] = _drift(experiment)
            run_folder.write_json(run_dir / run_folder.METRICS, outcome)
        if baseline is not None:
            outcome["baseline"] = baseline.compare(trainer)
            run_folder.write_json(run_dir / run_folder.METRICS, outcome)
        if experiment.report is not None:
            report = experiment.report(trainer, run_dir)
            if isinstance(report, Mapping):
                outcome["report"] = report
                run_folder.write_json(run_dir / run_folder.METRICS, outcome)
    return run_dir


def _check_shared_snapshots(config: ExperimentConfig, callbacks: list[Any], resume: bool) -> None:
    """Warn of snapshots of another run in `dirpath`; refuse to resume from one."""
    for callback in callbacks:
        folder = callback.dirpath if isinstance(callback, ModelCheckpoint) else None
        if folder is None or not available(folder):
            continue
        if not resume:
            logger.warning(
                "ModelCheckpoint: %s holds snapshots of an earlier run, which this one replaces as it goes on; leave "
                "dirpath out, and each run keeps its own",
                folder,
            )
            continue
        snapshot = find(folder).path
        recorded = read_tree(snapshot / run_folder.CONFIG).value if (snapshot / run_folder.CONFIG).is_file() else None
        other = Path(recorded["run_dir"]) if isinstance(recorded, dict) and recorded.get("run_dir") else config.run_dir
        if other.is_dir() and not other.samefile(config.run_dir):  # it is missing if this run was moved
            raise ConfigurationError(
                f"{snapshot} is of another run, {other}: both have ModelCheckpoint(dirpath={str(folder)!r}), and "
                f"{config.run_dir} cannot go on from it; resume {other}, or begin another run. If this is a copy of "
                f"that run, copy the snapshots to {config.run_dir / run_folder.CHECKPOINTS} and add --set "
                "callbacks.N.init_args.dirpath=null, where N is the number of ModelCheckpoint in callbacks, from 0"
            )


def _without_validation(callback: Any) -> list[Any]:
    """Return [the callback], [its replacement without a monitor], or []."""
    monitor = getattr(callback, "monitor", None)  # MindSpore's callbacks have none, or one with another meaning
    if not isinstance(callback, Callback) or not (monitor == "loss" or str(monitor).startswith("val_")):
        return [callback]
    adapted = callback.without_monitor()
    consequence = "is left out" if adapted is None else "ranks nothing"
    name, reason = type(callback).__name__, "a stream has neither epochs nor validation"
    logger.info("%s(monitor=%r) %s: %s", name, monitor, consequence, reason)
    return [] if adapted is None else [adapted]


def _drift(experiment: Experiment) -> dict[str, float]:
    """Return the drift (PSI) of data.test from the training rows; {} if unknown."""
    features = experiment.trainer.features
    if features is None or not features.is_fitted or not features.learned.profiled_rows:
        return {}
    try:
        return features.drift(experiment.datasets["test"], max_rows=DRIFT_ROWS)
    except TrainerError as error:
        logger.info("drift of data.test is not known: %s", error)
        return {}


class _GivenValues(Callback):
    """Keeps the optimizer's values that the overrides of a resume give.

    Some are parameters, such as the learning rate, which the snapshot replaces.
    """

    order = -30

    def __init__(self, config: ExperimentConfig, optimizer: Any) -> None:
        from mindspore import Parameter, nn

        from ...mindspore_internals.cell_structure import parameters_of

        paths = [override.partition("=")[0].strip().split(".") for override in config.overrides]
        arguments = {} if config.optimizer is None else config.optimizer.init_args
        names = [name for path in paths if path[0] == "optimizer" for name in path[2:3] or arguments]
        found = [getattr(optimizer, name, None) for name in names]
        found += [group.get(name) for group in getattr(optimizer, "param_groups", ()) for name in names]
        cells = [cell for cell in found if isinstance(cell, nn.Cell)]  # the values of a schedule
        parameters = [p for p in found if isinstance(p, Parameter)] + [p for c in cells for p in parameters_of(c)]
        self._values = [(parameter, parameter.asnumpy().copy()) for parameter in parameters]

    def on_train_begin(self, trainer: Trainer) -> None:
        """Assign the values again, after the snapshot was restored."""
        from mindspore import Tensor, ops

        for parameter, value in self._values:
            ops.assign(parameter, Tensor(value))


class _ResumeRecord(Callback):
    """Records the snapshot that a run resumes from; None if it starts over."""

    order = -20  # before `RunRecord`, which records when the process began

    def __init__(self, config: ExperimentConfig, seconds: float) -> None:
        self._config, self._seconds = config, seconds
        self.has_begun = False  # whether the training has begun, after all checks

    def on_train_begin(self, trainer: Trainer) -> None:
        """Add an entry to ``resumes.json``."""
        self.has_begun = True
        run_folder.record_resume(self._config.run_dir, self._config, trainer.state.snapshot, self._seconds)


def _last_values(trainer: Trainer) -> dict[str, Any]:
    """Return the last value of each recorded metric."""
    history = trainer.history.history if trainer.history is not None else {}
    return {("train_loss" if name == "loss" else name): values[-1] for name, values in history.items() if values}


def _outcome(trainer: Trainer, command: str, seconds: tuple[float, float], results: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``metrics.json``."""
    state = trainer.state
    stop_reason = str(state.stop_reason) if state.exception is None else f"exception: {type(state.exception).__name__}"
    return {
        "command": command,
        "results": results,
        "best": {} if trainer.history is None else trainer.history.as_dict()["best"],
        "progress": state.progress.state_dict(),
        "stop_reason": stop_reason,
        "seconds": round(sum(seconds), 3),
        "seconds_before": round(seconds[0], 3),
        "snapshot": state.snapshot,
        "sink_mode": trainer.sink_mode,
        "finished": run_folder.now(),
        "features": {f.name: type(f).__name__ for f in ([] if trainer.features is None else trainer.features.features)},
    }


def _write_results(run_dir: Path, trainer: Trainer, outcome: dict[str, Any]) -> None:
    try:
        run_folder.write_json(run_dir / run_folder.METRICS, outcome)
        if trainer.history is not None:
            run_folder.write_json(run_dir / run_folder.HISTORY, trainer.history.as_dict())
    except OSError as error:  # a full disk, for example, must not hide the error that ended the run
        logger.error("the results cannot be written to %s: %s", run_dir, error.strerror or error)


def evaluate_on(experiment: Experiment, split: str) -> dict[str, float]:
    """Evaluate the trained network on one dataset of the experiment."""
    dataset = experiment.datasets[split]
    return experiment.trainer.evaluate(dataset, batch_size=batch_size(experiment, dataset))


def batch_size(experiment: Experiment, dataset: Any) -> int | None:
    """Return the batch size for arrays and tables; None for other datasets."""
    config = experiment.config
    if not UserData(dataset, experiment.trainer.features).is_table:
        return None
    size = config.fit.get("batch_size") or config.online.get("batch_size") or DEFAULT_BATCH_SIZE
    return int(keyword_values({"batch_size": size}, experiment.trainer.fit)["batch_size"])


def evaluate(config: ExperimentConfig, checkpoint: Path, split: str | None = None) -> tuple[str, dict[str, float]]:
    """Evaluate the weights of a snapshot.

    Args:
        checkpoint: a snapshot, a pointer, a folder of snapshots, a run folder or a .ckpt file.
        split: "test", "valid" or "train"; None: the first of these in the configuration.

    Returns:
        The split and its metrics.
    """
    split = split_of(config, split)
    experiment = build_restored(config, checkpoint, split)
    return split, evaluate_on(experiment, split)


def splits_of(config: ExperimentConfig) -> list[str]:
    """Return the names of the configured finite datasets."""
    return [name for name in SPLITS if getattr(config.data, name) is not None]


def split_of(config: ExperimentConfig, split: str | None) -> str:
    """Return `split` if it is configured; for None, the first configured split."""
    splits = splits_of(config)
    if split is None and splits:
        return splits[0]
    if split in splits:
        return split
    if not splits and config.data.stream is not None:
        raise ConfigurationError(
            f"{config.source}: data: has only a stream, which has no end; give the dataset to evaluate, "
            "as data.test in the configuration or by --set data.test.class_path=... --set data.test.init_args...=..."
        )
    wanted = f"no dataset {split!r}" if split else "no dataset"
    raise ConfigurationError(f"{config.source}: data: has {wanted}; it has {', '.join(splits) or 'none'}")


def build_restored(config: ExperimentConfig, checkpoint: Path, split: str | None) -> Experiment:
    """Build an experiment with a snapshot's weights, averaged if available."""
    experiment = build(config, () if split is None else (split,))
    experiment.trainer.load(checkpoint, weights_only=True, averaged=True)
    return experiment


def default_checkpoint(run_dir: Path, which: str | None) -> Path:
    """Return the path of a snapshot; None means the best if marked, else the last.

    The snapshot at a URL is fetched to a temporary folder.
    """
    if which is not None and is_url(which):
        return fetch.fetch_snapshot(Location(which), fetch.scratch_folder("snapshot"))
    if which not in (None, "best", "last"):
        return Path(which)
    folder = run_dir / run_folder.CHECKPOINTS
    if not folder.exists():
        raise CheckpointNotFoundError(
            f"there is no folder {folder}; if ModelCheckpoint(dirpath=...) puts snapshots elsewhere, give --checkpoint "
            "FOLDER"
        )
    best = folder / "best"
    return best if which == "best" or (which is None and best.is_file()) else folder
