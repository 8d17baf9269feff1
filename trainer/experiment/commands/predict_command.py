"""``trainer predict --to``: predictions for any number of rows."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ConfigurationError

if TYPE_CHECKING:
    from ...streams.formats.csv_format import CsvFormat
    from ...trainer import Trainer
    from ..configuration.experiment_config import ExperimentConfig

logger = logging.getLogger(__name__)

PART_ROWS = 1 << 17


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add arguments besides those of `evaluate`."""
    add = parser.add_argument
    add("--output", metavar="FILE", help=".csv: in the label's unit, as probabilities; default: RUN/predictions.npy")
    add(
        "--to",
        metavar="FILE",
        help=".parquet, .csv or .jsonl, of any size: kept columns, answers; goes on after a kill",
    )
    add(
        "--keep",
        metavar="COLUMN",
        nargs="+",
        action="extend",
        help="--to: raw columns beside the answers; default: features.keep",
    )
    add(
        "--set-aside",
        action="store_true",
        help="--to: leave out rows that the features forbid, and say how many, why and which is the first; "
        "kept columns tell which rows are answered",
    )
    add(
        "--part-rows",
        metavar="ROWS",
        type=int,
        default=PART_ROWS,
        help="--to: rows written at a time; default: 131,072",
    )


def check_arguments(args: argparse.Namespace) -> None:
    """Check the arguments; let features keep the columns of --keep."""
    if args.to is not None and args.output is not None:
        raise ConfigurationError("trainer predict takes --output or --to, not both")
    if args.set_aside and args.to is None:
        raise ConfigurationError("trainer predict --set-aside goes with --to")
    if args.keep is not None:
        if args.to is None:
            raise ConfigurationError("trainer predict --keep goes with --to")
        args.overrides.append(f"features.keep={json.dumps(args.keep)}")


def predict_to(
    config: ExperimentConfig,
    checkpoint: Path,
    output: Path,
    split: str | None = None,
    part_rows: int = PART_ROWS,  # written at a time; a kill loses at most the rows of one part
    set_aside: bool = False,  # see `Trainer.predict`
) -> tuple[str, int]:
    """Write predictions and kept columns to a file of any size; return split and rows.

    See `PredictionFile` and `Features(keep=...)`.
    """
    from ..runs.training_run import DEFAULT_BATCH_SIZE, batch_size, build_restored, split_of
    from .prediction_file import PredictionFile

    split = split_of(config, split)
    experiment = build_restored(config, checkpoint, split)
    trainer, data = experiment.trainer, experiment.datasets[split]
    if trainer.group.size > 1:
        raise ConfigurationError("trainer predict --to works in one process; divide the files, and run one for each")
    columns = [] if trainer.features is None else list(trainer.features.keep)
    if columns:
        _check_kept(columns, data, trainer.features.csv)
    keep = bool(columns)
    task = {"snapshot": str(checkpoint.resolve()), "step": trainer.state.progress.global_step, "split": split}
    task |= {"data": _data_identity(config, split, data), "columns": columns, "part_rows": part_rows}
    if set_aside and not keep:
        needed = "columns that tell which rows are answered: --keep COLUMN, or features.keep"
        raise ConfigurationError(f"trainer predict --set-aside needs {needed}")
    # rows that are set aside would shift the numbers
    file = PredictionFile(output, task | {"set_aside": set_aside}, part_rows, numbered=not set_aside)
    try:
        if file.rows:
            logger.info("%s: going on after %s rows", output, f"{file.rows:,}")
        size = batch_size(config, data) or DEFAULT_BATCH_SIZE
        return split, file.write(_prediction_batches(trainer, data, size, file.rows, keep, set_aside))
    finally:
        file.close()


def _check_kept(columns: list[str], data: Any, csv_format: CsvFormat) -> None:
    """Refuse kept columns that raw files lack; ConfigurationError names the nearest."""
    from ...features.raw_files import RawFiles
    from .declared_rows import DeclaredRows

    if isinstance(data, RawFiles):
        rows = DeclaredRows(str(data.path), csv_format)
        for name in columns:
            rows.check_column(name)


def _data_identity(config: ExperimentConfig, split: str, data: Any) -> dict[str, Any]:
    """Return an identity of the data: specification, sizes and times of files."""
    from ...features.raw_files import RawFiles

    about: dict[str, Any] = {"spec": repr(getattr(config.data, split))}
    if isinstance(data, RawFiles):
        files = [data.path] if data.path.is_file() else sorted(data.path.glob("*"))
        about["files"] = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    return about


def _prediction_batches(
    trainer: Trainer, data: Any, size: int, done: int, keep: bool, set_aside: bool
) -> Iterator[dict[str, np.ndarray]]:
    """Yield kept columns and predictions of batches after the first `done` rows."""
    from ...data.finite.datasets import is_arrays
    from ...features.feature import PREDICTION
    from ...features.raw_files import RawFiles
    from ..runs.training_run import prediction_columns

    first = 0
    # columns are cut by raw rows, among which those that are set aside are not known
    columns_in_memory = is_arrays(data) and isinstance(data, Mapping) and not set_aside
    if isinstance(data, RawFiles) or columns_in_memory:
        first = max(0, done - size)  # repeat the previous batch: there may be no row after it
        rest_of = {name: column[first:] for name, column in data.items()} if columns_in_memory else None
        data = data.from_row(first) if isinstance(data, RawFiles) else rest_of
    skip = done - first
    own = size if isinstance(data, RawFiles) or is_arrays(data) else None
    for predictions in trainer.predict(data, batch_size=own, stream=True, keep=keep, set_aside=set_aside):
        columns = {name: column for name, column in predictions.items() if name != PREDICTION} if keep else {}
        columns |= prediction_columns(trainer, predictions[PREDICTION] if keep else predictions)
        count = len(next(iter(columns.values())))
        rest = {name: column[skip:] for name, column in columns.items()}
        skip = max(0, skip - count)
        if len(next(iter(rest.values()))):
            yield rest
