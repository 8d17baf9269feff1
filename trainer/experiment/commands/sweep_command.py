"""Implement `trainer sweep`: its arguments and its table of results."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...checks import is_number
from ...errors import ConfigurationError, TrainerError

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add = parser.add_argument
    add("config", metavar="CONFIG", nargs="?", help="experiment file (YAML)")
    add("--resume", metavar="FOLDER", type=Path, help="continue the sweep of this folder")
    add("--processes", type=int, default=1, metavar="N", help="trials at the same time; default: 1")
    of_a_new_sweep = [
        add(
            "--vary",
            metavar="A.B=VALUES",
            action="append",
            default=[],
            help="values of an option: 1,2,3 or [64,32],[128] or 0.1..1 or 1e-4..1e-1:log; may be given several times",
        ),
        add("--monitor", metavar="METRIC", default="val_loss", help="what decides; default: val_loss"),
        add("--mode", choices=("auto", "min", "max"), default="auto", help="default: as the metric declares"),
        add("--search", choices=("grid", "random", "optuna"), default="grid", help="default: grid"),
        add("--trials", type=int, metavar="N", help="how many; default: the whole grid"),
        add("--prune", action="store_true", help="end trials without a prospect early (optuna)"),
        add("--seed", type=int, default=0, help="of the draws; default: 0"),
        add("--online", action="store_true", help="trials of `trainer online`; default: fit"),
        add("--output", metavar="FOLDER", type=Path, help="default: sweeps/<name of CONFIG>"),
        add("--set", metavar="A.B=C", action="append", default=[], dest="overrides", help="of every trial"),
    ]
    parser.set_defaults(of_a_new_sweep=of_a_new_sweep)


def run(args: argparse.Namespace) -> int:
    """Run a sweep and print its table; return the exit code."""
    if (args.config is None) == (args.resume is None):
        raise ConfigurationError("trainer sweep takes either CONFIG (a new sweep) or --resume FOLDER")
    from ..runs.compare import number, table
    from ..sweep import resume, sweep
    from ..sweep_plan import read_plan

    if args.resume is not None:
        _check_resumed(args)
        folder = args.resume
        trials = resume(folder, args.processes)
    else:
        folder = args.output or Path("sweeps") / Path(args.config).stem
        names = ("monitor", "search", "trials", "mode", "prune", "processes", "seed", "overrides")
        options: dict[str, Any] = {name: getattr(args, name) for name in names}
        command = "online" if args.online else "fit"
        trials = sweep(args.config, _variations(args.vary), folder=folder, command=command, **options)
    plan = read_plan(folder)
    rows = [["trial", "state", *plan.vary, plan.monitor]]
    for trial in trials:
        value = "" if trial.value is None else number(trial.value)
        rows.append([trial.folder.name, trial.state, *(number(trial.values[path]) for path in plan.vary), value])
    print("\n".join(table(rows)))
    try:
        from ..runs.run_pages import render_sweep

        (folder / "report.html").write_text(render_sweep(folder), "utf-8")
        print(f"{folder / 'report.html'} shows them")
    except TrainerError as error:  # Bokeh is not installed
        logger.info("no page is written: %s", error)
    return 0 if any(trial.state in ("done", "pruned") for trial in trials) else 1


def _check_resumed(args: argparse.Namespace) -> None:
    """Raise ConfigurationError if options of a new sweep are given."""
    new = args.of_a_new_sweep
    given = [option.option_strings[0] for option in new if getattr(args, option.dest) != option.default]
    if given:
        raise ConfigurationError(
            f"trainer sweep --resume {args.resume} continues the sweep as it began, and takes only --processes; "
            f"received {', '.join(given)}. To change it, begin another: trainer sweep CONFIG ... --output FOLDER"
        )


def _variations(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of each --vary by path."""
    variations: dict[str, Any] = {}
    for path, values in map(_parse_variation, texts):
        if path in variations:
            raise ConfigurationError(f"--vary takes all values of a setting at once; received {path} twice")
        variations[path] = values
    return variations


def _parse_variation(text: str) -> tuple[str, Any]:
    from ..configuration.problems import ConfigErrors, SourceLocation
    from ..configuration.yaml_tree import parse_tree

    path, equals, values = text.partition("=")
    if not equals or not values:
        raise ConfigurationError(f"--vary takes A.B=VALUES; received {text!r}")
    source = f"--vary {text}"
    values_listed = parse_tree(f"[{values}]", source, SourceLocation(source)).value
    low, dots, high = values.partition("..")
    if not dots or len(values_listed) != 1 or not isinstance(values_listed[0], str):
        return path, values_listed
    high, colon, log = high.partition(":")
    try:
        bounds = parse_tree(f"[{low}, {high}]", source).value
    except ConfigErrors:
        bounds = []
    if len(bounds) != 2 or not all(map(is_number, bounds)):
        return path, values_listed  # a string that contains "..", such as "../data"
    return path, (*bounds, log) if colon else tuple(bounds)
