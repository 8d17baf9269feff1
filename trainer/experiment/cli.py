"""Command line ``trainer COMMAND ...``."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, TrainerError, did_you_mean
from ..masking import mask_text
from .commands import (
    experiment_commands,
    launch_command,
    recommend_command,
    report_command,
    serve_command,
    sweep_command,
    table_commands,
    versions_command,
)
from .console import Console, logging_to, print_error, print_traceback, recorded_output

_WRITING_FILES = ("fit", "online", "launch", "serve")  # commands whose results are files, not their output


class _Parser(argparse.ArgumentParser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reject unknown options; show the command's usage and the most similar option."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            option = next((word for word in unknown if word.startswith("-")), "").partition("=")[0]
            hint = did_you_mean(option, self._option_string_actions, 0.7) if option else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return namespace, unknown

    def error(self, message: str) -> Any:
        self.print_usage(sys.stderr)
        print_error(f"{self.prog}: {message}")
        self.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="trainer", usage="trainer COMMAND ...", add_help=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog="trainer")
    parsers = {name: _command_parser(commands, name) for name in _COMMANDS}
    experiment_commands.add_arguments(parsers)
    table_commands.init_arguments(parsers["init"])
    table_commands.features_arguments(parsers["features"])
    parsers["schema"].add_argument("--output", metavar="FILE", type=Path, help="a file to write; default: print it")
    launch_command.add_arguments(parsers["launch"])
    serve_command.add_arguments(parsers["serve"])
    recommend_command.add_arguments(parsers["recommend"])
    versions_command.add_arguments(parsers["versions"])
    sweep_command.add_arguments(parsers["sweep"])
    report_command.report_arguments(parsers["report"])
    report_command.watch_arguments(parsers["watch"])
    parsers["compare"].add_argument("runs", metavar="RUN", nargs="+", help="run folder; two or more")
    parsers["models"].add_argument("name", metavar="NAME", nargs="?", help="one to explain; default: list all")
    parsers["runs"].add_argument("folder", metavar="FOLDER", nargs="?", default="runs", help="default: runs")
    doctor = parsers["doctor"].add_argument
    doctor("--quick", action="store_true", help="leave out compiling and running a tiny graph")
    doctor("--device", metavar="NAME", help="try what MindSpore can do on cpu, gpu or ascend, in some minutes")
    doctor("--report", metavar="FILE", type=Path, help="write what --device found as a table; default: print it")
    for subparser in parsers.values():
        subparser.add_argument("--verbose", action="store_true", help="log how tables and steps are grouped, too")
        subparser.add_argument("--traceback", action="store_true", help="show where in the code an error came from")
    return parser


def _command_parser(commands: Any, name: str) -> argparse.ArgumentParser:
    _, text, examples = _COMMANDS[name]
    example_lines = "\n".join(f"  trainer {name} {example}".rstrip() for example in examples)
    epilog, formatter = f"examples:\n{example_lines}", argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, help=text, description=text, epilog=epilog, formatter_class=formatter)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    if argv is None:
        sys.excepthook = print_traceback
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in _COMMANDS:
        known = ", ".join(_COMMANDS)
        print_error(
            f"trainer: there is no command {arguments[0]!r}; accepts {known}{did_you_mean(arguments[0], _COMMANDS)}"
        )
        return 2
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from .. import __version__

        print(f"mindspore-trainer {__version__}")
        return 0
    try:
        args = _parser().parse_args(arguments)
    except SystemExit as exit_request:  # --help or a wrong command line; `main` returns the exit code instead
        return int(exit_request.code or 0)
    handler = Console()
    try:
        with logging_to(handler, args.verbose):
            return _run(args)
    except (TrainerError, OSError) as error:
        if args.traceback:
            raise
        text = mask_text(str(error)) or type(error).__name__
        if text not in handler.last_error:
            print_error(text if isinstance(error, ConfigurationError) else f"error: {text}")
        return 2 if isinstance(error, ConfigurationError) else 1
    except KeyboardInterrupt:
        print("stopped by SIGINT", file=sys.stderr)
        return 130
    except SystemExit as exit_request:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if exit_request.code == 128 + number:
                print(f"stopped by {number.name}", file=sys.stderr)
        return exit_request.code if isinstance(exit_request.code, int) else 1


_COMMANDS_BY_TASK = {
    "begin": ("init", "models", "schema"),
    "train": ("fit", "online", "launch", "sweep"),
    "look": ("runs", "compare", "report", "watch", "evaluate", "features"),
    "serve": ("predict", "recommend", "serve", "versions", "export"),
    "check": ("check", "doctor"),
}


_EXIT_CODES = """exit codes: 0 done, 1 the run failed, 2 a wrong configuration or command line,
130 and 143 stopped cleanly by SIGINT and SIGTERM"""


def _overview() -> str:
    """Return the help text that lists the commands by task."""
    lines = ["usage: trainer COMMAND ...; `trainer COMMAND --help` shows its options"]
    for task, names in _COMMANDS_BY_TASK.items():
        lines += ["", f"{task}:", *(f"  {name:<10} {_COMMANDS[name][1]}" for name in names)]
    return "\n".join([*lines, "", _EXIT_CODES])


def _run(args: argparse.Namespace) -> int:
    """Run a command and return its exit code.

    If stdout cannot be written, commands whose results are files still succeed.
    """
    code = 0
    with recorded_output() as output:
        try:
            code = _COMMANDS[args.command][0](args) or 0
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()
        except OSError as error:
            if error is not output.lost:
                raise
    if output.lost is None:
        return code
    reason = output.lost.strerror or output.lost
    if args.command in _WRITING_FILES:
        print(f"standard output cannot be written ({reason}); the files of the run are complete", file=sys.stderr)
        return code
    if not isinstance(output.lost, BrokenPipeError):  # no message if the reader closed the pipe, as `head` does
        print(f"error: standard output cannot be written ({reason}): the result is not complete", file=sys.stderr)
    return 1


def _compare(args: argparse.Namespace) -> None:
    from .runs.compare import compare

    if len(args.runs) < 2:
        raise ConfigurationError(f"trainer compare takes two or more run folders; received only {args.runs[0]!r}")
    print(compare(*args.runs))


def _runs(args: argparse.Namespace) -> None:
    from .runs.compare import list_runs

    print(list_runs(args.folder))


def _models(args: argparse.Namespace) -> None:
    from ..models import describe

    print(describe(args.name))


def _doctor(args: argparse.Namespace) -> int:
    from .commands import device_report, doctor_command

    if args.device is not None or args.report is not None:
        return device_report.run(args.device, args.report)
    findings = doctor_command.examine(run_a_graph=not args.quick)
    print(doctor_command.report(findings))
    return 1 if any(finding.state == doctor_command.WRONG for finding in findings) else 0


# name: (handler, help, two examples); a handler returns the exit code, or None for 0
_COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], int | None], str, tuple[str, str]]] = {
    "init": (
        table_commands.init,
        "write a first configuration for a table",
        ("visits.csv", "deepfm visits.parquet --label click"),
    ),
    "fit": (
        experiment_commands.train,
        "train on data.train, validate on data.valid, test on data.test",
        ("visits.yaml --set fit.epochs=3", "--resume runs/visits"),
    ),
    "online": (
        experiment_commands.train,
        "train on data.stream; each row is scored before it is learned",
        ("visits.yaml --set init_from=runs/visits", "visits.yaml --resume auto"),
    ),
    "evaluate": (
        experiment_commands.evaluate,
        "evaluate a trained network on data.test (or --split)",
        ("visits.yaml", "runs/visits --data newer.csv"),
    ),
    "predict": (
        experiment_commands.predict,
        "write predictions for data.test, or for a file",
        ("visits.yaml --data new.csv --output answers.csv", "runs/visits --split valid"),
    ),
    "export": (
        experiment_commands.export,
        "write a snapshot for other programs: ONNX, MindIR, tables",
        ("runs/visits", "visits.yaml --checkpoint best"),
    ),
    "features": (
        table_commands.features,
        "show declared features: first rows, statistics, drift",
        ("visits.yaml", "runs/visits"),
    ),
    "launch": (
        launch_command.run,
        "start a command or script as processes that train together",
        ("-n 4 fit visits.yaml", "-n 2 python train.py"),
    ),
    "check": (
        experiment_commands.check,
        "report all problems of a configuration; runs nothing",
        ("visits.yaml", "visits.yaml --set trainer.amp_level=O2"),
    ),
    "schema": (
        table_commands.schema,
        "print a JSON schema of experiments, for editors",
        ("", "--output experiment.schema.json"),
    ),
    "runs": (_runs, "list runs: state, best metric, time, size", ("", "elsewhere/runs")),
    "compare": (
        _compare,
        "show runs side by side: configuration, final metrics",
        ("runs/visits runs/visits-2", "runs/one runs/two runs/three"),
    ),
    "sweep": (
        sweep_command.run,
        "train with many values: a grid, random draws, or Optuna",
        (
            "visits.yaml --vary network.dim=8,16 --monitor val_auc",
            "--resume sweeps/visits",
        ),
    ),
    "report": (
        report_command.report,
        "write one HTML page about runs: result, curves, windows, tables",
        ("runs/visits", "runs/visits runs/visits-2 --output both.html"),
    ),
    "watch": (
        report_command.watch,
        "show that page in a browser during the runs",
        ("runs/visits", "runs/visits --every 2"),
    ),
    "models": (_models, "list the networks of trainer.models, or explain one", ("", "deepfm")),
    "recommend": (
        recommend_command.run,
        "write the best items of all users of a file",
        (
            "runs/choices --users users.csv --output items.csv",
            "published/choices --users users.csv -k 3 --output 3.jsonl",
        ),
    ),
    "versions": (
        versions_command.run,
        "list, pin, roll back and promote published versions",
        ("runs/visits", "runs/visits roll-back 812"),
    ),
    "serve": (
        serve_command.run,
        "answer over HTTP from a published model, while it is trained",
        ("runs/visits --port 8080", "published/visits --wait"),
    ),
    "doctor": (
        _doctor,
        "check this machine and installation",
        ("", "--device gpu --report gpu.md"),
    ),
}


if __name__ == "__main__":
    sys.exit(main())
