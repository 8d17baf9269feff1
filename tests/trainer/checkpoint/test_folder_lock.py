"""A folder has one writer; the second is told who it is; a dead one does not keep it."""

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.checkpoint import folder_lock
from trainer.checkpoint.folder_lock import LOCK, claim
from trainer.errors import ConfigurationError, FolderInUseError

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
HOLD = """
import os, sys, time
from trainer.checkpoint.folder_lock import claim
lock = claim(sys.argv[1], "folder")
if sys.argv[2] == "fork" and os.fork() == 0:
    time.sleep(60)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Start a process that claims ``tmp_path/run`` and wait until it has; all of them end with the test."""
    started = []

    def start(mode="plain"):
        command = [sys.executable, "-c", HOLD, str(tmp_path / "run"), mode]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True)
        started.append(process)
        assert process.stdout.readline() == b"held\n"
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def pretend(folder: Path, **changes) -> None:
    """Leave the lock of a writer that never gave it back."""
    folder.mkdir(exist_ok=True)
    record = {"pid": 1, "host": "elsewhere", "since": "2026-01-01T00:00:00+00:00", "boot": "another", **changes}
    (folder / LOCK).write_text(json.dumps(record))


def test_the_second_writer_is_shown_who_holds_the_lock(tmp_path, holder):
    process = holder()
    with pytest.raises(FolderInUseError, match=rf"run is being written by process {process.pid} on .*took it at 20"):
        claim(tmp_path / "run", "folder")


def test_one_process_does_not_take_it_twice_either(tmp_path):
    with claim(tmp_path, "folder"), pytest.raises(FolderInUseError, match=f"process {os.getpid()} on"):
        claim(tmp_path, "folder")
    claim(tmp_path, "folder").release()


@pytest.mark.parametrize("mode", ["plain", "fork"])
def test_a_killed_writer_does_not_keep_it(tmp_path, holder, mode):
    os.kill(holder(mode).pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            claim(tmp_path / "run", "folder").release()
            break
        except FolderInUseError:
            time.sleep(0.05)
    else:
        pytest.fail("the lock outlived its process")
    assert os.listdir(tmp_path / "run") == []


def test_a_writer_on_another_host_holds_it_as_long_as_its_heart_beats(tmp_path):
    pretend(tmp_path)
    with pytest.raises(FolderInUseError, match=r"process 1 on elsewhere.*last heard of \d s ago; taken for dead after"):
        claim(tmp_path, "folder")
    long_ago = time.time() - folder_lock.DEAD_AFTER - 1
    os.utime(tmp_path / LOCK, (long_ago, long_ago))
    claim(tmp_path, "folder").release()


def test_the_heart_beats(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "HEARTBEAT", 0.01)
    with claim(tmp_path, "folder"):
        os.utime(tmp_path / LOCK, (0, 0))
        deadline = time.monotonic() + 60
        while os.stat(tmp_path / LOCK).st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.stat(tmp_path / LOCK).st_mtime > 0


def no_locks(descriptor, operation):
    raise OSError(errno.ENOLCK, "no locks available")


def test_without_locks_of_the_kernel_the_record_decides(tmp_path, monkeypatch, holder):
    monkeypatch.setattr(fcntl, "flock", no_locks)
    process = holder()
    with pytest.raises(FolderInUseError, match=f"process {process.pid}"):
        claim(tmp_path / "run", "folder")
    process.kill()
    process.wait()
    claim(tmp_path / "run", "folder").release()


def test_a_writer_that_was_taken_for_dead_notices(tmp_path):
    lock = claim(tmp_path, "folder")
    (tmp_path / LOCK).unlink()
    lock.check()  # the file was cleared away and nobody writes: it is taken again
    (tmp_path / LOCK).unlink()
    pretend(tmp_path)
    with pytest.raises(FolderInUseError, match="elsewhere"):
        lock.check()
    lock.release()
    assert "elsewhere" in (tmp_path / LOCK).read_text(), "what is another's stays"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}', "\x00" * 9000])
def test_a_garbage_lock_is_taken_over(tmp_path, content):
    (tmp_path / LOCK).write_text(content)
    os.utime(tmp_path / LOCK, (0, 0))
    lock = claim(tmp_path, "folder")
    assert f'"pid": {os.getpid()}' in (tmp_path / LOCK).read_text()
    lock.release()


def test_links_lead_to_the_same_lock_and_nothing_is_left(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    lock = claim(tmp_path / "link" / "a" / "b", "folder")
    assert lock.folder == tmp_path / "real" / "a" / "b"
    with pytest.raises(FolderInUseError):
        claim(tmp_path / "real" / "a" / "b", "folder")
    lock.release()
    assert os.listdir(tmp_path) == ["link"]


@pytest.mark.parametrize("path", ["file/c", "x" * 300, "nul\0byte"], ids=["file", "long", "nul"])
def test_a_folder_that_cannot_be_is_a_misconfiguration(tmp_path, path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match=r"choose another folder|cannot be a path"):
        claim(f"{tmp_path}/{path}", "folder")
