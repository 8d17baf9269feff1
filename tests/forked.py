"""Processes forked from one that has imported MindSpore: for tests to which the start of a process is no matter."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


class ForkServer:
    """Starts processes; each gets arguments as those of `python`. Those that are left end with it.

    Args:
        folder: for what is exchanged.
        python: the interpreter that the processes are of.
        environment: its variables, and those of the processes unless they are given others; None: those of this one.
    """

    def __init__(self, folder, python=sys.executable, environment=None):
        self.folder, self.numbers, self.environment = Path(folder), itertools.count(), environment
        command = [str(python), str(Path(__file__).with_name("fork_server.py")), str(folder)]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)

    def start(self, *arguments, cwd=None, environment=None):
        """Return the process of `python ARGUMENTS`."""
        name = str(next(self.numbers))
        environment = environment or self.environment
        given = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ if environment is None else environment),
            "output": str(self.folder / f"{name}.out"),
            "errors": str(self.folder / f"{name}.err"),
        }
        for output in (given["output"], given["errors"]):
            Path(output).touch()  # so it can be read before the process has begun
        (self.folder / f"{name}.json").write_text(json.dumps(given))
        os.write(self.server.stdin.fileno(), f"{name}\n".encode())
        return ForkedProcess(self, name)

    def close(self):
        """End every process."""
        self.server.stdin.close()
        self.server.wait()


class ForkedProcess:
    """What `subprocess.Popen` is, of a process that another one has started; it prints to files."""

    def __init__(self, server, name):
        self.output, self.errors = (server.folder / f"{name}.{kind}" for kind in ("out", "err"))
        self.returncode = None
        self._server, self._code = server.server, server.folder / f"{name}.code"
        pid = server.folder / f"{name}.pid"
        while not pid.is_file():
            assert self._server.poll() is None, "the fork server has ended"
            time.sleep(0.01)
        self.pid = int(pid.read_text())

    def poll(self):
        """Return the exit code, or None while it runs."""
        if self.returncode is None and self._code.is_file():
            self.returncode = int(self._code.read_text())
        return self.returncode

    def wait(self, timeout=600):
        """Wait for the end and return the exit code; it is killed after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            assert self._server.poll() is None, "the fork server has ended"
            if time.monotonic() > deadline:
                self.kill()
                raise subprocess.TimeoutExpired(self.output, timeout)
            time.sleep(0.01)
        return self.returncode

    def wait_for(self, text, timeout=120):
        """Wait until it has printed `text`, while it runs."""
        deadline = time.monotonic() + timeout
        while text not in self.output.read_text():
            assert self.poll() is None, f"ended with {self.returncode}: {self.errors.read_text()}"
            assert time.monotonic() < deadline, f"{text!r} was not printed within {timeout} s"
            time.sleep(0.01)

    def send_signal(self, number):
        """Send a signal, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self):
        """End it at once."""
        self.send_signal(signal.SIGKILL)
