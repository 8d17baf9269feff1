"""The command ``trainer serve``: a published model behind HTTP."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from ..errors import CheckpointNotFoundError, ConfigurationError

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("source", metavar="RUN_OR_PUBLISHED", help="folder that Publish writes to, or a run folder")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default: this machine only")
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one; default: 8080")
    parser.add_argument("--name", help="the model's name; default: the folder's")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that speak HTTP; default: 1")
    parser.add_argument("--batch-rows", type=int, default=1024, metavar="ROWS", help="of one batch; default: 1024")
    parser.add_argument(
        "--batch-delay", type=float, default=0.0, metavar="S", help="a batch waits for more requests; default: 0"
    )
    parser.add_argument("--request-rows", type=int, default=10_000, metavar="ROWS", help="of a request (413)")
    parser.add_argument("--body-bytes", type=int, default=16 << 20, metavar="BYTES", help="of a request (413)")
    parser.add_argument("--queue-rows", type=int, default=20_000, metavar="ROWS", help="that wait (429)")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="S", help="for an answer (504); default: 10")
    parser.add_argument("--drain", type=float, default=30.0, metavar="S", help="for open requests to end; default: 30")
    parser.add_argument("--max-age", type=float, metavar="S", help="of a version, for /readyz; default: any")
    parser.add_argument("--wait", action="store_true", help="start before anything is published")
    parser.add_argument(
        "--token-variable",
        default="TRAINER_SERVE_TOKEN",
        metavar="NAME",
        help="environment variable with the bearer token that requests need; default: TRAINER_SERVE_TOKEN",
    )
    parser.add_argument("--insecure", action="store_true", help="take requests of other machines without a token")


def run(given: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code.

    Raises:
        ConfigurationError: options that cannot work, the extra is missing, or nothing to serve is named.
        CheckpointError: there is no sound model to serve.
    """
    from ..serving.http.service_call import ServeOptions, default_name, token_from
    from ..serving.http.web_server import check_installed, serve

    check_installed()
    root = published_folder(Path(given.source), given.wait)
    names: tuple[str, ...] = ("host", "port", "workers", "batch_rows", "batch_delay", "request_rows", "body_bytes")
    names += ("queue_rows", "timeout", "drain", "max_age", "insecure", "wait")
    options = ServeOptions(
        **{name: getattr(given, name) for name in names},
        name=given.name or default_name(root),
        token=token_from(given.token_variable),
    )

    def started(url: str) -> None:
        logger.info("%s is served at %s (%s/docs)", root, url, url)

    number = serve(root, options, started=started)
    logger.info("stopped by signal %d; every open request was answered", number)
    return 128 + number


def published_folder(source: Path, wait: bool = False) -> Path:
    """Return the folder of a published model: `source` itself, or where the run of that folder publishes.

    Raises:
        ConfigurationError: it is neither, or the run does not publish.
        CheckpointNotFoundError: nothing has been published there yet.
    """
    from . import rundir

    if (source / rundir.CONFIG).is_file():
        source = _publishing(source)
    if (source / "current.json").is_file() or wait:
        return source
    if not source.is_dir():
        raise ConfigurationError(f"trainer serve: there is no folder {source}; give what Publish writes to, or a run")
    raise CheckpointNotFoundError(f"no model has been published at {source}; --wait starts before there is one")


def _publishing(run_dir: Path) -> Path:
    from .loader import load_config

    for spec in load_config(run_dir, []).callbacks:
        if spec.class_path.rpartition(".")[2] == "Publish" and "root" in spec.init_args:
            return Path(spec.init_args["root"])
    raise ConfigurationError(
        f"run {run_dir} does not publish; add the callback trainer.serving.Publish with its root, or give such a folder"
    )
