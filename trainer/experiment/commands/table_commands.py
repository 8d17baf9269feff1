"""``init``, ``features``, ``schema``, and ``--data`` of other commands."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...checks import whole
from ...errors import ConfigurationError


def init_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `init`."""
    add = parser.add_argument
    parser.usage = (
        "trainer init [-h] [--label COLUMN] [--time COLUMN] [--leave-out COLUMN]\n                    "
        "[--user COLUMN] [--item COLUMN] [--output FILE] [--force] [MODEL] DATA"
    )
    add(
        "words",
        nargs="+",
        metavar="[MODEL] DATA",
        help="a network that `trainer models` lists; a CSV, JSON-lines, Parquet or Arrow file, or a folder of them",
    )
    add("--label", metavar="COLUMN", action="append", default=[], help="what is predicted; once for each task")
    add("--time", metavar="COLUMN", help="when a row happened; default: the first column of times")
    add("--user", metavar="COLUMN", action="append", default=[], help="two_tower: known before the choice")
    add("--item", metavar="COLUMN", action="append", default=[], help="two_tower: a column of the item")
    add("--leave-out", metavar="COLUMN", action="append", default=[], help="no feature: known only after the label")
    add("--output", metavar="FILE", type=Path, help="default: DATA's name with .yaml, in this folder")
    add("--force", action="store_true", help="replace the file if it exists")


def init(args: argparse.Namespace) -> None:
    """Write a first configuration for a table."""
    from .init_command import write_first_config
    from .proposal import Sides

    *model, data = args.words
    if len(model) > 1:
        raise ConfigurationError(f"trainer init takes [MODEL] DATA; received {' '.join(args.words)}")

    def overwrite(path: Path) -> bool:
        return args.force or (sys.stdin.isatty() and input(f"{path} exists; replace it? [y/N] ").strip().lower() == "y")

    output, proposal = write_first_config(
        Path(data),
        *model,
        labels=args.label,
        event_time=args.time,
        sides=Sides(args.user, args.item, args.leave_out),
        output=args.output,
        overwrite=overwrite,
    )
    features = sum(arguments is not None for arguments, _ in proposal.features)
    print(f"{output}: {proposal.model} predicts {', '.join(proposal.labels)} from {features} features")
    print(f"next: trainer fit {shlex.quote(str(output))}")


def features_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `features` except CONFIG and --set."""
    add = parser.add_argument
    add("--data", metavar="FILE", type=Path, help="a file or folder of raw rows; default: data.train")
    add("--rows", metavar="N", type=int, default=10_000, help="rows to look at; default: 10,000")
    add("--run", metavar="RUN", type=Path, help="run or snapshot that drift is measured from; default: the newest run")


def features(args: argparse.Namespace) -> None:
    """Show the values of declared features for the first rows."""
    from ..configuration.loader import load_config
    from ..runs import run_folder
    from .features_command import describe_features

    source = Path(args.config)
    whole("--rows", args.rows)
    for path in (args.data, args.run):
        if path is not None and not path.exists():
            raise ConfigurationError(f"no such file or folder: {path}")
    with run_folder.project_paths(source):
        config = load_config(source, args.overrides)
        run = args.run or (source if source.is_dir() else run_folder.newest_run(config.run_dir))
        print(describe_features(config, run, args.data, args.rows))


def schema(args: argparse.Namespace) -> None:
    """Print the JSON schema of experiments, or write it to a file."""
    from ...checkpoint import durable
    from ..configuration.json_schema import experiment_schema

    text = json.dumps(experiment_schema(), indent=1) + "\n"
    if args.output is None:
        print(text, end="")
        return
    try:
        durable.replace_file(args.output, text.encode())
    except OSError as error:
        raise ConfigurationError(f"--output: {args.output} cannot be written: {error.strerror or error}") from error
    print(f"first line of an experiment, for editors: # yaml-language-server: $schema={args.output}")


def with_data(config: Any, data: str, split: str | None) -> Any:
    """Return the configuration with a file or folder of raw rows as data.test."""
    from ...storage.location import is_url
    from ..configuration.experiment_config import ObjectSpec

    if split is not None:
        raise ConfigurationError("give --data or --split, not both")
    if config.features is None:
        raise ConfigurationError("--data takes raw rows, which need the section features; give --set data.test=...")
    if not is_url(data) and not Path(data).exists():
        raise ConfigurationError(f"--data: no such file or folder: {data}")
    rows = ObjectSpec("trainer.features.RawFiles", {"path": data}, path="data.test")
    return replace(config, data=replace(config.data, test=rows))
