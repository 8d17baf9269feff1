"""Start, supervise and clean up a job of several processes (``trainer launch``).

The job equals one started by `msrun`, whose command line is printed: every process gets MindSpore's documented
variables (a dynamic cluster). Unlike `msrun`, the supervisor forwards SIGTERM and SIGINT and waits for snapshots, ends
the job seconds after a process failed, and takes all processes with it when it is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..checks import number, refuse, whole
from ..errors import ConfigurationError, did_you_mean
from .launched import RESTART_VARIABLE, RESUME_VARIABLE, RUN_NOTE_VARIABLE, SCHEDULER, STAGE_VARIABLE, WORKER, Stage
from .machines import MEETING_SECONDS, Machines, Verdict
from .watched_process import WatchedProcess, share_of_cores

GRACE_SECONDS = 5.0  # for the other processes to end by themselves, with their own messages, after a failure
LEFT_SECONDS = 5.0  # for the other processes to end after the first exit with code 0
TERM_SECONDS = 3.0  # between SIGTERM and SIGKILL: a process inside a collective does not handle signals
LATE_SECONDS = 1800  # time limit of a collective; MindSpore's default is 30
LOGS = "logs"
_TRAINER_COMMANDS = ("fit", "online", "evaluate", "predict", "doctor")
_SCHEDULER = "from mindspore import communication; communication.init()"


@dataclass(frozen=True)
class Job:
    """Command and options of a job."""

    # ``["fit", "config.yaml"]`` or another trainer command, ``["python", "train.py", ...]``, or ``["train.py", ...]``;
    # Python is always the interpreter of the supervisor
    command: Sequence[str]
    processes: int  # number of processes on this machine
    nodes: int = 1
    node_rank: int = 0  # number of this machine; machine 0 also runs MindSpore's scheduler
    # "HOST:PORT" of machine 0, to which the supervisors of several machines connect; with one machine, address of
    # MindSpore's scheduler, by default at a free port
    master: str | None = None
    max_restarts: int = 0  # of all processes, after a failure
    logs: Path | None = None  # folder for one log per process; None: ``logs`` in the run folder, if there is one
    meeting_seconds: float = MEETING_SECONDS  # time limit for the machines to connect at the start
    grace_seconds: float = 120.0  # for processes to end after a signal, snapshots included; then they are killed
    all_output: bool = False  # print the lines of all processes of this machine, not of rank 0 alone, as "[rank N] ..."
    bind_cores: bool = True  # give each process its share of the machine's cores (Linux), if there are enough

    def __post_init__(self) -> None:
        whole("launch: -n", self.processes)
        whole("launch: --nodes", self.nodes)
        whole("launch: --max-restarts", self.max_restarts, 0)
        if not 0 <= self.node_rank < self.nodes:
            refuse("launch: --node-rank", f"0 to {self.nodes - 1} with --nodes {self.nodes}", self.node_rank)
        if self.nodes > 1 and self.master is None:
            raise ConfigurationError("launch: --nodes needs --master HOST:PORT, the address of machine 0")
        number("launch: --meeting-seconds", self.meeting_seconds, above=0)
        number("launch: --grace-seconds", self.grace_seconds, above=0)
        address = re.fullmatch(r"[^\s:]+:(\d{1,5})", self.master or "any:1")
        if address is None or not 0 < int(address[1]) < 1 << 16:
            refuse("launch: --master", "HOST:PORT", self.master)
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
        accepted = f"{', '.join(_TRAINER_COMMANDS)}, python or a script that ends in .py"
        refuse("launch", accepted, first, did_you_mean(first, (*_TRAINER_COMMANDS, "python")))

    def as_msrun(self, host: str, port: int) -> str:
        """Return the `msrun` command line of the same job."""
        options = [f"--worker_num={self.processes * self.nodes}", f"--local_worker_num={self.processes}"]
        options += [f"--master_addr={host}", f"--master_port={port}", "--join=True"]
        if self.nodes > 1:
            options.append(f"--node_rank={self.node_rank}")
        return shlex.join(["msrun", *options, "python", *self._arguments()])


def launch(job: Job) -> int:
    """Run the job to its end; return the exit code of the first failed process, or 0.

    Raises:
        ConfigurationError, TrainerError: the machines could not connect, see `Machines.connect`.
    """
    supervisor = Supervisor(job)
    with supervisor.signals(), Machines(job, supervisor.say, lambda: supervisor.stop_signal is not None) as machines:
        if not machines.connect():
            return 128 + supervisor.stop_signal
        attempt = 0
        while True:
            verdict = supervisor.run(attempt, machines)
            if not verdict.again:
                return verdict.code
            attempt += 1
            supervisor.say(f"starting all processes again ({attempt} of {job.max_restarts})")


class Supervisor:
    """Supervisor of the processes of a job on this machine."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stop_signal: int | None = None  # the signal that asked the supervisor to stop, or None
        self._signal_forwarded = False
        self._processes: list[WatchedProcess] = []
        self._workers: list[WatchedProcess] = []
        self._run_folder: str | None = None
        self._failed_first = False
        self._deadline = 0.0
        self._kill_at: float | None = None
        self._output_lost = False

    def say(self, text: str) -> None:
        """Print a message on standard error."""
        with contextlib.suppress(OSError):  # the job continues without it
            print(f"trainer launch: {text}", file=sys.stderr, flush=True)

    def _print(self, text: str) -> None:
        """Print a line on standard output, unless it failed before."""
        if not self._output_lost:
            try:
                print(text, flush=True)
            except OSError as error:
                self._output_lost = True
                self.say(f"standard output cannot be written ({error.strerror}); lines go to the logs alone")

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Forward the first stop signal to all processes; kill them at the second."""

        def forward(stop_signal: int, frame: object) -> None:
            if self.stop_signal is not None:
                for process in self._processes:
                    process.kill()
                os._exit(128 + stop_signal)
            self.stop_signal = stop_signal
            self._signal_workers(stop_signal)

        signals = [signal.SIGTERM, signal.SIGINT]
        signals += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
        before = {stop_signal: signal.signal(stop_signal, forward) for stop_signal in signals}
        try:
            yield
        finally:
            for stop_signal, handler in before.items():
                signal.signal(stop_signal, handler)

    def _signal_workers(self, stop_signal: int) -> None:
        for process in self._workers:
            process.signal(stop_signal)

    def run(self, attempt: int, machines: Machines) -> Verdict:
        """Start all processes, wait for all machines, and return the verdict."""
        folder = self.job.logs or Path(tempfile.mkdtemp(prefix="trainer-launch-"))
        folder.mkdir(parents=True, exist_ok=True)
        note = folder / "run_folder"
        self._failed: WatchedProcess | None = None
        self._cause: int | None = None  # exit code of the process that failed first, on any machine
        self._stages: dict[WatchedProcess, Path] = {}
        self._ended_at: dict[WatchedProcess, float] = {}
        self._stopped: set[WatchedProcess] = set()
        try:
            self._start(attempt, machines, folder, note)
            return self._watch(attempt, machines, note)
        finally:
            for process in self._processes:
                process.kill()
                process.close()
            self._move_logs(folder, note)
            self._processes, self._workers = [], []

    def _start(self, attempt: int, machines: Machines, folder: Path, note: Path) -> None:
        job = self.job
        port, self._run_folder = machines.begin(self._run_folder)
        self.say(f"{job.processes * job.nodes} processes, as {job.as_msrun(machines.host, port)}")
        common = {
            **os.environ,
            "MS_WORKER_NUM": str(job.processes * job.nodes),
            "MS_SCHED_HOST": machines.host,
            "MS_SCHED_PORT": str(port),
            RUN_NOTE_VARIABLE: str(note),
            RESTART_VARIABLE: str(attempt),
        }
        # A process that is late for a collective is compiling or reading; the supervisor detects failures.
        common.setdefault("MS_CPU_COMM_OP_TIMEOUT", str(LATE_SECONDS))
        # Seconds between checks for new processes; MindSpore's 3 to 5 delay every start of a job by as much.
        common.setdefault("MS_RETRY_INTERVAL_LOWER", "1")
        common.setdefault("MS_RETRY_INTERVAL_UPPER", "1")
        if job.nodes > 1:  # MindSpore's default is the first network interface
            common.setdefault("MS_WORKER_IP", machines.address)
        if self._run_folder is not None:
            common[RESUME_VARIABLE] = self._run_folder
        if job.node_rank == 0:
            scheduler = [sys.executable, "-c", _SCHEDULER]
            self._processes.append(
                WatchedProcess("scheduler", scheduler, {**common, "MS_ROLE": SCHEDULER}, folder / "scheduler.log")
            )
        for local in range(job.processes):
            rank = job.node_rank * job.processes + local
            stage = folder / f"stage_{rank}"
            stage.unlink(missing_ok=True)
            role = {"MS_ROLE": WORKER, "MS_NODE_ID": str(rank), STAGE_VARIABLE: str(stage)}
            cores = share_of_cores(local, job.processes) if job.bind_cores else []
            log = folder / f"rank_{rank}.log"
            process = WatchedProcess(f"rank {rank}", job.argv(), {**common, **role}, log, cores)
            self._processes.append(process)
            self._workers.append(process)
            self._stages[process] = stage
        if self.stop_signal is not None:  # arrived before the processes were started
            self._signal_workers(self.stop_signal)

    def _watch(self, attempt: int, machines: Machines, note: Path) -> Verdict:
        with selectors.DefaultSelector() as selector:
            for process in self._processes:
                selector.register(process.popen.stdout, selectors.EVENT_READ, process)
            while self._running():
                self._poll(machines, selector)
            self._read_all(selector)  # the rest in the pipes
            self._check_failed(machines, selector)
            if self._failed is not None and self._failed_first:
                self.say(self._failed.report())
            ended = self._failed or next((process for process in self._workers if process.popen.returncode), None)
            code = 0 if ended is None else ended.exit_code
            if self.job.node_rank != 0:
                machines.broadcast("ended", code=code)
            while not machines.is_decided:
                self._poll(machines, selector)
        if note.is_file():
            self._run_folder = note.read_text("utf-8")
        if self.job.node_rank == 0:
            code = next((exit_code for exit_code in (self._cause, code, *machines.codes.values()) if exit_code), 0)
            again = self.stop_signal is None and not machines.lost and attempt < self.job.max_restarts
            verdict = Verdict(code, bool(code) and again, self._run_folder)
            machines.broadcast("over", **verdict._asdict())
            return verdict
        verdict = machines.verdict or Verdict(self._cause or code or 1)
        self._run_folder = verdict.run_folder
        return verdict

    def _running(self) -> list[WatchedProcess]:
        return [process for process in self._workers if process.popen.poll() is None]

    def _poll(self, machines: Machines, selector: selectors.BaseSelector) -> None:
        """Read output, check all machines for failures, and end the job after one."""
        self._read(selector, 0.2)
        if self.stop_signal is not None and not self._signal_forwarded:
            self._signal_forwarded = True
            machines.broadcast("signal", number=self.stop_signal)
        self._check_stopped()
        self._check_failed(machines, selector)
        for message in machines.receive():
            if message["kind"] == "signal" and self.stop_signal is None:
                self.stop_signal, self._signal_forwarded = message["number"], True
                self._signal_workers(self.stop_signal)
            elif message["kind"] == "failed" and self._cause is None:
                self._set_cause(message["code"])
                self.say(f"machine {message['machine']}: {message['text']}")
        if self._cause is not None and time.monotonic() > self._deadline and self._running():
            self._terminate_workers(selector)

    def _check_stopped(self) -> None:
        """Report stopped processes; after a signal, continue and finally kill them."""
        for process in self._running():
            if process not in self._stopped and process.is_stopped:
                self._stopped.add(process)
                self.say(f"{process.name} (pid {process.popen.pid}) is stopped (SIGSTOP); SIGCONT lets it go on")
        self._stopped = {process for process in self._stopped if process.is_stopped}
        if self.stop_signal is None:
            return
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self.job.grace_seconds
        for process in self._stopped:
            process.signal(signal.SIGCONT)
        if time.monotonic() > self._kill_at:
            for process in self._running():
                process.fault = f"had not ended {self.job.grace_seconds:g} s after the signal (--grace-seconds)"
                process.kill()
                self.say(f"{process.name} (pid {process.popen.pid}) {process.fault} and was killed")

    def _left_early(self, process: WatchedProcess) -> bool:
        """Return whether a process with exit code 0 left another inside a call."""
        running = self._running()
        if process not in self._stages or not running:
            return False
        if time.monotonic() - self._ended_at.setdefault(process, time.monotonic()) < LEFT_SECONDS:
            return False
        own = Stage.read(self._stages[process]) or Stage()
        missed = [other.name for other in running if own.left_early(Stage.read(self._stages[other]))]
        if missed:
            process.fault = f"left before {' and '.join(missed)} had ended what all processes do together"
        return bool(missed)

    def _check_failed(self, machines: Machines, selector: selectors.BaseSelector) -> None:
        if self._failed is not None:
            return
        self._failed = next((process for process in self._processes if self._has_failed(process)), None)
        if self._failed is not None:
            if self._failed not in self._workers and self._stopped:  # the scheduler drops an unresponsive worker
                self._failed = next(iter(self._stopped))
                self._failed.fault = "is stopped (SIGSTOP), so MindSpore's scheduler has given it up"
            self._failed_first = self._cause is None
            self._read_all(selector)
            self._set_cause(self._failed.exit_code)
            machines.send_failure(self._failed.report(), self._failed.exit_code)

    def _set_cause(self, code: int) -> None:
        if self._cause is None:
            self._cause, self._deadline = code, time.monotonic() + GRACE_SECONDS

    def _has_failed(self, process: WatchedProcess) -> bool:
        """Return whether a process failed; a worker may die of a forwarded signal."""
        code = process.popen.poll()
        if self.stop_signal is None:
            return bool(code) or (code == 0 and self._left_early(process))
        return process in self._workers and code not in (None, 0, 128 + self.stop_signal, -self.stop_signal)

    def _read(self, selector: selectors.BaseSelector, timeout: float) -> bool:
        events = selector.select(timeout)
        for key, _ in events:
            process = key.data
            printed = process is self._workers[0] or (self.job.all_output and process in self._workers)
            if not process.read(self._print if printed else None):
                selector.unregister(key.fileobj)
        return bool(events)

    def _read_all(self, selector: selectors.BaseSelector) -> None:
        while selector.get_map() and self._read(selector, 0):
            pass

    def _terminate_workers(self, selector: selectors.BaseSelector) -> None:
        """End the remaining processes: SIGTERM, then SIGKILL."""
        self._signal_workers(signal.SIGTERM)
        deadline = time.monotonic() + TERM_SECONDS
        while time.monotonic() < deadline and self._running():
            self._read(selector, 0.1)
        for process in self._workers:
            process.kill()

    def _move_logs(self, folder: Path, note: Path) -> None:
        """Move the logs into the run folder, if rank 0 has reported one."""
        if self.job.logs is None and self._run_folder is not None and Path(self._run_folder).is_dir():
            kept = Path(self._run_folder) / LOGS
            with contextlib.suppress(OSError):
                kept.mkdir(parents=True, exist_ok=True)
                for process in self._processes:
                    with open(process.log_path, "rb") as source, open(kept / process.log_path.name, "ab") as log:
                        shutil.copyfileobj(source, log)
                shutil.rmtree(folder)
                folder = kept
        for file in (note, *self._stages.values()):
            file.unlink(missing_ok=True)
        self.say(f"logs in {folder}")
