"""Start, supervise and clean up a job on this machine (``trainer launch``).

The processes get the environment variables that MindSpore documents for dynamic clusters, as if `msrun` had started
them; the equivalent `msrun` command is printed. Unlike `msrun`, the supervisor forwards SIGTERM and SIGINT, waits for
snapshots, and ends the job seconds after a process has failed. If the supervisor is killed, all processes end.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..checks import number, refuse, whole
from ..errors import ConfigurationError, did_you_mean
from .launched import RESTART_VARIABLE, RESUME_VARIABLE, RUN_NOTE_VARIABLE, SCHEDULER, WORKER
from .watched_process import WatchedProcess, share_of_cores

GRACE_SECONDS = 5.0  # time for the other processes to end with their own messages after a failure
TERM_SECONDS = 3.0  # time between SIGTERM and SIGKILL
LOGS = "logs"
_TRAINER_COMMANDS = ("fit", "online", "evaluate", "predict", "doctor")
_HOST = "127.0.0.1"
_SCHEDULER = ["-c", "from mindspore import communication; communication.init()"]


@dataclass(frozen=True)
class Job:
    """Command and options of a job."""

    # a trainer command, such as ["fit", "config.yaml"], or ["python", "train.py", ...]; the supervisor's Python runs it
    command: Sequence[str]
    processes: int
    max_restarts: int = 0  # restarts of all processes after a failure
    logs: Path | None = None  # folder for one log per process; None: ``logs`` in the run folder, if there is one
    grace_seconds: float = 120.0  # time for processes to end after a signal, snapshots included; then they are killed
    all_output: bool = False  # print the lines of all processes, not only of rank 0, as "[rank N] ..."
    bind_cores: bool = True  # give each process its share of the machine's cores (Linux), if there are enough

    def __post_init__(self) -> None:
        whole("launch: -n", self.processes)
        whole("launch: --max-restarts", self.max_restarts, 0)
        number("launch: --grace-seconds", self.grace_seconds, above=0)
        if not self.command:
            raise ConfigurationError("launch: there is no command to start, e.g. `fit CONFIG` or `python train.py`")
        self.arguments  # noqa: B018 (raises an error for any other command)

    @property
    def arguments(self) -> list[str]:
        """Arguments for the Python interpreter of each process."""
        first, *rest = self.command
        if first in _TRAINER_COMMANDS:
            return ["-m", "trainer", *self.command]
        if re.fullmatch(r"python(3(\.\d+)?)?", Path(first).name):
            return list(rest)
        if first.endswith(".py"):
            return list(self.command)
        accepted = f"{', '.join(_TRAINER_COMMANDS)}, python or a script that ends in .py"
        refuse("launch", accepted, first, did_you_mean(first, (*_TRAINER_COMMANDS, "python")))

    def as_msrun(self, port: int | str, host: str = _HOST, machines: int = 1) -> str:
        """Return the equivalent `msrun` command line, to be run on each of the machines."""
        numbers = f"--worker_num={self.processes * machines} --local_worker_num={self.processes}"
        node = "--node_rank=0 (1, ...) " if machines > 1 else ""
        address = f"--master_addr={host} --master_port={port} --join=True"
        return f"msrun {numbers} {address} {node}python {shlex.join(self.arguments)}"


def launch(job: Job) -> int:
    """Run the job to its end; return the exit code of the first failed process, or 0."""
    supervisor = Supervisor(job)
    with supervisor.signals():
        for attempt in range(job.max_restarts + 1):
            if attempt:
                supervisor.log(f"starting all processes again ({attempt} of {job.max_restarts})")
            code = supervisor.run(attempt)
            if not code or supervisor.stop_signal is not None:
                break
    return code


class Supervisor:
    """Starts the processes of a job, watches them and ends them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stop_signal: int | None = None  # the signal that asked the supervisor to stop, or None
        self._processes: list[WatchedProcess] = []  # the scheduler first
        self._run_folder: str | None = None
        self._failed: WatchedProcess | None = None
        self._deadline: float | None = None  # when processes must have ended after a failure or a signal

    @property
    def _workers(self) -> list[WatchedProcess]:
        return self._processes[1:]

    def log(self, text: str) -> None:
        """Print a message on standard error."""
        with contextlib.suppress(OSError):  # the job continues without it
            print(f"trainer launch: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Forward the first stop signal to all processes; kill them at the second."""

        def forward(stop_signal: int, frame: object) -> None:
            if self.stop_signal is not None:
                for process in self._processes:
                    process.kill()
                os._exit(128 + stop_signal)
            self.stop_signal = stop_signal
            for process in self._workers:
                process.signal(stop_signal)

        signals = [signal.SIGTERM, signal.SIGINT]
        signals += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
        before = {stop_signal: signal.signal(stop_signal, forward) for stop_signal in signals}
        try:
            yield
        finally:
            for stop_signal, handler in before.items():
                signal.signal(stop_signal, handler)

    def run(self, attempt: int) -> int:
        """Start all processes, wait for their end, and return the exit code."""
        folder = self.job.logs or Path(tempfile.mkdtemp(prefix="trainer-launch-"))
        folder.mkdir(parents=True, exist_ok=True)
        note = folder / "run_folder"
        self._failed = self._deadline = None
        try:
            self._start(attempt, folder, note)
            self._watch()
        finally:
            for process in self._processes:
                process.kill()
                process.close()
            if note.is_file():
                self._run_folder = note.read_text("utf-8")
                note.unlink()
            self._move_logs(folder)
            workers, self._processes = self._workers, []
        if self._failed is not None:
            self.log(self._failed.report())
        failed = self._failed or next((process for process in workers if process.popen.returncode), None)
        return 0 if failed is None else failed.exit_code

    def _start(self, attempt: int, folder: Path, note: Path) -> None:
        job = self.job
        with socket.create_server((_HOST, 0)) as server:
            port = server.getsockname()[1]  # a free port
        self.log(f"{job.processes} processes, as {job.as_msrun(port)}")
        # By default, MindSpore's collectives fail after 30 seconds, when a late process may still be compiling; this
        # supervisor detects failures itself. MindSpore also looks for new processes only every 3 to 5 seconds, which
        # would delay every start.
        defaults = {"MS_CPU_COMM_OP_TIMEOUT": "1800", "MS_RETRY_INTERVAL_LOWER": "1", "MS_RETRY_INTERVAL_UPPER": "1"}
        common = {**defaults, **os.environ, "MS_WORKER_NUM": str(job.processes), "MS_SCHED_HOST": _HOST}
        common |= {"MS_SCHED_PORT": str(port), RUN_NOTE_VARIABLE: str(note), RESTART_VARIABLE: str(attempt)}
        if self._run_folder is not None:
            common[RESUME_VARIABLE] = self._run_folder
        self._processes.append(WatchedProcess("scheduler", _SCHEDULER, {**common, "MS_ROLE": SCHEDULER}, folder))
        for rank in range(job.processes):
            worker = {**common, "MS_ROLE": WORKER, "MS_NODE_ID": str(rank)}
            cores = share_of_cores(rank, job.processes) if job.bind_cores else []
            self._processes.append(WatchedProcess(f"rank {rank}", job.arguments, worker, folder, cores))
            if self.stop_signal is not None:  # it arrived before the process was started
                self._processes[-1].signal(self.stop_signal)

    def _watch(self) -> None:
        """Read output until all workers have ended; end them after a failure."""
        with selectors.DefaultSelector() as selector:
            for process in self._processes:
                selector.register(process.output, selectors.EVENT_READ, process)
            while running := [process for process in self._workers if process.popen.poll() is None]:
                self._read(selector, 0.2)
                self._check_failed()
                if self._deadline is None and self.stop_signal is not None:
                    self._deadline = time.monotonic() + self.job.grace_seconds
                if self._deadline is not None and time.monotonic() > self._deadline:
                    self._terminate(running, selector)
            while selector.get_map() and self._read(selector, 0):  # read the rest of the pipes
                pass
            self._check_failed()

    def _terminate(self, running: Sequence[WatchedProcess], selector: selectors.BaseSelector) -> None:
        """End processes that have not ended by themselves: SIGTERM, then SIGKILL."""
        if self._failed is None:
            for process in running:
                reason = f"had not ended {self.job.grace_seconds:g} s after the signal (--grace-seconds) and was killed"
                self.log(f"{process.name} (pid {process.popen.pid}) {reason}")
        else:
            for process in running:
                process.signal(signal.SIGTERM)
            deadline = time.monotonic() + TERM_SECONDS
            while time.monotonic() < deadline and any(process.popen.poll() is None for process in running):
                self._read(selector, 0.1)
        for process in running:
            process.kill()

    def _check_failed(self) -> None:
        """Record the first process that failed; dying of a forwarded signal is no failure."""
        number = self.stop_signal
        watched = self._processes if number is None else self._workers
        # Exit codes that are not a failure; None while the process runs.
        accepted = (None, 0) if number is None else (None, 0, 128 + number, -number)
        if self._failed is None:
            self._failed = next((process for process in watched if process.popen.poll() not in accepted), None)
            if self._failed is not None:
                self._deadline = time.monotonic() + GRACE_SECONDS

    def _read(self, selector: selectors.BaseSelector, timeout: float) -> bool:
        events = selector.select(timeout)
        printed = self._workers if self.job.all_output else self._workers[:1]
        for key, _ in events:
            if not key.data.read(key.data in printed):
                selector.unregister(key.fileobj)
        return bool(events)

    def _move_logs(self, folder: Path) -> None:
        """Move the logs into the run folder, if rank 0 has reported one."""
        if self.job.logs is None and self._run_folder is not None and Path(self._run_folder).is_dir():
            target = Path(self._run_folder) / LOGS
            with contextlib.suppress(OSError):
                target.mkdir(parents=True, exist_ok=True)
                for process in self._processes:
                    with open(process.log_path, "rb") as source, open(target / process.log_path.name, "ab") as log:
                        shutil.copyfileobj(source, log)
                shutil.rmtree(folder)
                folder = target
        self.log(f"logs in {folder}")
