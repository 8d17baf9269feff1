"""Implement `trainer predict`: write the predictions for a dataset to a file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...checks import choice
from ...errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from ...streams.formats.csv_format import CsvFormat
    from ...trainer import Trainer
    from ..configuration.experiment_config import ExperimentConfig
    from ..configuration.instantiate import Experiment

DEFAULT = "predictions.npy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `evaluate` does not have."""
    add = parser.add_argument
    add(
        "--output",
        metavar="FILE",
        help=".csv, .jsonl or .parquet, of any size: kept columns, and answers in the label's unit; .npy: what the "
        f"network returns; default: RUN/{DEFAULT}",
    )
    add(
        "--keep",
        metavar="COLUMN",
        nargs="+",
        action="extend",
        help="raw columns to write with the answers; default: features.keep",
    )
    add(
        "--set-aside",
        action="store_true",
        help="leave out rows that the features forbid, and say how many, why and which is the first; kept columns tell "
        "which rows are answered",
    )


def check_arguments(args: argparse.Namespace) -> None:
    """Check the arguments."""
    from .prediction_file import WRITERS

    suffix = Path(args.output or DEFAULT).suffix
    choice("--output: the end of the file's name", suffix, (*WRITERS, ".npy", ".npz"))
    for option, value in (("--keep", args.keep), ("--set-aside", args.set_aside)):
        if value and suffix not in WRITERS:
            raise ConfigurationError(
                f"trainer predict {option} needs --output FILE with one of the endings {', '.join(WRITERS)}"
            )


def with_kept(config: ExperimentConfig, columns: list[str] | None) -> ExperimentConfig:
    """Return a copy of the configuration whose predictions keep raw columns."""
    if columns is None:
        return config
    if config.features is None:
        raise ConfigurationError("trainer predict --keep takes columns of raw rows, which need the section features")
    return config.model_copy(update={"features": {**config.features, "keep": columns}})


def predict(
    config: ExperimentConfig, checkpoint: Path, output: Path, split: str | None, *, set_aside: bool = False
) -> tuple[str, str]:
    """Write the predictions for a dataset.

    Args:
        checkpoint: a snapshot, a pointer, a folder of snapshots, a run folder or a .ckpt file.
        split: "test", "valid" or "train"; None: the first of these in the configuration.
        set_aside: see `Trainer.predict`.

    Returns:
        The name of the dataset, and a message to print.

    Raises:
        ConfigurationError: the rows lack a kept column, or `set_aside` is given without kept columns.
        TrainerError: the file cannot be written.
    """
    from ..runs.training_run import build_restored, split_of
    from .prediction_file import WRITERS, write_columns

    split = split_of(config, split)
    experiment = build_restored(config, checkpoint, split)
    trainer, data = experiment.trainer, experiment.datasets[split]
    if output.suffix not in WRITERS:
        return split, _save(output, experiment, data)
    if trainer.group.size > 1:
        raise ConfigurationError(f"--output: {output} is written by one process; run one for each part of the files")
    features = trainer.features
    keep = [] if features is None else list(features.keep)
    if features is not None and keep:
        _check_kept(keep, data, features.csv)
    elif set_aside:
        requirement = "columns that tell which rows are answered: --keep COLUMN, or features.keep"
        raise ConfigurationError(f"trainer predict --set-aside needs {requirement}")
    rows = write_columns(output, _batches(experiment, data, bool(keep), set_aside))
    return split, f"predictions of {rows:,} rows written to {output}"


def _save(output: Path, experiment: Experiment, data: Any) -> str:
    """Write the network's outputs as a NumPy file; return a message to print.

    All outputs are held in memory. Several outputs are written as .npz even if `output` ends with .npy.
    """
    from ..runs.training_run import batch_size
    from .prediction_file import writing

    predictions = experiment.trainer.predict(data, batch_size=batch_size(experiment, data))
    if not isinstance(predictions, np.ndarray):
        _check_arrays(_by_name(experiment.trainer, predictions))
    several = isinstance(predictions, tuple | dict)
    output = output.with_suffix(".npz") if several else output
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.suffix == ".npz":
            named = predictions if isinstance(predictions, dict) else {}
            np.savez(output, *(() if named else predictions if several else (predictions,)), **named)
        else:
            np.save(output, predictions)
    return f"predictions of shape {_shapes(predictions)} written to {output}"


def _shapes(predictions: Any) -> Any:
    if isinstance(predictions, dict):
        return {name: part.shape for name, part in predictions.items()}
    return tuple([part.shape for part in predictions]) if isinstance(predictions, tuple) else predictions.shape


def _check_kept(columns: list[str], data: Any, csv_format: CsvFormat) -> None:
    """Raise ConfigurationError if raw files lack a kept column."""
    from ...features.raw_files import RawFiles
    from .declared_rows import DeclaredRows

    if isinstance(data, RawFiles):
        rows = DeclaredRows(str(data.path), csv_format)
        for name in columns:
            rows.check_column(name)


def _batches(experiment: Experiment, data: Any, keep: bool, set_aside: bool) -> Iterator[dict[str, np.ndarray]]:
    """Yield each batch as columns: row numbers, kept columns and predictions."""
    from ...data.user_data import UserData
    from ...features.feature import PREDICTION
    from ..runs.training_run import DEFAULT_BATCH_SIZE, batch_size

    trainer, first = experiment.trainer, 0
    size = batch_size(experiment, data) or DEFAULT_BATCH_SIZE
    batch_rows = size if UserData(data, trainer.features).takes_batch_size else None
    options: dict[str, Any] = {"keep": keep, "set_aside": set_aside, "output": "probability"}
    for predictions in trainer.predict(data, batch_size=batch_rows, stream=True, **options):
        predicted = prediction_columns(trainer, predictions[PREDICTION] if keep else predictions)
        count = len(next(iter(predicted.values())))
        columns = {} if set_aside else {"row": np.arange(first, first + count)}  # omitted rows would shift the numbers
        if keep:
            columns |= {name: column for name, column in predictions.items() if name != PREDICTION}
        # a task has the name of its label, which may be kept as well
        yield columns | {f"{PREDICTION}_{name}" if name in columns else name: part for name, part in predicted.items()}
        first += count


def prediction_columns(trainer: Trainer, predictions: Any) -> dict[str, np.ndarray]:
    """Return predictions of shape [n, ...] in the unit of the label, by name.

    Raises:
        DataError: an output is not an array with a row for each of the n rows.
    """
    from ...metrics.predictions import named_classes

    parts = _by_name(trainer, predictions)
    _check_arrays(parts, of_rows=True)
    columns = {name: part.reshape(-1) if part.size == len(part) else part for name, part in parts.items()}
    classes = () if trainer.features is None else trainer.features.label_classes
    return named_classes(next(iter(columns.values())), classes) if classes and len(parts) == 1 else columns


def _by_name(trainer: Trainer, predictions: Any) -> dict[str, Any]:
    tasks = () if trainer.tasks is None else trainer.tasks.tasks
    if isinstance(predictions, dict):
        return predictions
    if isinstance(predictions, np.ndarray) and len(tasks) > 1:  # a column for each task
        return dict(zip(tasks, predictions.T, strict=True))
    parts = predictions if isinstance(predictions, tuple) else (predictions,)
    others = ["prediction"] if len(parts) == 1 else [f"prediction_{index}" for index in range(len(parts))]
    return dict(zip([*tasks, *others[len(tasks) :]], parts, strict=False))


def _check_arrays(outputs: dict[str, Any], *, of_rows: bool = False) -> None:
    """Raise DataError for an output that a file does not take.

    With `of_rows`, outputs have a row for each row of the batch, which are as many as the longest output has.
    """
    sizes = {name: output.shape[:1] if isinstance(output, np.ndarray) else None for name, output in outputs.items()}
    rows = max([size for size in sizes.values() if size is not None], default=())
    for name, size in sizes.items():
        if size is None or (of_rows and (size != rows or not rows)):
            kind = type(outputs[name]).__name__
            found = f"a {kind}" if size is None else f"an array of shape {list(outputs[name].shape)}"
            accepted = "arrays with a row for each row; .npy takes others too" if of_rows else "arrays of one shape"
            raise DataError(f"--output: output {name!r} of the network is {found}; this file takes {accepted}")
