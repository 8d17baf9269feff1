"""Implement the commands init, features and schema, and the option `--data`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from ...checks import whole
from ...errors import ConfigurationError


def init_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `init`."""
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="*", help="a network that `trainer models` lists; default: by the columns")
    add("data", metavar="DATA", type=Path, help="a CSV, JSON-lines or Parquet file, or a folder of them")
    add("--label", metavar="COLUMN", action="append", default=[], help="what is predicted; once for each task")
    add("--time", metavar="COLUMN", help="when a row happened; default: the first column of times")
    add("--user", metavar="COLUMN", action="append", default=[], help="two_tower: known before the choice")
    add("--item", metavar="COLUMN", action="append", default=[], help="two_tower: a column of the item")
    add("--leave-out", metavar="COLUMN", action="append", default=[], help="no feature: known only after the label")
    order = parser.add_mutually_exclusive_group()
    for option, is_day_first in (("--day-first", True), ("--month-first", False)):
        help_text = f"03/02/2024 is {'the third of February' if is_day_first else 'the second of March'}"
        order.add_argument(option, dest="day_first", action="store_const", const=is_day_first, help=help_text)
    add("--delimiter", metavar="SIGN", help="between the fields of a CSV file; default: what the file shows, as below")
    add("--encoding", metavar="NAME", default="utf-8", help="of a CSV file, as gb18030")
    add("--decimal", metavar="SIGN", default=".", help="of numbers, . or ,")
    add("--thousands", metavar="SIGN", help="between groups of three digits")
    add("--missing", metavar="WORD", action="append", default=[], help="word for a missing value, such as n/a")
    add("--output", metavar="FILE", type=Path, help="default: DATA's name with .yaml, in this folder")
    add("--force", action="store_true", help="replace the file if it exists")
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    parser.usage = usage.replace("[MODEL ...]", "[MODEL]")  # `init` refuses several


def init(args: argparse.Namespace) -> None:
    """Write a first configuration for a table, and print what was found in it."""
    from ...streams.formats.csv_format import CsvFormat
    from ..configuration.loader import load_config
    from .first_config import config_text
    from .init_report import format_report
    from .proposal import Sides, propose
    from .table_summary import summarize

    if len(args.model) > 1:
        raise ConfigurationError(f"trainer init takes [MODEL] DATA; received {' '.join([*args.model, str(args.data)])}")
    model = next(iter(args.model), None)
    output = args.output or Path(f"{args.data.name.partition('.')[0] or 'table'}.yaml")
    csv_format = CsvFormat(args.delimiter, args.encoding, args.decimal, args.thousands, missing=tuple(args.missing))
    table = summarize(args.data, given=csv_format, day_first=args.day_first)
    proposal = propose(table, model, args.label, args.time, Sides(args.user, args.item, args.leave_out))
    text = config_text(table, proposal, output)
    if output.exists() and not (args.force or _is_confirmed(output)):
        raise ConfigurationError(f"{output} exists; give --output FILE for another, or --force to replace it")
    _write(output, text)
    load_config(output)
    print(format_report(table, proposal))
    print(f"written: {output}\nnext: trainer fit {shlex.quote(str(output))}")


def _write(path: Path, text: str) -> None:
    from ...checkpoint import durable

    try:
        durable.replace_file(path, text.encode())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from error


def _is_confirmed(path: Path) -> bool:
    return sys.stdin.isatty() and input(f"{path} exists; replace it? [y/N] ").strip().lower() == "y"


def features_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `features` except CONFIG and --set."""
    add = parser.add_argument
    add("--data", metavar="FILE", type=Path, help="a file or folder of raw rows; default: data.train")
    add("--rows", metavar="N", type=int, default=10_000, help="rows to look at; default: 10,000")
    add("--run", metavar="RUN", type=Path, help="run or snapshot that drift is measured from; default: the newest run")
    add("--fit", action="store_true", help="learn from all rows of data.train, or of --data, and write it to --to")
    add("--to", metavar="FOLDER", type=Path, help="--fit: a new folder, for features: {fitted: FOLDER}")
    add("--engine", help="--fit: local (this process), or ray (Ray Data, over Parquet)")


def features(args: argparse.Namespace) -> None:
    """Show the declared features of the first rows, or fit them with `--fit`."""
    from ..configuration.loader import load_config
    from ..runs import run_folder
    from .features_command import describe_features, fit_features

    source = Path(args.config)
    whole("--rows", args.rows)
    for option, value in (("--to", args.to), ("--engine", args.engine)):
        if value is not None and not args.fit:
            raise ConfigurationError(f"trainer features {option} needs --fit, which learns from the rows")
    for path in (args.data, args.run):
        if path is not None and not path.exists():
            raise ConfigurationError(f"no such file or folder: {path}")
    with run_folder.project_paths(source):
        config = load_config(source, args.overrides)
        if args.fit:
            print(fit_features(config, args.data, args.to, args.engine or "local"))
            return
        run = args.run or (source if source.is_dir() else run_folder.newest_run(config.run_dir, config.experiment))
        print(describe_features(config, run, args.data, args.rows))


def schema(args: argparse.Namespace) -> None:
    """Print the JSON schema of experiments, or write it to a file."""
    from ..configuration.json_schema import experiment_schema

    text = json.dumps(experiment_schema(), indent=1) + "\n"
    if args.output is None:
        print(text, end="")
        return
    _write(args.output, text)
    print(f"first line of an experiment, for editors: # yaml-language-server: $schema={args.output}")


def with_data(config: Any, data: str, split: str | None) -> Any:
    """Return a copy of the configuration whose data.test reads the raw rows `data`."""
    from ...storage.location import is_url
    from ..configuration.object_spec import ObjectSpec

    if split is not None:
        raise ConfigurationError("give --data or --split, not both")
    if config.features is None:
        raise ConfigurationError("--data takes raw rows, which need the section features; give --set data.test=...")
    if not is_url(data) and not Path(data).exists():
        raise ConfigurationError(f"--data: no such file or folder: {data}")
    rows = ObjectSpec("trainer.features.RawFiles", {"path": data}, path="data.test")
    return config.model_copy(update={"data": config.data.model_copy(update={"test": rows})})
