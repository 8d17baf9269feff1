"""Jobs of several real processes for tests, ended by process id whatever happens."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from trainer.distributed.group import join

TIMEOUT = 400  # on a machine that is busy with other things


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
    assert (
        "this MindSpore differs from" not in output
    )  # `warn_of_fallback`'s warning, on a MindSpore that is as it should be


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
