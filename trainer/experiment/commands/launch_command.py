"""The command ``trainer launch``: starts several processes that train together."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("-n", "--processes", type=int, required=True, metavar="N", help="processes on this machine")
    add("--nodes", type=int, default=1, metavar="M", help="machines; default: 1")
    add("--node-rank", type=int, default=0, metavar="I", help="number of this machine; default: 0")
    add("--master", metavar="HOST:PORT", help="of machine 0; default: this machine, a free port")
    add(
        "--meeting-seconds", type=float, default=300.0, metavar="S", help="to wait for the other machines; default: 300"
    )
    add("--grace-seconds", type=float, default=120.0, metavar="S", help="to end after a signal; default: 120")
    add("--max-restarts", type=int, default=0, metavar="K", help="start again after a failure")
    add("--logs", type=Path, metavar="DIR", help="one log per process; default: in the run folder")
    add("--all-output", action="store_true", help="print the lines of all processes, prefixed; default: of rank 0")
    add("--no-bind-cores", action="store_true", help="let every process use all cores; default: a share for each")
    add("job", nargs=argparse.REMAINDER, metavar="COMMAND", help="`fit CONFIG`, `python train.py`, ... with arguments")


def run(args: argparse.Namespace) -> int:
    """Start the processes and return their exit code."""
    from ...distributed.launch import Job, launch

    names = ("nodes", "node_rank", "master", "max_restarts", "logs", "meeting_seconds", "grace_seconds", "all_output")
    options = {name: getattr(args, name) for name in names}
    return launch(Job(args.job, args.processes, bind_cores=not args.no_bind_cores, **options))
