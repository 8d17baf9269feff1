"""Implement `trainer serve`: serve a published model over HTTP."""

from __future__ import annotations

import argparse
import gc
import logging
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from ...errors import CheckpointNotFoundError, ConfigurationError

logger = logging.getLogger(__name__)

SERVED = "served"  # subfolder for the snapshot of a run that does not publish


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add(
        "source", metavar="RUN_OR_PUBLISHED", help="folder that Publish writes to, a run folder, or the URL of a mirror"
    )
    add("--host", default="127.0.0.1", help="address to listen on; default: this machine only")
    add("--port", type=int, default=8080, help="0 takes a free one; default: 8080")
    add("--name", help="the model's name; default: the folder's")
    add("--batch-rows", type=int, default=1024, metavar="ROWS", help="most rows of a batch; default: 1024")
    add("--batch-delay", type=float, default=0.0, metavar="S", help="a batch waits for more requests; default: 0")
    add("--request-rows", type=int, default=10_000, metavar="ROWS", help="most rows of a request (413)")
    add("--body-bytes", type=int, default=16 << 20, metavar="BYTES", help="largest request (413)")
    add("--queue-rows", type=int, default=20_000, metavar="ROWS", help="most rows that may wait (429)")
    add("--timeout", type=float, default=10.0, metavar="S", help="longest time for an answer (504); default: 10")
    add("--drain", type=float, default=30.0, metavar="S", help="time for open requests to end; default: 30")
    add("--max-age", type=float, metavar="S", help="/readyz fails for older versions; default: never")
    add("--wait", action="store_true", help="start before anything is published")
    add("--log", metavar="TARGET", help="folder, redis://... or kafka://HOST/TOPIC to write answered rows to")
    add("--log-recommended", metavar="TARGET", help="another target, to write lists of recommended items to")
    add("--log-share", type=float, default=1.0, metavar="SHARE", help="share of requests to log; default: 1")
    add(
        "--log-wait",
        type=float,
        default=0.0,
        metavar="S",
        help="an answer waits for its rows to be durable; default: 0",
    )
    add("--log-queue-rows", type=int, default=100_000, metavar="ROWS", help="most rows that may wait to be logged")
    add(
        "--token-variable",
        default="TRAINER_SERVE_TOKEN",
        metavar="NAME",
        help="environment variable with the bearer token that requests need; default: TRAINER_SERVE_TOKEN",
    )
    add("--insecure", action="store_true", help="take requests of other machines without a token")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal arrives; return the exit code.

    Raises:
        ConfigurationError: an option is invalid, the extra is not installed, or the source has nothing to serve.
        CheckpointError: there is no intact model to serve.
    """
    from ...serving.http.service_call import ServeOptions, default_name, token_from
    from ...serving.http.web_server import check_installed, serve
    from ...storage.location import is_url

    check_installed()
    root = args.source if is_url(args.source) else published_folder(Path(args.source), args.wait)
    arguments = {field.name: getattr(args, field.name) for field in fields(ServeOptions) if hasattr(args, field.name)}
    options = ServeOptions(
        **arguments | {"name": args.name or default_name(root), "token": token_from(args.token_variable)}
    )

    def on_start(url: str) -> None:
        # A full garbage collection visits MindSpore's objects and stops all threads for 100 ms. Frozen objects are not
        # visited again.
        gc.collect()
        gc.freeze()
        logger.info("%s is served at %s (%s/openapi.json)", root, url, url)

    try:
        number = serve(root, options, started=on_start)
    finally:
        gc.unfreeze()
    logger.info("stopped by signal %d; every open request was answered", number)
    return 128 + number


def published_folder(source: Path, wait: bool = False) -> Path:
    """Return the folder that holds the published versions of `source`.

    Args:
        source: a folder of published versions, or a run folder. If the run does not publish, its snapshot is exported
            as a version to the subfolder "served".
        wait: accept a folder in which nothing is published yet.

    Raises:
        ConfigurationError: there is no such folder, or the run's published folder belongs to another run.
        CheckpointNotFoundError: nothing is published yet, and `wait` is False.
    """
    from ..runs import run_folder
    from ..runs.restart import published_by

    if (source / run_folder.CONFIG).is_file():
        source = published_by(source) or _published_snapshot(source)
    if (source / "current.json").is_file() or wait:
        return source
    if not source.is_dir():
        raise ConfigurationError(f"trainer serve: there is no folder {source}; give a run or a folder of Publish")
    raise CheckpointNotFoundError(
        f"no model has been published at {source}: the callback Publish of a training writes there; --wait "
        "starts the server before there is one"
    )


def _published_snapshot(run_dir: Path) -> Path:
    """Export the snapshot as a version.

    The export runs in a subprocess, because only one thread of a process may run graphs, and the server needs it here.
    """
    root = run_dir / SERVED
    logger.info("run %s does not publish, so its snapshot is served; it becomes a version in %s", run_dir, root)
    command = [sys.executable, "-m", "mindspore_trainer", "export", str(run_dir), "--publish", str(root)]
    code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    if code:
        raise SystemExit(code if code > 0 else 128 - code)
    return root
