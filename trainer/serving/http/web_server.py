"""Runs the web application in a process, with the model or a link to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from .service_call import ServeOptions

logger = logging.getLogger(__name__)

_NEEDED = ("uvicorn", "starlette", "orjson", "prometheus_client")


def check_installed() -> None:
    """Raise ConfigurationError where the extra is missing."""
    import importlib.util

    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"trainer serve needs {', '.join(missing)}: pip install 'mindspore-trainer[serve]'")


def _listening_socket(options: ServeOptions) -> socket.socket:
    """Return a socket that listens where the options say, or raise ConfigurationError."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((options.host, options.port))
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"serve: {options.host} port {options.port} cannot be listened on: {error.strerror or error}; "
            "port 0 takes a free one"
        ) from None
    listening.listen(2048)
    listening.setblocking(False)
    return listening


def server_url(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(root: Path | str, options: ServeOptions, *, started: Callable[[str], None] | None = None) -> int:
    """Serve a published model until a signal; return its number.

    Open requests have `options.drain` seconds to end.

    Args:
        root: folder that `Publish` writes to, or the URL of a mirror of it.
        options: where and how.
        started: called with the server's URL when it takes requests.

    Raises:
        ConfigurationError: the extra is not installed, or the address cannot be listened on.
        CheckpointNotFoundError, CheckpointDamagedError: there is no model to serve.
    """
    check_installed()
    with _listening_socket(options) as listening:
        if options.workers > 1:
            from .workers import serve_many

            return serve_many(root, options, listening, started)
        from .service import Service

        return run_loop(serve_socket(Service(root, options), options, listening, started))


def run_loop(main: Any) -> int:
    """Run a coroutine in uvloop, or in the standard event loop without it."""
    try:
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    except ImportError:
        loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def serve_socket(
    handler: Any, options: ServeOptions, listening: socket.socket, started: Callable[[str], None] | None = None
) -> int:
    """Serve a handler on a socket until SIGTERM or SIGINT; return the signal's number."""
    import uvicorn

    from .web_app import web_app

    config = uvicorn.Config(
        web_app(handler, options),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=max(1, round(options.drain)),
        server_header=False,
        timeout_keep_alive=75,  # clients that keep a connection must not find it closed under their hands
    )

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            """Leave the process's handlers as they are."""
            yield

    server = Server(config)
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        if received:
            server.force_exit = True
        received.append(number)
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await handler.start()
        if not received:
            if started is not None:
                started(server_url(listening))
            await server.serve(sockets=[listening])
    finally:
        await handler.stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return received[0] if received else signal.SIGTERM
