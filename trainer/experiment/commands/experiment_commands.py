"""Implement the commands fit, online, evaluate, predict, export and check."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...distributed.launched import folder_to_resume
from ...errors import ConfigurationError
from ..console import print_results
from . import export_command, predict_command, table_commands


def add_arguments(parsers: Mapping[str, argparse.ArgumentParser]) -> None:
    """Add the arguments of commands that read a configuration to their parsers."""
    for name in ("fit", "online"):
        parsers[name].add_argument("config", metavar="CONFIG", nargs="?", help="experiment file (YAML)")
        parsers[name].add_argument(
            "--resume",
            metavar="RUN",
            help="continue from the last snapshot of this run folder, or of its mirror (URL); CONFIG --resume auto "
            "begins the run of CONFIG, or continues it",
        )
    parsers["fit"].add_argument(
        "--baseline", action="store_true", help="compare the result with plain models; section baseline of CONFIG"
    )
    for name in ("evaluate", "predict", "export", "features", "check"):
        parsers[name].add_argument("config", metavar="CONFIG", help="experiment file (YAML) or run folder")
    for name in ("evaluate", "predict", "export"):
        add = parsers[name].add_argument
        add("--run", metavar="RUN", help="run folder; default: the newest run of CONFIG")
        add("--checkpoint", metavar="WHICH", help="best, last or a path; default: best where one is marked, else last")
        add("--split", help="dataset of section data; default: test, else valid, else train")
        add("--data", metavar="FILE", help="a file or folder of raw rows instead of a dataset")
    predict_command.add_arguments(parsers["predict"])
    for name in ("fit", "online", "evaluate", "predict", "export", "features", "check"):
        parsers[name].add_argument(
            "--set", metavar="A.B=C", action="append", default=[], dest="overrides", help="override a value (YAML)"
        )
        parsers[name].add_argument(
            "--device",
            metavar="NAME",
            action="append",
            dest="overrides",
            type="trainer.device={}".format,
            help="cpu, gpu, ascend or auto (where MindSpore says); the same as --set trainer.device=NAME",
        )
    export_command.add_arguments(parsers["export"])


def train(args: argparse.Namespace) -> None:
    """Start or resume a run (`fit` and `online`)."""
    from ...storage.location import is_url
    from ..runs import run_folder
    from ..runs.restart import fetch_published, fetched_run

    if args.resume == "auto" and args.config is not None:
        _resume_existing(args)
    if (args.config is None) == (args.resume is None):
        raise ConfigurationError(
            f"trainer {args.command} takes either CONFIG (a new run), --resume RUN (which has its configuration), or "
            "CONFIG --resume auto (the run of CONFIG, if it was begun)"
        )
    if args.resume is None and folder_to_resume() is not None:
        args.config, args.resume, args.overrides = None, folder_to_resume(), []  # they are in the run's configuration
    mirror = args.resume if is_url(args.resume) else None
    if mirror is not None:
        args.resume = fetched_run(mirror)
    source = Path(args.config) if args.resume is None else run_folder.existing_run(args.resume)
    with _loaded(source, args) as config:
        if mirror is not None:
            fetch_published(mirror, config)
        from ..runs import training_run

        run_dir = training_run.train(config, args.command, resume=args.resume is not None)
    print_results(run_folder.Run.read(run_dir))


def _resume_existing(args: argparse.Namespace) -> None:
    """Replace ``--resume auto`` by ``--resume RUN``, or drop it if there is no run."""
    from ..runs.restart import existing_run

    with _loaded(Path(args.config), args) as config:
        args.resume = existing_run(config)
    if args.resume is not None:  # the run's own configuration contains the overrides
        args.config, args.overrides = None, []


@contextlib.contextmanager
def _loaded(source: Path, args: argparse.Namespace) -> Iterator[Any]:
    """Yield the checked configuration; modules of its project can be imported."""
    from ..configuration.loader import load_config
    from ..runs.run_folder import project_paths

    with project_paths(source):
        config = load_config(source, args.overrides)
        if getattr(args, "baseline", False) and config.baseline is None:
            config = load_config(source, [*args.overrides, "baseline={}"])
        # a run folder may have been moved, so its recorded run_dir may be wrong
        yield config.model_copy(update={"run_dir": source}) if source.is_dir() else config


@contextlib.contextmanager
def _trained_network(args: argparse.Namespace) -> Iterator[tuple[Any, Path, Path]]:
    """Yield the configuration, the run folder and the snapshot of a trained network."""
    from ..runs import run_folder
    from ..runs.training_run import default_checkpoint

    source = Path(args.config)
    with _loaded(source, args) as config:
        if args.data is not None:
            config, args.split = table_commands.with_data(config, args.data, args.split), "test"
        if args.run is not None:
            run_dir = run_folder.existing_run(args.run)
        elif source.is_dir():
            run_dir = source
        else:
            newest = run_folder.newest_run(config.run_dir, config.experiment)
            run_dir = newest or config.run_dir
            if newest is None and args.checkpoint in (None, "best", "last"):
                verb = "online" if config.data.train is None else "fit"
                raise ConfigurationError(
                    f"there is no run of {source} in {config.run_dir} yet; run `trainer {verb} {source}` first, or "
                    "give --run or --checkpoint"
                )
        yield config, run_dir, default_checkpoint(run_dir, args.checkpoint)


def evaluate(args: argparse.Namespace) -> None:
    """Print the metrics of a trained network."""
    with _trained_network(args) as (config, _, checkpoint):
        from ..runs import training_run
        from ..runs.compare import table

        split, metrics = training_run.evaluate(config, checkpoint, args.split)
        from callbacks.output import without_equal_losses

    distinct = without_equal_losses(metrics)
    rows = [[f"{split} ({checkpoint})", "value"], *([name, f"{value:.6g}"] for name, value in distinct.items())]
    print("\n".join(table(rows)))


def predict(args: argparse.Namespace) -> None:
    """Write the predictions of a trained network."""
    predict_command.check_arguments(args)
    with _trained_network(args) as (config, run_dir, checkpoint):
        config = predict_command.with_kept(config, args.keep)
        output = Path(args.output) if args.output else run_dir / predict_command.DEFAULT
        split, message = predict_command.predict(config, checkpoint, output, args.split, set_aside=args.set_aside)
    print(f"{split}: {message}")


def export(args: argparse.Namespace) -> None:
    """Write a trained network for other programs."""
    export_command.check_arguments(args)
    with _trained_network(args) as applied:
        export_command.run(args, *applied)


def check(args: argparse.Namespace) -> None:
    """Check an experiment; print the result or raise all problems."""
    source = Path(args.config)
    with _loaded(source, args) as config:
        from . import check_command

        message = check_command.run(config)
    print(f"{source}: {message}")
