"""The command ``trainer launch``: starts several processes that train together."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
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
    parser.add_argument("--logs", type=Path, metavar="DIR", help="one log per process; default: in the run folder")
    parser.add_argument(
        "--all-output", action="store_true", help="print the lines of all processes, prefixed; default: of rank 0"
    )
    parser.add_argument(
        "--no-bind-cores", action="store_true", help="let every process use all cores; default: a share for each"
    )
    parser.add_argument(
        "job", nargs=argparse.REMAINDER, metavar="COMMAND", help="`fit CONFIG`, `python train.py`, ... with arguments"
    )


def run(args: argparse.Namespace) -> int:
    """Start the processes and return their exit code."""
    from ...distributed.launch import Job, launch

    return launch(
        Job(
            args.job,
            args.processes,
            nodes=args.nodes,
            node_rank=args.node_rank,
            master=args.master,
            max_restarts=args.max_restarts,
            logs=args.logs,
            meeting_seconds=args.meeting_seconds,
            grace_seconds=args.grace_seconds,
            all_output=args.all_output,
            bind_cores=not args.no_bind_cores,
        )
    )
