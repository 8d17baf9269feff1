"""``trainer launch``: start one job of several processes, look after it, and leave nothing behind.

Every process gets MindSpore's documented variables (a dynamic cluster), so the job is the one `msrun` would start; the
command line that does so is printed. Unlike it, the supervisor passes SIGTERM and SIGINT on and waits for snapshots,
ends the job seconds after a process died, and takes every process with it when it is killed itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigurationError, did_you_mean
from .launched import RESTART_VARIABLE, RESUME_VARIABLE, RUN_NOTE_VARIABLE, SCHEDULER, WORKER

GRACE_SECONDS = 5.0  # for the others to end by themselves, and to say why, once one process has failed
TERM_SECONDS = 3.0  # between SIGTERM and SIGKILL then: one that waits for a dead one in a collective hears nothing
TAIL_LINES = 20
LOGS = "logs"
_TRAINER_COMMANDS = ("fit", "online", "evaluate", "predict")
_SCHEDULER = "from mindspore import communication; communication.init()"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Job:
    """What to start.

    Attributes:
        command: ``["fit", "config.yaml"]`` or another trainer command, ``["python", "train.py", ...]``, or
            ``["train.py", ...]``; Python is always the interpreter of the supervisor.
        processes: processes on this machine.
        nodes: machines.
        node_rank: number of this machine; machine 0 also runs MindSpore's scheduler.
        master: "HOST:PORT" of machine 0; None: this machine and a free port, with one machine.
        max_restarts: how often all processes are started again after one failed.
        logs: folder for one log a process; None: ``logs`` in the run folder, where there is one.
    """

    command: Sequence[str]
    processes: int
    nodes: int = 1
    node_rank: int = 0
    master: str | None = None
    max_restarts: int = 0
    logs: Path | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("-n", self.processes, 1), ("--nodes", self.nodes, 1)):
            if value < least:
                raise ConfigurationError(f"launch: {name} takes a whole number >= {least}; received {value}")
        if self.max_restarts < 0:
            raise ConfigurationError(f"launch: --max-restarts takes a whole number >= 0; received {self.max_restarts}")
        if not 0 <= self.node_rank < self.nodes:
            raise ConfigurationError(
                f"launch: --node-rank takes 0 to {self.nodes - 1} with --nodes {self.nodes}; received {self.node_rank}"
            )
        if self.nodes > 1 and self.master is None:
            raise ConfigurationError("launch: --nodes needs --master HOST:PORT, the address of machine 0")
        if self.nodes > 1 and self.max_restarts:
            raise ConfigurationError("launch: --max-restarts works on one machine; the others would not start again")
        if self.master is not None and not re.fullmatch(r"[^\s:]+:\d{1,5}", self.master):
            raise ConfigurationError(f"launch: --master takes HOST:PORT; received {self.master!r}")
        if not self.command:
            raise ConfigurationError("launch: there is no command to start, e.g. `fit CONFIG` or `python train.py`")
        self._arguments()

    def argv(self) -> list[str]:
        """Return the command of each process."""
        return [sys.executable, "-u", *self._arguments()]

    def _arguments(self) -> list[str]:
        first, *rest = self.command
        if first in _TRAINER_COMMANDS:
            return ["-m", "trainer", *self.command]
        if re.fullmatch(r"python(3(\.\d+)?)?", Path(first).name):
            return list(rest)
        if first.endswith(".py"):
            return list(self.command)
        hint = did_you_mean(first, (*_TRAINER_COMMANDS, "python"))
        raise ConfigurationError(
            f"launch: accepts {', '.join(_TRAINER_COMMANDS)}, python or a script that ends in .py; received "
            f"{first!r}{hint}"
        )

    def as_msrun(self, host: str, port: int) -> str:
        """Return the `msrun` command line of the same job."""
        options = [f"--worker_num={self.processes * self.nodes}", f"--local_worker_num={self.processes}"]
        options += [f"--master_addr={host}", f"--master_port={port}", "--join=True"]
        if self.nodes > 1:
            options.append(f"--node_rank={self.node_rank}")
        return shlex.join(["msrun", *options, "python", *self._arguments()])


def launch(job: Job) -> int:
    """Run the job until all its processes have ended; return the exit code of the first that failed, or 0."""
    supervisor = Supervisor(job)
    with supervisor.signals():
        for attempt in range(job.max_restarts + 1):
            code = supervisor.run(attempt)
            if code == 0 or supervisor.told is not None or attempt == job.max_restarts:
                break
            supervisor.say(f"starting all processes again ({attempt + 1} of {job.max_restarts})")
    return code


class _Process:
    """One process of the job, with the log it writes."""

    def __init__(self, name: str, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log_path = log
        self._log = open(log, "ab")  # noqa: SIM115 (closed by `close`)
        self._rest = b""
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.popen = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which passes it on once
            preexec_fn=_die_with_parent() if sys.platform == "linux" else None,
        )
        os.set_blocking(self.popen.stdout.fileno(), False)

    def read(self, show: Callable[[str], None] | None) -> bool:
        """Take what the process has written; return False at the end of it."""
        try:
            data = os.read(self.popen.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        lines = re.split(rb"\r\n|\n|\r", self._rest + data)
        self._rest = lines.pop() if data else b""
        for line in lines:
            if data or line:
                self._take(line, show)
        self._log.flush()
        return bool(data)

    def _take(self, line: bytes, show: Callable[[str], None] | None) -> None:
        text = f"[{self.name}] {line.decode(errors='replace')}"
        self.tail.append(text)
        self._log.write(text.encode() + b"\n")
        if show is not None:
            show(text)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(number)

    def kill(self) -> None:
        """Kill the process and every process it has started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def close(self) -> None:
        self._log.close()
        self.popen.stdout.close()

    def end(self) -> str:
        """Return in words how the process ended."""
        code = self.popen.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{self.name} (pid {self.popen.pid}) {how}"


class Supervisor:
    """Starts the processes of a job on this machine and waits for them.

    Attributes:
        told: the signal that asked the supervisor to stop, or None.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.told: int | None = None
        self._processes: list[_Process] = []
        self._workers: list[_Process] = []
        self._run_folder: str | None = None

    def say(self, text: str) -> None:
        """Tell the user something on standard error."""
        print(f"trainer launch: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def signals(self):
        """Pass the first SIGTERM or SIGINT on to every process; kill them all at the second."""

        def forward(number: int, frame: object) -> None:
            if self.told is not None:
                for process in self._processes:
                    process.kill()
                os._exit(128 + number)
            self.told = number
            for process in self._workers:
                process.signal(number)

        before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, attempt: int) -> int:
        """Start all processes and wait until they have ended; return the first code that is not 0, or 0."""
        folder = self.job.logs or Path(tempfile.mkdtemp(prefix="trainer-launch-"))
        folder.mkdir(parents=True, exist_ok=True)
        note = folder / "run_folder"
        try:
            self._start(attempt, folder, note)
            return self._watch()
        finally:
            for process in self._processes:
                process.kill()
                process.close()
            self._keep_logs(folder, note)
            self._processes, self._workers = [], []

    def _start(self, attempt: int, folder: Path, note: Path) -> None:
        job = self.job
        host, port = ("127.0.0.1", _free_port()) if job.master is None else job.master.rsplit(":", 1)
        self.say(f"{job.processes * job.nodes} processes, as {job.as_msrun(host, int(port))}")
        common = {
            **os.environ,
            "MS_WORKER_NUM": str(job.processes * job.nodes),
            "MS_SCHED_HOST": host,
            "MS_SCHED_PORT": str(port),
            RUN_NOTE_VARIABLE: str(note),
            RESTART_VARIABLE: str(attempt),
        }
        if self._run_folder is not None:
            common[RESUME_VARIABLE] = self._run_folder
        if job.node_rank == 0:
            scheduler = [sys.executable, "-c", _SCHEDULER]
            self._processes.append(
                _Process("scheduler", scheduler, {**common, "MS_ROLE": SCHEDULER}, folder / "scheduler.log")
            )
        for local in range(job.processes):
            rank = job.node_rank * job.processes + local
            role = {"MS_ROLE": WORKER, "MS_NODE_ID": str(rank)}
            process = _Process(f"rank {rank}", job.argv(), {**common, **role}, folder / f"rank_{rank}.log")
            self._processes.append(process)
            self._workers.append(process)
        if self.told is not None:  # before there was anybody to pass it on to
            for process in self._workers:
                process.signal(self.told)

    def _watch(self) -> int:
        failed: _Process | None = None
        deadline = None
        with selectors.DefaultSelector() as selector:
            for process in self._processes:
                selector.register(process.popen.stdout, selectors.EVENT_READ, process)
            while any(process.popen.poll() is None for process in self._workers):
                self._read(selector, 0.2)
                if failed is None:
                    failed = next((process for process in self._processes if self._has_failed(process)), None)
                    deadline = time.monotonic() + GRACE_SECONDS
                elif failed is not None and time.monotonic() > deadline:
                    self._end_the_rest(selector)
            while selector.get_map() and self._read(selector, 0):
                pass  # what the pipes still hold
        failed = failed or next((process for process in self._workers if process.popen.returncode), None)
        if failed is None:
            return 0
        if self._has_failed(failed):
            shown = "\n".join(failed.tail)
            self.say(f"{failed.end()}, and the job with it; the end of its log:\n{shown}")
        code = failed.popen.returncode
        return 128 - code if code < 0 else code

    def _has_failed(self, process: _Process) -> bool:
        """Return whether a process ended otherwise than it should; after a signal a worker may end by that one."""
        code = process.popen.poll()
        if self.told is None:
            return bool(code)
        return process in self._workers and code not in (None, 0, 128 + self.told, -self.told)

    def _read(self, selector: selectors.BaseSelector, timeout: float) -> bool:
        events = selector.select(timeout)
        for key, _ in events:
            process = key.data
            show = _print if process is self._workers[0] else None
            if not process.read(show):
                selector.unregister(key.fileobj)
        return bool(events)

    def _end_the_rest(self, selector: selectors.BaseSelector) -> None:
        """End the processes that are left: SIGTERM, and SIGKILL for those that cannot hear it."""
        for process in self._workers:
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + TERM_SECONDS
        while time.monotonic() < deadline and any(process.popen.poll() is None for process in self._workers):
            self._read(selector, 0.1)
        for process in self._workers:
            process.kill()

    def _keep_logs(self, folder: Path, note: Path) -> None:
        """Move the logs to where they stay: into the run folder that rank 0 has named, if it named one."""
        if note.is_file():
            self._run_folder = note.read_text("utf-8")
        if self.job.logs is None and self._run_folder is not None:
            kept = Path(self._run_folder) / LOGS
            with contextlib.suppress(OSError):
                kept.mkdir(parents=True, exist_ok=True)
                for process in self._processes:
                    with open(process.log_path, "rb") as source, open(kept / process.log_path.name, "ab") as log:
                        shutil.copyfileobj(source, log)
                shutil.rmtree(folder)
                folder = kept
        note.unlink(missing_ok=True)
        self.say(f"logs in {folder}")


def _print(text: str) -> None:
    print(text, flush=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _die_with_parent() -> Callable[[], None]:
    """Return what a child calls to be killed when the supervisor is gone, however it went."""
    libc = ctypes.CDLL(None)  # loaded here: between fork and exec as little as possible may happen
    parent = os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return prepare
