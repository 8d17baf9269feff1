"""The examples for engines that place and restart jobs, as far as they run on one machine."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.trainer.distributed import jobs
from tests.trainer.distributed.test_recovery import CONFIG, MODULE
from trainer import checkpoint
from trainer.experiment.runs.run_folder import Run

pytestmark = [pytest.mark.process, pytest.mark.long]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path):
    """A folder with an experiment of which rank 1 kills itself once, in step `step`, if that is not 0."""
    (tmp_path / "tumours_of_the_job_test.py").write_text(MODULE)
    (tmp_path / "job.yaml").write_text(CONFIG.replace("MARK", str(tmp_path / "mark")))
    return tmp_path


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='needs Ray, 80 MB: pip install "ray[train]"')
def test_ray_places_a_job_and_starts_it_again_when_a_process_is_killed(project):
    environment = {**os.environ, "RAY_TRAIN_ENABLE_WORKER_LOGGING": "0"}
    undisturbed = jobs.start("fit", "job.yaml", "--set", "run_dir=undisturbed", cwd=project)
    output = jobs.finish(undisturbed)
    assert undisturbed.returncode == 0, output
    command = [sys.executable, "-m", "examples.engines.ray_job", "--workers", "2", "--restarts", "1"]
    command += [
        "fit",
        "job.yaml",
        "--resume",
        "auto",
        "--set",
        "run_dir=killed",
        "--set",
        "callbacks.0.init_args.step=8",
    ]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=jobs.TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert "rank 1 ended with exit code -9" in done.stdout + done.stderr
    assert [path.name for path in project.glob("killed*")] == ["killed"]
    (entry,) = json.loads((project / "killed/resumes.json").read_text())
    assert re.search(r"step_0000000[36]$", entry["snapshot"])
    equal(project / "killed", project / "undisturbed")


class Pods:
    """The pods of a Volcano job as processes of this machine: the commands and variables of its file.

    Volcano's part is played here: the number of a pod, and the name of the scheduler's pod, which is this machine.
    """

    def __init__(self, job, folder, replace):
        self.folder, self.processes = folder, []
        scheduler = f"{job['metadata']['name']}-scheduler-0.{job['metadata']['name']}"
        self.values = {scheduler: "127.0.0.1", **replace}
        self.tasks = {task["name"]: task for task in job["spec"]["tasks"]}

    def start(self):
        for name, task in self.tasks.items():
            (container,) = task["template"]["spec"]["containers"]
            given = {variable["name"]: self._local(variable["value"]) for variable in container["env"]}
            for number in range(int(self._local(str(task["replicas"])))):
                environment = {**os.environ, **given, "VC_TASK_INDEX": str(number)}
                command = [self._local(word) for word in container["command"]]
                process = subprocess.Popen(command, cwd=self.folder, env=environment, start_new_session=True)
                self.processes.append((name, process))

    def _local(self, text):
        for old, new in self.values.items():
            text = text.replace(old, new)
        return text

    def of(self, task):
        return [process for name, process in self.processes if name == task]

    def end(self):
        """End all that runs, as `RestartJob` does."""
        for _, process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.processes = []


def test_the_commands_of_the_volcano_job_train_and_go_on_after_a_restart(project, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    job = yaml.safe_load((ROOT / "examples/engines/volcano.yaml").read_text())
    workers = job["spec"]["tasks"][1]["replicas"]
    assert job["spec"]["minAvailable"] == workers + 1
    for task in job["spec"]["tasks"]:
        variables = {entry["name"]: entry["value"] for entry in task["template"]["spec"]["containers"][0]["env"]}
        assert variables["MS_WORKER_NUM"] == str(workers)
    (project / "wide_deep.yaml").write_text((project / "job.yaml").read_text().replace("step: 0", "step: 8"))
    job["spec"]["tasks"][1]["replicas"] = 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    for task in job["spec"]["tasks"]:
        for entry in task["template"]["spec"]["containers"][0]["env"]:
            entry["value"] = "2" if entry["name"] == "MS_WORKER_NUM" else entry["value"]
    pods = Pods(job, project, {"8118": port})
    try:
        pods.start()
        jobs.wait_for(lambda: -signal.SIGKILL in [process.poll() for process in pods.of("worker")], jobs.TIMEOUT)
        pods.end()
        pods.start()
        assert [process.wait(jobs.TIMEOUT) for process in pods.of("worker")] == [0, 0]
    finally:
        pods.end()
    (run,) = (project / "runs").iterdir()
    (entry,) = json.loads((run / "resumes.json").read_text())
    assert re.search(r"step_0000000[36]$", entry["snapshot"])
    assert Run.read(run).metrics["progress"]["global_step"] == 15


def equal(one, other):
    """Check that two runs have the same parameters, bit for bit, and results."""
    snapshots = [checkpoint.find(folder / "checkpoints") for folder in (one, other)]
    assert snapshots[0].step == snapshots[1].step
    for group in ("model", "optimizer"):
        for name, value in snapshots[1].tensors(group).items():
            np.testing.assert_array_equal(snapshots[0].tensors(group)[name], value, err_msg=name)
    assert Run.read(one).metrics["results"] == Run.read(other).metrics["results"]
