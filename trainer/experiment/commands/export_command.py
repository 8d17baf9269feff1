"""The command ``trainer export``: exports a run's snapshot for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigurationError, DataError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add arguments besides CONFIG, --run, --checkpoint, --split, --data and --set."""
    parser.add_argument("--output", metavar="FOLDER", help="a folder that does not exist yet; default: RUN/export")
    parser.add_argument(
        "--publish",
        metavar="FOLDER",
        help="write the snapshot there as a version for `trainer serve`, and nothing else",
    )
    parser.add_argument("--no-onnx", action="store_true", help="leave ONNX out, which needs the extra [onnx]")
    parser.add_argument("--tables", metavar="FORMAT", default="parquet", help="parquet (default) or safetensors")
    parser.add_argument(
        "--batch", type=int, default=256, metavar="ROWS", help="of a program with one size of batch; default: 256"
    )
    for name in ("items", "users"):
        parser.add_argument(
            f"--{name}", metavar="FILE", help=f"two towers: raw rows of {name}, to write {name}.parquet with vectors"
        )
        parser.add_argument(
            f"--{name[:-1]}-id", metavar="COLUMN", help=f"column of --{name} that names them; default: the first one"
        )


def run(args: argparse.Namespace, config: Any, run_dir: Path, checkpoint: Path) -> int:
    """Export and report what was written; raises what `export_model` raises."""
    from ...checkpoint import find
    from ...checkpoint.saver import snapshots_of
    from ...serving.exported_model import export_model
    from ..runs.snapshot_model import snapshot_model

    folder = Path(args.output) if args.output else run_dir / "export"
    trainer, rows = snapshot_model(config, checkpoint, args.split)
    step = find(snapshots_of(checkpoint)).step
    if args.publish is not None:
        version = _publish(trainer, rows, Path(args.publish), args.batch, step)
        print(f"{checkpoint} is version {version} of {args.publish}")
        return 0
    vectors = {"items": _rows(trainer, args.items, args.item_id), "users": _rows(trainer, args.users, args.user_id)}
    exported = export_model(
        trainer,
        folder,
        rows,
        onnx=not args.no_onnx,
        tables=args.tables,
        batch=args.batch,
        step=step,
        **vectors,
    )
    for name, size in exported.files.items():
        print(f"{size:>12,}  {name}")
    if exported.difference is not None:
        batch = "any number of" if exported.batch is None else f"exactly {exported.batch}"
        print(
            f"network.onnx takes {batch} rows; onnxruntime's answers differ from the network's by "
            f"{exported.difference:.2g} at most ({exported.compared} rows)"
        )
    print(f"exported to {exported.folder}; its README.md says how to call it")
    return 0


def _publish(trainer: Any, rows: Any, root: Path, batch: int, step: int) -> int:
    """Write a version; return its number."""
    from ...serving import Publish, Versions

    publish = Publish(root, batch=batch, on_error="raise")
    publish.setup(trainer)
    try:
        publish.publish(trainer, trainer.first_batch(rows, batch), step=step)
        publish.wait()
    finally:
        publish.teardown(trainer)
    return Versions(root).newest()


def _rows(trainer: Any, path: str | None, column: str | None) -> tuple[Any, Any] | None:
    """Return (ids, raw rows) of a file, or None; by default its first column has ids."""
    from ...features.feature import text_column
    from .declared_rows import DeclaredRows

    if path is None:
        return None
    if trainer.features is None:
        raise ConfigurationError("--items and --users take raw rows, which need the section features")
    table = DeclaredRows(path)
    column = table.names[0] if column is None else column
    table.check_column(column)
    columns = {column: text_column(required=False), **trainer.features.columns}
    blocks = list(table.blocks(columns, 1 << 16, trainer.features.max_bad_share))
    if not blocks:
        raise DataError(f"{path} has no rows")
    rows = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    return rows[column], rows
