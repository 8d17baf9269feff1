"""A job of several processes goes on from its snapshots after one of them was killed; see test_chain.py as well."""

import re

import numpy as np
import pytest

from tests.trainer.distributed import jobs
from trainer import checkpoint
from trainer.experiment.runs.run_folder import Run

MODULE = """
import os
import signal
from pathlib import Path

from callbacks import Callback
from tests.trainer.distributed.fit_program import data


def rows():
    return dict(zip(("x", "label"), data(), strict=True))


class KillOnce(Callback):
    def __init__(self, step: int, mark: str):
        self.step, self.mark = step, Path(mark)

    def on_train_step_end(self, trainer):
        if trainer.group.rank == 1 and trainer.state.progress.global_step == self.step and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""
CONFIG = """
experiment: tumours
seed: 3
network: {class_path: mindspore.nn.Dense, init_args: {in_channels: 30, out_channels: 1}}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 3e-2}}
data:
  train: {class_path: tumours_of_the_job_test.rows}
fit: {epochs: 1, batch_size: 20, sink_size: 1}
callbacks:
  - {class_path: tumours_of_the_job_test.KillOnce, init_args: {step: 0, mark: MARK}}
  - {class_path: callbacks.ModelCheckpoint, init_args: {every: 3}}
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "tumours_of_the_job_test.py").write_text(MODULE)
    (tmp_path / "job.yaml").write_text(CONFIG.replace("MARK", str(tmp_path / "mark")))
    return tmp_path


def start(project, name, *options, kill_at=0):
    sets = [f"run_dir={name}", f"callbacks.0.init_args.step={kill_at}"]
    return jobs.start("fit", "job.yaml", *(x for one in sets for x in ("--set", one)), options=options, cwd=project)


def test_a_killed_job_is_resumed_and_ends_as_if_nothing_had_happened(project):
    # both at once, for a job that has lost a process waits most of the time
    undisturbed, killed = start(project, "undisturbed"), start(project, "killed", "--max-restarts", "1", kill_at=8)
    outputs = [jobs.finish(job) for job in (undisturbed, killed)]
    assert [job.returncode for job in (undisturbed, killed)] == [0, 0], outputs
    assert "was killed by SIGKILL" in outputs[1]
    assert sorted(path.name for path in project.glob("*killed*")) == ["killed"], "one run folder for all processes"
    assert {path.name for path in (project / "killed/logs").iterdir()} == {"scheduler.log", "rank_0.log", "rank_1.log"}
    assert re.search(r"job restarted, resuming from \S*/step_0000000[36] \(step [36]\)", outputs[1])
    killed, undisturbed = (checkpoint.find(project / name / "checkpoints") for name in ("killed", "undisturbed"))
    assert killed.step == undisturbed.step == 15
    for group in ("model", "optimizer"):
        for name, value in undisturbed.tensors(group).items():
            np.testing.assert_array_equal(killed.tensors(group)[name], value, err_msg=name)
    metrics = [Run.read(project / name).metrics for name in ("killed", "undisturbed")]
    assert metrics[0]["progress"] == metrics[1]["progress"]
    assert metrics[0]["results"] == metrics[1]["results"]
