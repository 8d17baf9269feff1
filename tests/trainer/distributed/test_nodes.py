"""One job on two machines: two network namespaces where they may be made, else two addresses of this machine."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.trainer.distributed import jobs
from trainer.distributed.launch import Job
from trainer.distributed.machines import Machines
from trainer.errors import ConfigurationError

PORT = 8127
WAITS = """
import os, signal, sys, time
rank, folder = os.environ["MS_NODE_ID"], sys.argv[1]
print("meets at", os.environ["MS_SCHED_HOST"], "as", os.environ["MS_WORKER_IP"], flush=True)
if os.environ["TRAINER_RESTART"] == "1":
    sys.exit(0)

def leave(number, frame):
    open(f"{folder}/snapshot_{rank}", "w").close()
    sys.exit(128 + number)

signal.signal(signal.SIGTERM, leave)
with open(f"{folder}/new_{rank}", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"{folder}/new_{rank}", f"{folder}/pid_{rank}")
while not os.path.exists(f"{folder}/lost"):  # what a process notices that waits for a dead one
    time.sleep(0.05)
time.sleep(0.5)
sys.exit(1)
"""
TRAINS = """
import sys
import numpy as np
from tests.trainer.distributed.test_nodes import train

np.save(f"{sys.argv[1]}/weights_{sys.argv[2]}", train())
"""


def train():
    """Train on the breast cancer data and return the weights; on one process or on two, to the same result."""
    from mindspore import nn

    from tests.trainer.distributed.fit_program import data
    from trainer import Trainer

    x, y = data()
    network = nn.Dense(30, 1, weight_init="zeros", bias_init="zeros")
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.03), seed=3)
    trainer.fit({"x": x, "y": y}, 1, callbacks=[], batch_size=40 // trainer.group.size)
    return network.weight.asnumpy()


@pytest.fixture(scope="module")
def machines():
    """Commands that run another one on either machine, and the address of the first."""
    names = [f"trainer-{os.getpid()}-{number}" for number in range(2)]

    def ip(*arguments):
        return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode == 0

    try:
        pair = ("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth1", "netns", names[1])
        made = shutil.which("ip") and all(ip("netns", "add", name) for name in names) and ip(*pair)
        for number, name in enumerate(names):
            made = made and ip("-n", name, "link", "set", "lo", "up")
            made = made and ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", f"veth{number}")
            made = made and ip("-n", name, "link", "set", f"veth{number}", "up")
        if made:
            yield [["ip", "netns", "exec", name] for name in names], "10.77.0.1"
        else:
            yield [[], []], "127.0.0.2"
    finally:
        for name in names if shutil.which("ip") else ():
            ip("netns", "del", name)


class TwoMachines:
    """The supervisors of a job; all of them have ended when the context has."""

    def __init__(self, machines):
        self.commands, self.host = machines
        self.started = []

    def start(self, machine, *arguments, options=(), nodes=2, port=PORT):
        command = [*self.commands[machine], sys.executable, "-m", "trainer", "launch", "-n", "1", "--nodes", str(nodes)]
        command += ["--node-rank", str(machine), "--master", f"{self.host}:{port}", *options, *map(str, arguments)]
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.started.append(job)
        return job

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        for job in self.started:
            with contextlib.suppress(ProcessLookupError):
                job.kill()
            job.communicate()


@pytest.fixture
def two(machines):
    with TwoMachines(machines) as two:
        yield two


@pytest.fixture
def script(tmp_path, _waiting_scheduler):
    """A program that waits for a signal."""
    path = tmp_path / "program.py"
    path.write_text(WAITS)
    return path


def pids(folder):
    files = [folder / f"pid_{rank}" for rank in range(2)]
    jobs.wait_for(lambda: all(file.is_file() for file in files))
    return [int(file.read_text()) for file in files]


def test_two_machines_train_as_one_process(two, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(TRAINS)
    found = [two.start(machine, script, tmp_path, machine) for machine in (0, 1)]
    outputs = [jobs.finish(job) for job in found]
    assert [job.returncode for job in found] == [0, 0], outputs
    expected = train()
    for machine in (0, 1):
        weights = np.load(tmp_path / f"weights_{machine}.npy")
        np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-6)


def test_a_killed_process_on_the_second_machine_is_named_on_both_and_all_start_again(two, script, tmp_path):
    found = [two.start(machine, script, tmp_path, options=["--max-restarts", "1"]) for machine in (0, 1)]
    _, pid = pids(tmp_path)
    jobs.kill(pid)
    (tmp_path / "lost").touch()
    outputs = [jobs.finish(job, timeout=30) for job in found]
    assert [job.returncode for job in found] == [0, 0], outputs
    assert f"machine 1: rank 1 (pid {pid}) was killed by SIGKILL" in outputs[0]
    assert "[rank 1] meets at" in outputs[0], "the end of its log"
    assert f"rank 1 (pid {pid}) was killed by SIGKILL" in outputs[1]
    assert all("starting all processes again (1 of 1)" in output for output in outputs)


def test_a_signal_to_one_supervisor_ends_both_machines_after_their_snapshots(two, script, tmp_path):
    late = two.start(1, script, tmp_path)
    assert f"machine 0 is not at {two.host}:{PORT} yet" in late.stdout.readline()
    first = two.start(0, script, tmp_path)
    pids(tmp_path)
    late.send_signal(signal.SIGTERM)
    outputs = [jobs.finish(job) for job in (first, late)]
    assert [first.returncode, late.returncode] == [143, 143], outputs
    assert {path.name for path in tmp_path.glob("snapshot_*")} == {"snapshot_0", "snapshot_1"}
    assert f"meets at {two.host} as {two.host}" in outputs[0]


def test_a_machine_whose_supervisor_is_gone_ends_the_job(two, script, tmp_path):
    first, second = (two.start(machine, script, tmp_path) for machine in (0, 1))
    found = pids(tmp_path)
    second.kill()
    (tmp_path / "lost").touch()
    output = jobs.finish(first, timeout=20)
    assert first.returncode == 1
    assert "the supervisor of machine 1 is gone" in output
    jobs.wait_for(lambda: not any(map(jobs.is_running, found)))


def test_machines_that_do_not_meet_say_so(two, script, tmp_path):
    soon = ["--meeting-seconds", "0.5"]
    nobody = two.start(1, script, tmp_path, port=1, options=soon)
    alone = two.start(0, script, tmp_path, port=PORT + 1, options=soon)
    waits = two.start(0, script, tmp_path)
    differs = two.start(1, script, tmp_path, nodes=3)
    found = (nobody, alone, differs)
    outputs = [jobs.finish(job, timeout=30) for job in found]
    assert [job.returncode for job in found] == [1, 1, 2], outputs
    assert f"machine 0 was not met at --master {two.host}:1" in outputs[0]
    assert "machines [1] have not come" in outputs[1]
    assert "machine 0 refused this one: --nodes is 3 there and 2 on machine 0" in outputs[2]
    waits.send_signal(signal.SIGTERM)
    jobs.finish(waits, timeout=30)
    assert waits.returncode == 143
    assert not list(tmp_path.glob("pid_*"))


class Supervisors:
    """The supervisors of three machines in this process, each on a thread while it waits for the others."""

    def __init__(self):
        self.said, self.made = [], []
        self.came = threading.Condition()

    def start(self, number):
        job = Job(["fit", "c.yaml"], 1, nodes=3, node_rank=number, master=f"127.0.0.1:{PORT + 1}", meeting_seconds=20)
        one = Machines(job, self.say, lambda: False)
        self.made.append(one)
        one.met = []
        one.waiting = threading.Thread(target=lambda: one.met.append(one.connect()), daemon=True)
        one.waiting.start()
        return one

    def say(self, text):
        with self.came:
            self.said.append(text)
            self.came.notify_all()

    def wait_for(self, text, times=1):
        with self.came:
            assert self.came.wait_for(lambda: sum(text in one for one in self.said) >= times, 20), self.said

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        for one in self.made:
            one.__exit__()


def test_a_supervisor_may_come_again_while_others_are_awaited_and_long_failures_are_reported():
    with Supervisors() as supervisors:
        zero = supervisors.start(0)
        supervisors.wait_for("waiting for 2 more")
        with supervisors.start(1) as stopped:
            supervisors.wait_for("machine 1 has come")
            stopped.waiting.join(20)
        one = supervisors.start(1)
        supervisors.wait_for("machine 1 has come", times=2)
        two = supervisors.start(2)
        for supervisor in (zero, one, two):
            supervisor.waiting.join(20)
            assert supervisor.met == [True], supervisors.said
        said = "\x1b" * 300_000 + "\U0001f525" * 50_000 + "the end"
        told = threading.Thread(target=one.send_failure, args=(said, 3))
        told.start()
        heard = []
        jobs.wait_for(lambda: heard.extend(zero.receive()) or heard)
        told.join(20)
        assert not zero.lost
        assert [(message["machine"], message["code"]) for message in heard] == [(1, 3)]
        assert said.endswith(heard[0]["text"])
        assert len(heard[0]["text"]) > 50_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"master": "a:0"}, "--master takes HOST:PORT"),
        ({"master": "a:70000"}, "--master takes HOST:PORT"),
        ({"master": "a:1", "meeting_seconds": 0}, "--meeting-seconds takes a number > 0"),
    ],
)
def test_mistakes_are_named_before_anything_starts(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Job(["fit", "c.yaml"], 1, nodes=2, **options)
