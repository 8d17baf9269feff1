"""A job of several processes goes on from its snapshots: after a kill, and on another number of processes."""

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.distributed import jobs, resume_program
from trainer import checkpoint
from trainer.experiment.rundir import Run

MODULE = """
import os
import signal
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from callbacks import Callback


def rows():
    data = load_breast_cancer()
    x = ((data.data - data.data.mean(0)) / data.data.std(0)).astype(np.float32)
    return {"x": x, "label": data.target.astype(np.float32)[:, None]}


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
metrics: [auc]
data:
  train: {class_path: tumours_of_the_job_test.rows}
  test: {class_path: tumours_of_the_job_test.rows}
fit: {epochs: 1, batch_size: 20, sink_size: 1}
callbacks:
  - {class_path: tumours_of_the_job_test.KillOnce, init_args: {step: 8, mark: MARK}}
  - {class_path: callbacks.ModelCheckpoint, init_args: {every: 3}}
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "tumours_of_the_job_test.py").write_text(MODULE)
    (tmp_path / "job.yaml").write_text(CONFIG.replace("MARK", str(tmp_path / "mark")))
    return tmp_path


def fit(project, name, *options):
    code, output = jobs.run("fit", "job.yaml", "--set", f"run_dir={name}", options=options, cwd=project)
    assert code == 0, output
    return output


def test_a_killed_job_is_resumed_and_ends_as_if_nothing_had_happened(project):
    output = fit(project, "killed", "--max-restarts", "1")
    assert "was killed by SIGKILL" in output
    assert sorted(path.name for path in project.glob("*killed*")) == ["killed"], "one run folder for all processes"
    assert {path.name for path in (project / "killed/logs").iterdir()} == {"scheduler.log", "rank_0.log", "rank_1.log"}
    assert "goes on" in output or "restored" in output
    fit(project, "undisturbed")
    killed, undisturbed = (checkpoint.find(project / name / "checkpoints") for name in ("killed", "undisturbed"))
    assert killed.step == undisturbed.step == 15
    for group in ("model", "optimizer"):
        for name, value in undisturbed.tensors(group).items():
            np.testing.assert_array_equal(killed.tensors(group)[name], value, err_msg=name)
    results = [Run.read(project / name).metrics["results"] for name in ("killed", "undisturbed")]
    assert results[0]["test_auc"] == results[1]["test_auc"]


def test_a_run_goes_on_with_another_number_of_processes_and_no_row_is_lost_or_repeated(tmp_path):
    program = Path(resume_program.__file__)
    resume_program.main(tmp_path, 3)
    for processes, max_steps in ((2, 6), (4, 9)):
        code, output = jobs.run("python", program, tmp_path, max_steps, processes=processes)
        assert code == 0, output
    trainer = resume_program.main(tmp_path, 10_000)
    rows = {path.name: np.fromfile(path, np.int64) for path in tmp_path.glob("rows_*")}
    assert {name: len(found) for name, found in rows.items() if name[5] != "1"} == {
        **{f"rows_2_{rank}": 24 for rank in range(2)},
        **{f"rows_4_{rank}": 24 for rank in range(4)},
    }
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(resume_program.ROWS))
    assert trainer.state.progress.samples_seen == resume_program.ROWS
    assert trainer.state.progress.epoch == 1
