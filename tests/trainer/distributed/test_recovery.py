"""A job of several processes goes on from its snapshots after one of them was killed; see test_chain.py as well."""

import re
import signal

import numpy as np
import pytest

from tests.trainer.distributed import jobs, kill_program
from trainer import checkpoint
from trainer.experiment.runs.run_folder import Run

pytestmark = pytest.mark.process

MODULE = """
import os
import signal
from pathlib import Path

from callbacks import Callback
from tests.trainer.distributed.fit_program import data
from tests.trainer.distributed.table_program import clicks
from trainer.data.table_feed import DeltaPolicy
from trainer.distributed.group import join

DeltaPolicy.MAX_DELTAS = 0  # which snapshots are deltas depends on the one that a restarted job begins with


def rows():
    return dict(zip(("x", "label"), data(), strict=True))


def part():
    own = slice(0, 96) if join().is_main else slice(96, 132)
    return {name: column[own] for name, column in clicks().items()}


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

DIVIDED = """
experiment: clicks
seed: 3
network: {class_path: tests.trainer.distributed.table_program.Pairs}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 3e-2}}
data:
  train: {class_path: tumours_of_the_job_test.part}
trainer: {gradient_accumulation_steps: 3}
fit: {epochs: 2, batch_size: 8, sink_size: 1, sharded: true}
callbacks:
  - {class_path: tumours_of_the_job_test.KillOnce, init_args: {step: 0, mark: MARK}}
  - {class_path: callbacks.ModelCheckpoint, init_args: {every: 1, keep_last: 20}}
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "tumours_of_the_job_test.py").write_text(MODULE)
    (tmp_path / "job.yaml").write_text(CONFIG.replace("MARK", str(tmp_path / "mark")))
    (tmp_path / "divided.yaml").write_text(DIVIDED.replace("MARK", str(tmp_path / "mark")))
    return tmp_path


def start(project, name, *options, kill_at=0, config="job.yaml"):
    sets = [f"run_dir={name}", f"callbacks.0.init_args.step={kill_at}"]
    return jobs.start("fit", config, *(x for one in sets for x in ("--set", one)), options=options, cwd=project)


@pytest.mark.long
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


@pytest.mark.long
def test_a_job_with_unequal_parts_is_resumed_inside_an_epoch_after_one_process_has_run_out(project):
    """Twelve batches and five: four updates of three batches; rank 1 is killed after the second, without rows left."""
    names = ("undisturbed", "killed")
    jobs_of = [
        start(project, name, "--max-restarts", "1", kill_at=kill_at, config="divided.yaml")
        for name, kill_at in zip(names, (0, 3), strict=True)
    ]
    outputs = [jobs.finish(job) for job in jobs_of]
    assert [job.returncode for job in jobs_of] == [0, 0], outputs
    assert re.search(r"job restarted, resuming from \S*/step_0000000[123] \(step [123]\)", outputs[1])
    undisturbed, killed = (checkpoint.find(project / name / "checkpoints") for name in names)
    assert undisturbed.step == killed.step == 8
    assert undisturbed.state["progress"] == killed.state["progress"]
    assert undisturbed.state["progress"]["samples_seen"] == 2 * 132
    for group in ("model", "optimizer"):
        for name, value in undisturbed.tensors(group).items():
            np.testing.assert_array_equal(killed.tensors(group)[name], value, err_msg=name)
    expected, found = (rows_of(snapshot.tensors("part.tables")) for snapshot in (undisturbed, killed))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def rows_of(tensors):
    """Return ids and values of each table, ordered by ids."""
    found = {}
    for table in ("users", "items"):
        order = np.argsort(tensors[f"{table}/ids"])
        found |= {f"{table}/{name}": np.asarray(tensors[f"{table}/{name}"])[order] for name in ("ids", "values")}
    return found


@pytest.mark.long
def test_a_process_that_is_killed_inside_a_step_of_a_sunk_call_ends_the_job_and_is_named():
    """The others wait inside the graph for its gradients: no collective's half an hour ends that."""
    code, output = jobs.run("python", kill_program.__file__)
    assert code == 128 + signal.SIGKILL
    assert re.search(r"rank 1 \(pid \d+\) was killed by SIGKILL", output)
