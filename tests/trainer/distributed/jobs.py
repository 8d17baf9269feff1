"""Jobs of several real processes for tests, ended by process id whatever happens.

`run` and `run_program` start them by `trainer launch`; `fork_program` forks them from a process that has MindSpore
imported, for tests to which the supervisor does not matter.
"""

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from trainer.distributed.group import join
from trainer.distributed.watched_process import share_of_cores

TIMEOUT = 400  # on a machine that is busy with other things
SCHEDULER = "from mindspore import communication; communication.init()"


def member():
    """Join the group of this process, once all is imported; return it.

    MindSpore lets the collector look at everything at each compilation: here it is spared what outlives the program.
    """
    gc.collect()
    gc.freeze()
    return join()


def start(*arguments, processes=2, options=(), cwd=None):
    """Start ``trainer launch -n PROCESSES OPTIONS ARGUMENTS`` and return the supervisor's process."""
    command = [sys.executable, "-m", "trainer", "launch", "-n", str(processes), *options, *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(job, timeout=TIMEOUT):
    """Wait for the job and return its output; `job.returncode` is set then."""
    try:
        return job.communicate(timeout=timeout)[0]
    finally:
        if job.poll() is None:
            job.kill()  # its processes go with it
            job.communicate()


def run(*arguments, **options):
    """Run a job; return its exit code and its output."""
    job = start(*arguments, **options)
    output = finish(job)
    return job.returncode, output


def run_program(program, *arguments, **options):
    """Run a job of ``python PROGRAM ARGUMENTS``, which has to end well."""
    code, output = run("python", program, *arguments, **options)
    assert code == 0, output


def fork_program(forks, *arguments, processes=2, cwd=None):
    """Run ``python ARGUMENTS`` on each process of a job, as `trainer launch` does; all processes have to end well.

    Args:
        forks: the fork server.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        **os.environ,
        "MS_WORKER_NUM": str(processes),
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": str(port),
        "MS_CPU_COMM_OP_TIMEOUT": str(TIMEOUT),
        "MS_RETRY_INTERVAL_LOWER": "1",
        "MS_RETRY_INTERVAL_UPPER": "1",
    }
    scheduler = forks.start("-c", SCHEDULER, environment={**common, "MS_ROLE": "MS_SCHED"})
    ranks = []
    try:
        for rank in range(processes):
            role = {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank)}
            ranks.append(forks.start(*arguments, cwd=cwd, environment={**common, **role}))
            if cores := share_of_cores(rank, processes):
                os.sched_setaffinity(ranks[-1].pid, cores)
        deadline = time.monotonic() + TIMEOUT
        while None in (codes := [rank.poll() for rank in ranks]) and not any(codes) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        for process in (*ranks, scheduler):
            process.kill()
    outputs = [f"rank {n}: {rank.output.read_text()}{rank.errors.read_text()}" for n, rank in enumerate(ranks)]
    assert codes == [0] * processes, "\n".join(outputs)


def wait_for(condition, seconds=60):
    """Wait until `condition` returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def is_running(pid):
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill(pid):
    """Kill one process."""
    os.kill(pid, signal.SIGKILL)
