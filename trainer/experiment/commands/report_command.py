"""Implement `trainer report` and `trainer watch`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...errors import ConfigurationError

PAGE = "report.html"


def report_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `report`."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folder; several are shown over each other")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help=f"default: {PAGE} in the run folder, of several in this folder"
    )


def report(args: argparse.Namespace) -> None:
    """Write the HTML page of one or more runs."""
    from ...checkpoint import durable
    from ..runs.run_pages import render

    output = args.output or (Path(args.runs[0]) / PAGE if len(args.runs) == 1 else Path(PAGE))
    text = render(args.runs)
    output.parent.mkdir(parents=True, exist_ok=True)
    durable.replace_file(output, text.encode())
    print(f"{output}: {len(text.encode()) / 1e6:.1f} MB, opens in any browser, without a network")


def watch_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `watch`."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folder; several are shown over each other")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="on 127.0.0.1; default: a free one")
    parser.add_argument("--every", type=int, default=5, metavar="S", help="seconds between two readings; default: 5")


def watch(args: argparse.Namespace) -> None:
    """Serve the page of ongoing runs on localhost until SIGINT."""
    from ..runs.run_pages import make_server, render

    if args.every < 1 or not 0 <= args.port < 65536:
        raise ConfigurationError("trainer watch takes --every of 1 or more seconds and a --port from 0 to 65535")
    render(args.runs)  # report errors before serving
    server = make_server(args.runs, args.port, args.every)
    print(f"http://127.0.0.1:{server.server_port}/ shows {', '.join(args.runs)}; stop with Ctrl+C", flush=True)
    try:
        server.serve_forever()
    finally:
        server.server_close()
