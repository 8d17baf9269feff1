"""Several HTTP processes and one that runs the model, under a supervisor.

The processes share one listening socket and one copy of the tables: that of the process with the model. One that ends
is named and started again; requests that were on their way to the model are sent again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, ConfigurationError, TrainerError
from .engine_link import RemoteHandler, listen
from .service_call import ServeOptions
from .web_server import run_loop, serve_socket, server_url

logger = logging.getLogger(__name__)

_CHILD = "import sys, json; role = json.loads(sys.stdin.readline()); sys.path[:] = role['path']; " + (
    "from mindspore_trainer.trainer.serving.http.workers import child; sys.exit(child(role))"
)
_READY, _WATCH = "ready\n", 0.1
_LONGEST_PAUSE = 30.0


def serve_many(
    root: Path | str, options: ServeOptions, listening: socket.socket, started: Callable[[str], None] | None
) -> int:
    """Serve from `options.workers` processes, as `web_server.serve` does."""
    with tempfile.TemporaryDirectory(prefix="trainer-serve-") as folder:
        supervisor = _Supervisor(root, options, listening, Path(folder) / "model.sock")
        return supervisor.run(started)


class _Child:
    """One process of the server, and when it may be started again."""

    def __init__(self, name: str, role: Mapping[str, Any], keep: tuple[int, ...] = ()) -> None:
        self.name, self._role, self._keep = name, role, keep
        self._pause, self._began = 0.5, 0.0
        self.again = 0.0
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it; it ends by itself when this process does."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=self._keep,
            start_new_session=True,
        )
        self._began = time.monotonic()
        self.process.stdin.write(json.dumps(self._role) + "\n")
        self.process.stdin.flush()

    def wait_until_ready(self) -> bool:
        """Wait for the ready message; return False if the process ends first."""
        return self.process.stdout.readline() == _READY

    def ended(self) -> str | None:
        """Return how it ended, in words, or None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def postpone(self) -> None:
        """Set when to start it again: later each time it ends soon after its start."""
        self._pause = min(2 * self._pause, _LONGEST_PAUSE) if time.monotonic() - self._began < 5 else 0.0
        self.again = time.monotonic() + self._pause
        self._pause = max(self._pause, 0.5)
        self.process = None

    def terminate(self) -> None:
        """Send SIGTERM, once: a second one ends the process without its open requests."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def wait(self, seconds: float) -> None:
        """Wait for a terminated process, and send SIGKILL when it has not ended by itself."""
        if self.process is None:
            return
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class _Supervisor:
    def __init__(self, root: Path | str, options: ServeOptions, listening: socket.socket, link: Path) -> None:
        self._options, self._listening = options, listening
        role = {"root": str(root), "link": str(link), "options": asdict(options), "path": sys.path}
        self._model = _Child("the process that runs the model", {**role, "role": "model"})
        number = listening.fileno()
        self._fronts = [
            _Child(f"HTTP process {i}", {**role, "role": "http", "socket": number}, (number,))
            for i in range(options.workers)
        ]
        self._received: list[int] = []

    def run(self, started: Callable[[str], None] | None) -> int:
        before = {n: signal.signal(n, self._stop) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._model.start()
            if not self._model.wait_until_ready() and not self._received:
                code = self._model.process.wait()
                raise _START_ERRORS.get(code, TrainerError)(
                    f"the model cannot be served: {self._model.process.stdout.read().strip()}"
                )
            for front in self._fronts:
                front.start()
            for front in self._fronts:
                front.wait_until_ready()
            if started is not None and not self._received:
                started(server_url(self._listening))
            while not self._received:
                self._watch()
                time.sleep(_WATCH)
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._received[0]

    def _stop(self, number: int, frame: Any) -> None:
        self._received.append(number)

    def _watch(self) -> None:
        for child in (self._model, *self._fronts):
            if child.process is None:
                if time.monotonic() >= child.again:
                    child.start()
            elif (how := child.ended()) is not None:
                logger.error("%s (%d) %s; it is started again", child.name, child.process.pid, how)
                child.postpone()

    def _end(self) -> None:
        for children in (self._fronts, [self._model]):  # the model answers until no front has a request
            for child in children:
                child.terminate()
            for child in children:
                child.wait(self._options.drain + 5)


_START_ERRORS: dict[int, type[TrainerError]] = {2: ConfigurationError, 3: CheckpointError}


def child(role: Mapping[str, Any]) -> int:
    """Run one process of the server; return its exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    options = ServeOptions(**role["options"])
    try:
        run_loop(_model(role, options) if role["role"] == "model" else _http(role, options))
        return 0
    except TrainerError as error:
        print(error, flush=True)
        return next((code for code, kind in _START_ERRORS.items() if isinstance(error, kind)), 1)


async def _http(role: Mapping[str, Any], options: ServeOptions) -> None:
    loop, supervised = asyncio.get_running_loop(), sys.stdin.fileno()

    def supervisor_ended() -> None:
        loop.remove_reader(supervised)  # which is readable from now on
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(supervised, supervisor_ended)
    with socket.socket(fileno=role["socket"]) as listening:
        listening.setblocking(False)
        handler = RemoteHandler(Path(role["link"]), options)
        await serve_socket(handler, options, listening, lambda url: print(_READY, end="", flush=True))
        loop.remove_reader(supervised)


async def _model(role: Mapping[str, Any], options: ServeOptions) -> None:
    from .service import Service

    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), stopping.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    service = Service(role["root"], options)
    link = Path(role["link"])
    try:
        await service.start()
        aside = link.with_suffix(".new")  # a killed process leaves its socket behind
        aside.unlink(missing_ok=True)
        server = await listen(service, aside)
        shutil.move(aside, link)
        print(_READY, end="", flush=True)
        await stopping.wait()
        server.close()
    finally:
        await service.stop()
        loop.remove_reader(sys.stdin.fileno())
