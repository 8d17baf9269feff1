"""Implement `trainer export`: export a run's snapshot for other programs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from ...features.features import Features
    from ...trainer import Trainer
    from ..configuration.experiment_config import ExperimentConfig

_EXAMPLE_ROWS = 256  # number of raw rows that the export uses as example inputs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `evaluate` does not have."""
    add = parser.add_argument
    add("--output", metavar="FOLDER", help="a folder that does not exist yet; default: RUN/export")
    add(
        "--publish",
        metavar="FOLDER",
        help="only publish: write the snapshot there as a version for `trainer serve`, with the items of --items",
    )
    add("--no-onnx", action="store_true", help="leave ONNX out, which needs the extra [onnx]")
    add(
        "--batch",
        type=int,
        default=256,
        metavar="ROWS",
        help="rows of an exported program with a fixed batch size; default: 256",
    )
    for name in ("items", "users"):
        add(f"--{name}", metavar="FILE", help=f"two towers: raw rows of {name}, to write {name}.parquet with vectors")
        add(f"--{name[:-1]}-id", metavar="COLUMN", help=f"column of --{name} that names them; default: the first one")


def check_arguments(args: argparse.Namespace) -> None:
    """Raise ConfigurationError if an option would be ignored."""
    for name, column, rows in (("item", args.item_id, args.items), ("user", args.user_id, args.users)):
        if column is not None and rows is None:
            raise ConfigurationError(f"trainer export --{name}-id names a column of --{name}s FILE, which is not given")
    for option, given in (("--output", args.output is not None), ("--no-onnx", args.no_onnx)):
        if given and args.publish is not None:
            raise ConfigurationError(f"trainer export {option} cannot be combined with --publish, which only publishes")


def run(args: argparse.Namespace, config: ExperimentConfig, run_dir: Path, checkpoint: Path) -> None:
    """Export a snapshot, and print the files written.

    Raises the errors of `export_model`.
    """
    from ...checkpoint import find
    from ...checkpoint.saver import snapshots_of
    from ...serving.exported_model import export_model

    trainer, rows = _snapshot_model(config, checkpoint, args.split)
    step = find(snapshots_of(checkpoint)).step
    if args.publish is not None:
        version = _publish(trainer, rows, args, step)
        print(f"{checkpoint} is version {version} of {args.publish}")
        return
    folder = Path(args.output) if args.output else run_dir / "export"
    options: dict[str, Any] = {"onnx": not args.no_onnx, "batch": args.batch, "step": step}
    items, users = _ids_and_rows(trainer, args.items, args.item_id), _ids_and_rows(trainer, args.users, args.user_id)
    exported = export_model(trainer, folder, rows, items=items, users=users, **options)
    for name, size in exported.files.items():
        print(f"{size:>12,}  {name}")
    if exported.difference is not None:
        batch = "any number of" if exported.batch is None else f"exactly {exported.batch}"
        print(
            f"network.onnx takes {batch} rows; onnxruntime's answers differ from the network's by "
            f"{exported.difference:.2g} at most ({exported.compared} rows)"
        )
    print(f"exported to {exported.folder}; docs/export.md says how to call it")


def _snapshot_model(config: ExperimentConfig, checkpoint: Path, split: str | None) -> tuple[Trainer, Any]:
    """Return a Trainer with a snapshot's weights, and rows for its `predict`.

    Without a finite dataset, all values of the rows are missing; the stream is not read.
    """
    from ..runs.training_run import build_restored, split_of, splits_of

    chosen_split = split_of(config, split) if split or splits_of(config) else None
    experiment = build_restored(config, checkpoint, chosen_split)
    trainer = experiment.trainer
    if chosen_split is not None:
        data = experiment.datasets[chosen_split]
        return trainer, data if trainer.features is None else _first_rows(trainer.features, data)
    if trainer.features is not None:
        features = trainer.features
        return trainer, features.apply({name: column.blank(2) for name, column in features.columns.items()})
    raise ConfigurationError(
        f"{config.source}: data: has only a stream, and the network's columns are not declared; name a dataset "
        "that shows them, by --set data.test.class_path=... --set data.test.init_args...=..."
    )


def _first_rows(features: Features, data: Any) -> Any:
    """Return the network's inputs for the first raw rows; other data unchanged."""
    from ...features.feature_data import is_raw, raw_data, rows_of

    if not is_raw(data):
        return data
    data = raw_data(data)
    raw = next(rows_of(features, data, labelled=data.part is not None), None)
    if raw is None:
        raise DataError("the data have no good rows")
    return features.apply({name: column[:_EXAMPLE_ROWS] for name, column in raw.columns.items()})


def _publish(trainer: Trainer, rows: Any, args: argparse.Namespace, step: int) -> int:
    """Publish a version, with the items if they are given; return its number."""
    from ...serving import Publish, Versions
    from .declared_rows import DeclaredRows

    root, column = Path(args.publish), args.item_id
    if args.users is not None:
        raise ConfigurationError(
            "trainer export --users cannot be combined with --publish; use trainer recommend for users"
        )
    if args.items is not None and column is None and trainer.features is not None:
        column = DeclaredRows(args.items, trainer.features.csv).names[0]
    publish = Publish(root, batch=args.batch, on_error="raise", items=args.items, item_id=column)
    publish.setup(trainer)
    try:
        publish.publish(trainer, trainer.first_batch(rows, args.batch), step=step)
        publish.wait()
    finally:
        publish.teardown(trainer)
    return Versions(root).newest()


def _ids_and_rows(trainer: Any, path: str | None, column: str | None) -> tuple[Any, Any] | None:
    """Return (ids, raw rows) of a file, or None without a path.

    The ids are in `column`, by default the first column.
    """
    from ...features.feature import text_column
    from .declared_rows import DeclaredRows

    if path is None:
        return None
    if trainer.features is None:
        raise ConfigurationError("--items and --users take raw rows, which need the section features")
    table = DeclaredRows(path, trainer.features.csv)
    column = table.names[0] if column is None else column
    table.check_column(column)
    columns = {column: text_column(required=False), **trainer.features.columns}
    blocks = list(table.blocks(columns, 1 << 16, trainer.features.max_bad_share))
    if not blocks:
        raise DataError(f"{path} has no rows")
    rows = {name: _joined([block[name] for block in blocks]) for name in blocks[0]}
    return rows[column], rows


def _joined(parts: Sequence[Any]) -> Any:
    """Concatenate parts of a column; missing integers stay masked."""
    is_masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
    return np.ma.concatenate(parts) if is_masked else np.concatenate(parts)
