"""Runs the web application and its model in this process until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from .service_call import ServeOptions

logger = logging.getLogger(__name__)

_GRACE = 5.0  # seconds for closing the model after the last request
_PACKAGES = ("uvicorn", "starlette", "orjson", "prometheus_client")


def check_installed() -> None:
    """Raise ConfigurationError if a package of the extra [serve] is missing."""
    import importlib.util

    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"trainer serve needs {', '.join(missing)}: pip install 'mindspore-trainer[serve]'")


def _bound_socket(options: ServeOptions) -> socket.socket:
    """Return a socket that is bound to the configured address but not listening."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with _address_errors(options):
        bound.bind((options.host, options.port))
    bound.setblocking(False)
    return bound


@contextlib.contextmanager
def _address_errors(options: ServeOptions) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"serve: cannot listen on {options.host} port {options.port}: {error.strerror or error}; "
            "port 0 selects a free port"
        ) from None


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(root: Path | str, options: ServeOptions, *, started: Callable[[str], None] | None = None) -> int:
    """Serve a published model until SIGTERM or SIGINT; return the signal's number.

    The server listens once the model is ready. A signal closes the listening socket first; open requests then have
    `options.drain` seconds to finish. If the server has not stopped a few seconds later, `os._exit` ends the process.

    Args:
        root: folder that `Publish` writes to, or the URL of a mirror of it.
        options: address, batching and limits of the server.
        started: called with the server's URL once it accepts requests.

    Raises:
        ConfigurationError: the extra [serve] is not installed, or the server cannot listen on the address.
        CheckpointNotFoundError: nothing has been published, and `options.wait` is False.
        CheckpointDamagedError: the published model is damaged.
    """
    check_installed()
    with _bound_socket(options) as bound:
        try:
            import uvloop

            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        except ImportError:
            loop = asyncio.new_event_loop()
        try:
            asyncio.set_event_loop(loop)
            return loop.run_until_complete(_serve(root, options, bound, started))
        finally:
            asyncio.set_event_loop(None)
            loop.close()


async def _serve(
    root: Path | str, options: ServeOptions, bound: socket.socket, started: Callable[[str], None] | None
) -> int:
    import uvicorn

    from .service import Service
    from .web_app import web_app

    service = Service(root, options)
    config = uvicorn.Config(
        web_app(service, options),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=math.ceil(options.drain),
        server_header=False,
        timeout_keep_alive=75,  # longer than usual client timeouts, so that clients close idle connections first
    )

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            """Keep uvicorn from replacing the process's signal handlers."""
            yield

    server = Server(config)
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def force_exit() -> None:
        logger.error("the server has not stopped %g s after signal %d; the process ends now", stop_seconds, received[0])
        os._exit(128 + received[0])

    stop_seconds = options.drain + _GRACE
    exit_timer = threading.Timer(stop_seconds, force_exit)
    exit_timer.daemon = True

    def stop(number: int) -> None:
        if received:  # a second signal: do not wait for open requests
            server.force_exit = True
        else:
            exit_timer.start()
        received.append(number)
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await service.start()
        if not received:
            with _address_errors(options):
                bound.listen(2048)
            if started is not None:
                started(_url(bound))
            await server.serve(sockets=[bound])
    finally:
        await service.stop()
        exit_timer.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return received[0] if received else signal.SIGTERM
