"""Implement `trainer launch`: start several processes that train together."""

from __future__ import annotations

import argparse
from pathlib import Path

_SEVERAL_MACHINES = ("nodes", "node-rank", "master", "meeting-seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("-n", "--processes", type=int, required=True, metavar="N", help="processes to start")
    for name in _SEVERAL_MACHINES:  # accepted only for an error that shows the equivalent msrun command
        add(f"--{name}", help=argparse.SUPPRESS)
    add("--grace-seconds", type=float, default=120.0, metavar="S", help="to end after a signal; default: 120")
    add("--max-restarts", type=int, default=0, metavar="K", help="start again after a failure")
    add("--logs", type=Path, metavar="DIR", help="one log per process; default: in the run folder")
    add("--all-output", action="store_true", help="print the lines of all processes, prefixed; default: of rank 0")
    add("--no-bind-cores", action="store_true", help="let every process use all cores; default: a share for each")
    add("job", nargs=argparse.REMAINDER, metavar="COMMAND", help="`fit CONFIG`, `python train.py`, ... with arguments")


def run(args: argparse.Namespace) -> int:
    """Start the processes and return their exit code."""
    from ...distributed.launch import Job, launch
    from ...errors import ConfigurationError

    names = ("max_restarts", "logs", "grace_seconds", "all_output")
    options = {name: getattr(args, name) for name in names}
    job = Job(args.job, args.processes, bind_cores=not args.no_bind_cores, **options)
    if args.nodes or args.node_rank or args.master:
        machines = int(args.nodes) if (args.nodes or "").isdecimal() else 2
        host, _, port = (args.master or "ADDRESS_OF_MACHINE_0:8118").partition(":")
        raise ConfigurationError(
            "launch starts the processes of one machine. Several machines need msrun or another engine "
            f"(docs/engines.md); on each machine run, with its own node_rank: {job.as_msrun(port, host, machines)}"
        )
    return launch(job)
