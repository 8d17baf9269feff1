"""Start a process for a supervisor, and watch its output, log and exit."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


class WatchedProcess:
    """A Python process of a job, and its log, in which each line begins with its name."""

    def __init__(
        self, name: str, arguments: Sequence[str], variables: Mapping[str, str], logs: Path, cores: Collection[int] = ()
    ) -> None:
        self.name = name
        self.log_path = logs / f"{name.replace(' ', '_')}.log"
        self._log = open(self.log_path, "ab")  # noqa: SIM115 (closed by `close`)
        self._rest = b""
        self.tail: deque[str] = deque(maxlen=20)  # last lines of the log
        self.popen = subprocess.Popen(
            [sys.executable, "-u", *arguments],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the supervisor only, which forwards it
            # The library is loaded before the fork, because few calls are safe between fork and exec.
            preexec_fn=functools.partial(_die_with, os.getpid(), ctypes.CDLL(None)),
        )
        if cores:  # inherited by threads that the process starts later
            with contextlib.suppress(OSError):  # the process has ended, or the cores are unavailable
                os.sched_setaffinity(self.popen.pid, cores)
        assert self.popen.stdout is not None
        self.output = self.popen.stdout
        os.set_blocking(self.output.fileno(), False)

    def read(self, printed: bool) -> bool:
        """Read the new output, and print it if `printed`; return False at its end."""
        try:
            data = os.read(self.output.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        lines = re.split(rb"\r\n|\n|\r", self._rest + data)
        self._rest = lines.pop() if data else b""
        for line in lines:
            if data or line:
                text = f"[{self.name}] {line.decode(errors='replace')}"
                self.tail.append(text)
                self._log.write(text.encode() + b"\n")
                if printed:
                    with contextlib.suppress(OSError):  # the line is in the log already
                        print(text, flush=True)
        self._log.flush()
        return bool(data)

    def signal(self, number: int) -> None:
        """Send the process a signal, if it is still running."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(number)

    def kill(self) -> None:
        """Kill the process and all processes of its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def close(self) -> None:
        """Close its log and its pipe."""
        self._log.close()
        self.output.close()

    @property
    def exit_code(self) -> int:
        """Exit code as a shell reports it: 128 + the signal of a killed process."""
        code = self.popen.returncode
        return 128 - code if code < 0 else code

    def report(self) -> str:
        """Describe how the process ended, with the end of its log."""
        code = self.popen.returncode
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        end = "\n".join(self.tail)
        return f"{self.name} (pid {self.popen.pid}) {ending}, so the job ends; the end of its log:\n{end}"


def share_of_cores(number: int, processes: int) -> list[int]:
    """Return adjacent cores for process `number` of `processes`; none if too few."""
    # MindSpore's waiting threads spin, so processes on shared cores slow each other down: with two processes on two
    # shared cores, a step takes up to 1.8x as long.
    cores = sorted(os.sched_getaffinity(0))
    if processes == 1 or len(cores) < processes:
        return []
    first, end = (len(cores) * bound // processes for bound in (number, number + 1))
    return cores[first:end]


def _die_with(parent: int, libc: ctypes.CDLL) -> None:
    """Make this process, a new child of `parent`, die with its parent."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
