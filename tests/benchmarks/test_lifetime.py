"""Benchmark programs take their processes and temporary files with them, however they end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

from benchmarks import lifetime, servers  # noqa: E402

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found through /proc"),
]
PROGRAMS = {
    "run": ["benchmarks/run.py", "--quick", "--cases", "evaluation", "--output", "{folder}/out"],
    "chaos": ["benchmarks/chaos.py", "--source", "redis", "--rows", "4000"],
}


def wait_until(said, patience=120.0):
    deadline = time.monotonic() + patience
    while not (result := said()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return result  # not asked again: a process that was there may have ended since


def of_program(process):
    """The mark under which a program's processes run, once there are two of them."""
    token = ""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for child in children.read_text().split():
        try:
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        token = next((e.partition(b"=")[2].decode() for e in environment if e.startswith(b"BENCHMARKS_LIFE")), token)
    return token


@pytest.mark.long(but=["chaos-SIGKILL"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_is_ended_leaves_no_process_and_no_folder(program, number, tmp_path):
    if program == "chaos" and servers.missing("redis"):
        pytest.skip(servers.missing("redis"))
    folder = Path(tempfile.mkdtemp(prefix="t-"))  # short: the path of a socket has 107 characters at most
    arguments = [argument.format(folder=tmp_path) for argument in PROGRAMS[program]]
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def at_work():
        token = of_program(process)
        return token if token and len(lifetime.marked(token, folder)) >= 2 and any(folder.iterdir()) else ""

    try:
        token = wait_until(at_work)
        assert token
        process.send_signal(number)
        assert process.wait(30) == -number
        assert wait_until(lambda: not lifetime.marked(token, folder), 15), lifetime.marked(token, folder)
        assert wait_until(lambda: not any(folder.iterdir()), 15), list(folder.rglob("*"))
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def test_a_stopped_process_and_its_child_end_with_the_block():
    child = (
        "import subprocess, sys, os, signal; subprocess.Popen(['sleep', '600']); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    before = dict(os.environ)
    with lifetime.guarded("test-") as folder:
        token = os.environ[lifetime.MARK]
        process = subprocess.Popen([sys.executable, "-c", child])
        (folder / "file").touch()
        assert wait_until(lambda: len(lifetime.marked(token)) == 2)
    assert process.wait(10) == -signal.SIGKILL
    assert not lifetime.marked(token)
    assert not folder.exists()
    assert dict(os.environ) == before
