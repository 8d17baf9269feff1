"""One process of a job of two killed again and again, the job started anew by its supervisor each time."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trainer import checkpoint

ROOT = Path(__file__).parents[1]
PATIENCE = 600.0
EVERY = 4  # steps between snapshots
ORPHAN_SECONDS = 10.0


class Job:
    """`trainer launch -n 2` of an experiment.

    Args:
        folder: holds run folder and log.
        command: "fit" or "online".
        config: the experiment file.
        overrides: ``--set`` arguments.
        restarts: how often the supervisor may start it again.
    """

    def __init__(self, folder: Path, command: str, config: Path, overrides: Sequence[str], restarts: int) -> None:
        folder.mkdir(parents=True)
        self.run_dir, self.ledger, self.log = folder / "run", folder / "ledger", folder / "log.txt"
        diary = f"{{class_path: benchmarks.ledger.Ledger, init_args: {{folder: {self.ledger}}}}}"
        saver = f"{{class_path: callbacks.ModelCheckpoint, init_args: {{every: {EVERY}, background: true}}}}"
        line = [sys.executable, "-m", "trainer", "launch", "-n", "2", "--max-restarts", str(restarts), command]
        line.append(str(config))
        for override in (f"run_dir={self.run_dir}", *overrides, f"callbacks=[{diary}, {saver}]"):
            line += ["--set", override]
        with open(self.log, "wb") as log:
            self.supervisor = subprocess.Popen(line, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def processes(self) -> dict[int, dict[bytes, bytes]]:
        """Return the environment of each process of the job that is alive, by process id."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) if entry.name.isdecimal() else 0
                if parent == self.supervisor.pid:
                    lines = (entry / "environ").read_bytes().split(b"\0")
                    found[int(entry.name)] = dict(line.split(b"=", 1) for line in lines if b"=" in line)
            except (OSError, IndexError):
                continue
        return found

    def workers(self) -> dict[int, int]:
        """Return the process id of each rank that is alive."""
        found = self.processes().items()
        return {int(of[b"MS_NODE_ID"]): pid for pid, of in found if of.get(b"MS_ROLE") == b"MS_WORKER"}

    def step(self) -> int:
        """Return the step of the newest snapshot, 0 before the first."""
        folder = self.run_dir / "checkpoints"
        return max((entry.step for entry in checkpoint.available(folder)), default=0) if folder.is_dir() else 0

    def finish(self) -> int:
        """Wait for the end and return the supervisor's exit code."""
        return self.supervisor.wait(PATIENCE)

    def tail(self) -> str:
        """Return the end of what was printed."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-15:])


def kill_ranks(job: Job, kills: int, seed: int) -> int:
    """Kill a rank at random `kills` times: while it starts, or some snapshots later; return how many were killed."""
    choose = random.Random(seed)
    killed: set[int] = set()
    for _ in range(kills):
        deadline = time.monotonic() + PATIENCE
        workers: dict[int, int] = {}
        while len(workers) < 2 or killed & set(workers.values()):
            if job.supervisor.poll() is not None or time.monotonic() > deadline:
                return len(killed)
            time.sleep(0.05)
            workers = job.workers()
        target = job.step() + EVERY * choose.randrange(3)
        if choose.random() < 0.2:
            time.sleep(choose.uniform(0, 5))
        else:
            while job.step() < target + 1 and job.supervisor.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
        time.sleep(choose.uniform(0, 0.2))
        pid = choose.choice(list(workers.values()))
        if job.supervisor.poll() is None:
            subprocess.run(["kill", f"-{int(signal.SIGKILL)}", str(pid)], check=False)
            killed |= set(workers.values())
    return len(killed) // 2


def orphans(job: Job) -> list[int]:
    """Kill the supervisor of a job in the middle of it, and return what is left of its processes."""
    deadline = time.monotonic() + PATIENCE
    while job.step() == 0:
        if job.supervisor.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the job ended before its first snapshot:\n{job.tail()}")
        time.sleep(0.05)
    processes = job.processes()
    job.supervisor.kill()
    job.supervisor.wait()
    deadline = time.monotonic() + ORPHAN_SECONDS
    while (left := [pid for pid in processes if _is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
