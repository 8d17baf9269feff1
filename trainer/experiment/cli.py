"""The command line: ``trainer fit|online|evaluate|predict|check|...``; ``trainer --help`` lists the commands.

Exit codes: 0 done; 1 the run failed; 2 the configuration or the command line is wrong; 130 and 143 the run was stopped
by SIGINT or SIGTERM and has wound up.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..distributed.launched import folder_to_resume
from ..errors import ConfigurationError, TrainerError, did_you_mean
from ..masking import mask_text
from . import serve_command, table_commands, versions_command

_COMMANDS = {
    "init": "write a first configuration for a table, from a look at its columns",
    "fit": "train on data.train, validate on data.valid, evaluate on data.test",
    "online": "train on data.stream",
    "evaluate": "evaluate a trained network on data.test (or --split)",
    "predict": "write predictions for data.test (or --split)",
    "features": "what declared features make of the first rows, statistics of the columns, drift since a run",
    "launch": "start a command or a Python script as several processes that train together",
    "check": "tell everything that is wrong with a configuration; runs nothing",
    "show-loop": "print the training loop with the active callbacks in their places",
    "schema": "print a JSON schema of experiments, for editors",
    "runs": "list the runs below a folder: state, best metric, time, size",
    "compare": "runs side by side: differences of configuration, final metrics",
    "models": "list the networks of trainer.models with their papers and options",
    "versions": "list, pin, roll back, promote and compare the versions of a published model",
    "serve": "answer over HTTP from a published model, while it is trained",
    "doctor": "what this machine and installation are, and what stands in the way of a run",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        self.print_usage(sys.stderr)
        self.exit(2, mask_text(f"{self.prog}: {message}\n"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="trainer", description="Train MindSpore networks from YAML experiments.", epilog=__doc__)
    from .. import __version__

    parser.add_argument("--version", action="version", version=f"mindspore-trainer {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    made = {name: commands.add_parser(name, help=text, description=text) for name, text in _COMMANDS.items()}
    for name in ("fit", "online"):
        made[name].add_argument("config", metavar="CONFIG", nargs="?", help="experiment file (YAML)")
        made[name].add_argument("--resume", metavar="RUN", help="go on from the last snapshot of this run folder")
    for name in ("evaluate", "predict", "features", "check", "show-loop"):
        made[name].add_argument("config", metavar="CONFIG", help="experiment file (YAML) or run folder")
    for name in ("evaluate", "predict"):
        made[name].add_argument("--run", metavar="RUN", help="run folder; default: the newest run of CONFIG")
        made[name].add_argument(
            "--checkpoint", metavar="WHICH", help="best, last or a path; default: best where one is marked, else last"
        )
        made[name].add_argument("--split", help="dataset of section data; default: test, else valid, else train")
        made[name].add_argument("--data", metavar="FILE", help="a file or folder of raw rows in place of a dataset")
    made["predict"].add_argument(
        "--output", metavar="FILE", help=".csv: in the label's unit, as probabilities; default: RUN/predictions.npy"
    )
    for name in ("fit", "online", "evaluate", "predict", "features", "check", "show-loop"):
        made[name].add_argument(
            "--set", metavar="A.B=C", action="append", default=[], dest="overrides", help="override a value (YAML)"
        )
    table_commands.init_arguments(made["init"])
    table_commands.features_arguments(made["features"])
    made["schema"].add_argument("--output", metavar="FILE", type=Path, help="a file to write; default: print it")
    _launch_arguments(made["launch"])
    serve_command.add_arguments(made["serve"])
    versions_command.add_arguments(made["versions"])
    made["compare"].add_argument("runs", metavar="RUN", nargs="+", help="run folder; two or more")
    made["runs"].add_argument("folder", metavar="FOLDER", nargs="?", default="runs", help="default: runs")
    made["doctor"].add_argument("--quick", action="store_true", help="leave out compiling and running a tiny graph")
    for subparser in made.values():
        subparser.add_argument("--traceback", action="store_true", help="show where in the code an error came from")
    return parser


def _launch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--processes", type=int, required=True, metavar="N", help="processes on this machine")
    parser.add_argument("--nodes", type=int, default=1, metavar="M", help="machines; default: 1")
    parser.add_argument("--node-rank", type=int, default=0, metavar="I", help="number of this machine; default: 0")
    parser.add_argument("--master", metavar="HOST:PORT", help="of machine 0; default: this machine, a free port")
    parser.add_argument(
        "--meeting-seconds", type=float, default=300.0, metavar="S", help="to wait for the other machines; default: 300"
    )
    parser.add_argument(
        "--grace-seconds", type=float, default=120.0, metavar="S", help="to end after a signal; default: 120"
    )
    parser.add_argument("--max-restarts", type=int, default=0, metavar="K", help="start again after a failure")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="one log a process; default: in the run folder")
    parser.add_argument(
        "job", nargs=argparse.REMAINDER, metavar="COMMAND", help="`fit CONFIG`, `python train.py`, ... with arguments"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: arguments without the program's name; None for those of the process.
    """
    if argv is None:
        sys.excepthook = _print_traceback
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in _COMMANDS:
        known = ", ".join(_COMMANDS)
        print(
            f"trainer: there is no command {arguments[0]!r}; accepts {known}{did_you_mean(arguments[0], _COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as leaving:  # --help, --version or a wrong command line; a library call must get a number
        return int(leaving.code or 0)
    handler = _Console()
    try:
        with _logging_to(handler):
            return _HANDLERS[given.command](given)
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for the interpreter's own last flush)
        return 1
    except (TrainerError, OSError) as error:
        if given.traceback:
            raise
        text = mask_text(str(error)) or type(error).__name__
        if text not in handler.last_error:
            print(text if isinstance(error, ConfigurationError) else f"error: {text}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    except KeyboardInterrupt:
        print("stopped by SIGINT", file=sys.stderr)
        return 130
    except SystemExit as leaving:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if leaving.code == 128 + number:
                print(f"stopped by {number.name}", file=sys.stderr)
        return leaving.code if isinstance(leaving.code, int) else 1


def _print_traceback(*exception: Any) -> None:
    """Print the traceback of an exception that nothing was prepared for, without the credentials in it."""
    print(mask_text("".join(traceback.format_exception(*exception))), end="", file=sys.stderr)


class _Console(logging.StreamHandler):
    """Writes messages as they are, and remembers the last error so that it is not told twice."""

    last_error = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            self.last_error = mask_text(record.getMessage())
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        return mask_text(super().format(record))


@contextlib.contextmanager
def _logging_to(handler: logging.Handler) -> Iterator[None]:
    """Show what the package logs until the command is done; MindSpore's errors are told once, by the exceptions."""
    loggers = [logging.getLogger(name) for name in ("trainer", "callbacks", "mindspore_trainer")]
    levels = [logger.level for logger in loggers]
    quiet = "GLOG_v" not in os.environ and "mindspore" not in sys.modules
    if quiet:
        os.environ["GLOG_v"] = "4"  # noqa: SIM112 (MindSpore spells it so)
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
        if quiet:
            del os.environ["GLOG_v"]  # noqa: SIM112


def _train(given: argparse.Namespace) -> int:
    from . import rundir

    if (given.config is None) == (given.resume is None):
        raise ConfigurationError(
            f"trainer {given.command} takes either CONFIG (a new run) or --resume RUN (which has its configuration)"
        )
    if given.resume is None and folder_to_resume() is not None:
        given.config, given.resume, given.overrides = (
            None,
            folder_to_resume(),
            [],
        )  # the run's own configuration has them
    source = Path(given.config) if given.resume is None else rundir.existing_run(given.resume)
    with _project(source):
        config = _load(source, given)
        from . import commands

        command = commands.fit if given.command == "fit" else commands.online
        run_dir = command(config, resume=given.resume is not None)
    _print_results(rundir.Run.read(run_dir))
    return 0


def _load(source: Path, given: argparse.Namespace) -> Any:
    from dataclasses import replace

    from .loader import load_config

    config = load_config(source, given.overrides)
    # a run folder may have been moved since it was written
    return replace(config, run_dir=source) if source.is_dir() else config


def _project(source: Path) -> Any:
    from .rundir import project_paths

    return project_paths(source)


def _print_results(finished: Any) -> None:
    from .compare import number, table

    metrics = finished.metrics
    results = {**metrics["results"], "steps": metrics["progress"]["global_step"]}
    best = {("train_loss" if name == "loss" else name): values for name, values in metrics["best"].items()}
    rows = [[name, number(value), *_best_of(best.get(name))] for name, value in results.items()]
    print("\n".join(table([["result", "last", "best", "at step", "in snapshot"], *rows])))
    print(f"ended by {metrics['stop_reason']} after {metrics['seconds']:.1f} s")
    print(f"snapshot {metrics['snapshot'] or 'none'}")
    print(f"run folder {finished.path}")


def _best_of(best: Mapping[str, Any] | None) -> list[str]:
    from .compare import number

    return ["", "", ""] if best is None else [number(best["value"]), str(best["step"]), best["snapshot"] or "none kept"]


def _applied(given: argparse.Namespace) -> tuple[Any, Path, Path]:
    """Return the configuration, the run folder and the snapshot that `evaluate` and `predict` work with."""
    from . import rundir
    from .commands import default_checkpoint

    source = Path(given.config)
    config = _load(source, given)
    if given.data is not None:
        config, given.split = table_commands.with_data(config, given.data, given.split), "test"
    if given.run is not None:
        run_dir = rundir.existing_run(given.run)
    elif source.is_dir():
        run_dir = source
    else:
        run_dir = rundir.newest_run(config.run_dir) or config.run_dir
        if given.checkpoint in (None, "best", "last") and not (run_dir / rundir.CONFIG).is_file():
            verb = "online" if config.data.train is None else "fit"
            raise ConfigurationError(
                f"there is no run of {source} in {config.run_dir} yet; run `trainer {verb} {source}` first, or give "
                "--run or --checkpoint"
            )
    return config, run_dir, default_checkpoint(run_dir, given.checkpoint)


def _evaluate(given: argparse.Namespace) -> int:
    with _project(Path(given.config)):
        config, _, checkpoint = _applied(given)
        from . import commands
        from .compare import table

        split, metrics = commands.evaluate(config, checkpoint, given.split)
    rows = [[f"{split} ({checkpoint})", "value"], *([name, f"{value:.6g}"] for name, value in metrics.items())]
    print("\n".join(table(rows)))
    return 0


def _predict(given: argparse.Namespace) -> int:
    with _project(Path(given.config)):
        config, run_dir, checkpoint = _applied(given)
        from . import commands

        output = Path(given.output) if given.output else run_dir / "predictions.npy"
        split, shape = commands.predict(config, checkpoint, output, given.split)
    print(f"{split}: predictions of shape {shape} written to {output}")
    return 0


def _check(given: argparse.Namespace) -> int:
    source = Path(given.config)
    with _project(source):
        config = _load(source, given)
        from .declared import stream_problems
        from .problems import ConfigErrors

        if problems := stream_problems(config):
            raise ConfigErrors(problems)
    print(f"{source}: nothing wrong with experiment {config.experiment!r}")
    return 0


def _show_loop(given: argparse.Namespace) -> int:
    source = Path(given.config)
    with _project(source):
        config = _load(source, given)
        from .show_loop import describe

        print(describe(config))
    return 0


def _compare(given: argparse.Namespace) -> int:
    from .compare import compare

    if len(given.runs) < 2:
        raise ConfigurationError(f"trainer compare takes two run folders or more; received {given.runs[0]!r} alone")
    print(compare(*given.runs))
    return 0


def _runs(given: argparse.Namespace) -> int:
    from .compare import list_runs

    print(list_runs(given.folder))
    return 0


def _models(given: argparse.Namespace) -> int:
    from ..models import describe

    print(describe())
    return 0


def _launch(given: argparse.Namespace) -> int:
    from ..distributed.launch import Job, launch

    return launch(
        Job(
            given.job,
            given.processes,
            nodes=given.nodes,
            node_rank=given.node_rank,
            master=given.master,
            max_restarts=given.max_restarts,
            logs=given.logs,
            meeting_seconds=given.meeting_seconds,
            grace_seconds=given.grace_seconds,
        )
    )


def _doctor(given: argparse.Namespace) -> int:
    from . import doctor

    findings = doctor.examine(run_a_graph=not given.quick)
    print(doctor.report(findings))
    return 1 if any(finding.state == doctor.WRONG for finding in findings) else 0


_HANDLERS = {
    "init": table_commands.init,
    "features": table_commands.features,
    "serve": serve_command.run,
    "schema": table_commands.schema,
    "fit": _train,
    "online": _train,
    "evaluate": _evaluate,
    "predict": _predict,
    "launch": _launch,
    "check": _check,
    "show-loop": _show_loop,
    "runs": _runs,
    "compare": _compare,
    "models": _models,
    "versions": versions_command.run,
    "doctor": _doctor,
}


if __name__ == "__main__":
    sys.exit(main())
