"""The supervisor: what it starts, how it passes signals on, how it ends a job, and that it leaves nothing behind."""

import os
import re
import signal

import pytest

from tests.trainer.distributed import jobs
from trainer.distributed.launch import Job
from trainer.distributed.watched_process import share_of_cores
from trainer.errors import ConfigurationError
from trainer.experiment.cli import main

pytestmark = pytest.mark.process

SCRIPT = """
import os, signal, sys, time
rank, folder = int(os.environ["MS_NODE_ID"]), sys.argv[1]
print("rank", rank, "of", os.environ["MS_WORKER_NUM"], "meets at", os.environ["MS_SCHED_HOST"], flush=True)
print("cores", *sorted(os.sched_getaffinity(0)), flush=True)
print("a collective waits", os.environ["MS_CPU_COMM_OP_TIMEOUT"], "seconds", flush=True)

def leave(number, frame):
    if "one_fails" in sys.argv and rank == 1:
        sys.exit(1)
    time.sleep(3600 if "one_fails" in sys.argv else 0.5)
    open(f"{folder}/snapshot_{rank}", "w").close()
    sys.exit(128 + number)

if "deaf" not in sys.argv:
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGHUP, leave)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(f"{folder}/pid_{rank}.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"{folder}/pid_{rank}.new", f"{folder}/pid_{rank}")
if "fails_once" in sys.argv:
    sys.exit(3 if rank == 1 and os.environ["TRAINER_RESTART"] == "0" else 0)
if "quick" in sys.argv:
    sys.exit(0)
time.sleep(3600)  # unless the supervisor ends it
"""


@pytest.fixture
def script(tmp_path, _waiting_scheduler):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def pids(folder, count=2):
    files = [folder / f"pid_{rank}" for rank in range(count)]
    jobs.wait_for(lambda: all(file.is_file() for file in files))
    return [int(file.read_text()) for file in files]


def test_every_process_gets_its_rank_and_all_the_same_meeting_place(script, tmp_path):
    code, output = jobs.run("python", script, tmp_path, "quick", options=["--logs", tmp_path / "logs"])
    assert code == 0
    assert "[rank 0] rank 0 of 2 meets at 127.0.0.1" in output
    assert "a collective waits 1800 seconds" in output, "MindSpore's 30 are too few for one that compiles long"
    assert "rank 1 of 2" not in output, "the terminal shows rank 0 alone"
    assert "[rank 1] rank 1 of 2 meets at 127.0.0.1" in (tmp_path / "logs/rank_1.log").read_text()
    assert "msrun --worker_num=2 --local_worker_num=2 --master_addr=127.0.0.1" in output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_reaches_every_process_and_their_snapshots_are_waited_for(script, tmp_path, number, code):
    job = jobs.start(script, tmp_path)
    pids(tmp_path)
    job.send_signal(number)
    jobs.finish(job)
    assert job.returncode == code
    assert (tmp_path / "snapshot_0").exists()
    assert (tmp_path / "snapshot_1").exists()


@pytest.mark.long
def test_the_lines_of_all_processes_are_one_prefixed_stream_on_request(script, tmp_path):
    code, output = jobs.run("python", script, tmp_path, "quick", options=["--all-output"])
    assert code == 0
    for rank in range(2):
        assert f"[rank {rank}] rank {rank} of 2 meets at 127.0.0.1" in output
    assert "[scheduler]" not in output


@pytest.mark.long
def test_how_long_a_collective_waits_is_the_users_if_they_say_so(script, tmp_path, monkeypatch):
    monkeypatch.setenv("MS_CPU_COMM_OP_TIMEOUT", "77")
    assert "a collective waits 77 seconds" in jobs.run("python", script, tmp_path, "quick")[1]


def cores_of_processes(script, tmp_path, *options):
    logs = tmp_path / f"logs{len(options)}"
    code, output = jobs.run("python", script, tmp_path, "quick", options=["--logs", logs, *options])
    assert code == 0, output
    return [re.search(r"cores ([\d ]+)", (logs / f"rank_{rank}.log").read_text())[1].split() for rank in range(2)]


def test_the_processes_share_the_cores_out_unless_they_are_told_not_to(script, tmp_path):
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
    if len(cores) < 2:
        pytest.skip("one core")
    first, second = cores_of_processes(script, tmp_path)
    assert first + second == cores
    assert abs(len(first) - len(second)) <= 1
    assert cores_of_processes(script, tmp_path, "--no-bind-cores") == [cores, cores]


def test_more_processes_than_cores_use_all_of_them(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 5, 7})
    assert [share_of_cores(number, 3) for number in range(3)] == [[2], [5], [7]]
    assert [share_of_cores(number, 4) for number in range(4)] == [[]] * 4
    assert share_of_cores(0, 1) == []


def test_a_killed_process_ends_the_job_and_is_named(script, tmp_path):
    job = jobs.start(script, tmp_path, "deaf")
    zero, one = pids(tmp_path)
    jobs.kill(one)
    output = jobs.finish(job)
    assert job.returncode == 137
    assert f"rank 1 (pid {one}) was killed by SIGKILL" in output
    assert "[rank 1] rank 1 of 2" in output, "the end of its log"
    assert not jobs.is_running(zero)


@pytest.mark.long
def test_a_process_that_fails_after_a_signal_ends_the_job(script, tmp_path):
    job = jobs.start(script, tmp_path, "one_fails")
    zero, _ = pids(tmp_path)
    job.send_signal(signal.SIGTERM)
    output = jobs.finish(job)
    assert job.returncode == 1
    assert "rank 1" in output
    assert not jobs.is_running(zero)


def test_what_has_not_ended_after_the_grace_period_is_killed_and_named(script, tmp_path):
    job = jobs.start(script, tmp_path, "deaf", options=["--grace-seconds", "1"])
    zero, one = pids(tmp_path)
    job.send_signal(signal.SIGTERM)
    output = jobs.finish(job)
    assert job.returncode == 137
    assert f"rank 1 (pid {one}) had not ended 1 s after the signal (--grace-seconds) and was killed" in output
    assert not jobs.is_running(zero)


def test_no_process_outlives_a_killed_supervisor(script, tmp_path):
    job = jobs.start(script, tmp_path, "deaf")
    found = pids(tmp_path)
    jobs.kill(job.pid)
    jobs.finish(job)
    jobs.wait_for(lambda: not any(map(jobs.is_running, found)))


def test_a_failed_job_is_started_again_as_often_as_allowed(script, tmp_path):
    code, output = jobs.run(script, tmp_path, "fails_once", options=["--max-restarts", "1"])
    assert code == 0
    assert "rank 1" in output
    assert "ended with exit code 3" in output
    code, _ = jobs.run(script, tmp_path, "fails_once")
    assert code == 3


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        (["fti", "c.yaml"], {}, "did you mean 'fit'"),
        (["fit", "c.yaml"], {"processes": 0}, "-n takes a whole number >= 1"),
        (["fit", "c.yaml"], {"grace_seconds": 0}, "--grace-seconds takes a number > 0"),
        ([], {}, "no command"),
    ],
)
def test_mistakes_are_named_before_anything_starts(command, options, message):
    with pytest.raises(ConfigurationError, match=message):
        Job(command, **{"processes": 2, **options})


def test_several_machines_are_the_work_of_msrun_whose_line_is_named(capsys):
    options = ["--nodes", "2", "--node-rank", "1", "--master", "10.0.0.1:8118"]
    assert main(["launch", "-n", "4", *options, "fit", "visits.yaml"]) == 2
    assert (
        "msrun --worker_num=8 --local_worker_num=4 --master_addr=10.0.0.1 --master_port=8118 --join=True "
        "--node_rank=0 (1, ...) python -m trainer fit visits.yaml"
    ) in capsys.readouterr().err
