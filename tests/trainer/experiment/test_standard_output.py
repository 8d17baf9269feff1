"""Standard output that cannot be written: a training is good all the same, a result that went there is not."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.experiment.cli import main
from trainer.experiment.runs.run_folder import Run

FULL = Path("/dev/full")
CONFIG = """\
experiment: full
network: {class_path: mindspore.nn.Dense, init_args: {in_channels: 2, out_channels: 1}}
loss: mindspore.nn.MSELoss
optimizer: {class_path: mindspore.nn.SGD, init_args: {learning_rate: 1e-2}}
data:
  train: {class_path: rows_of_the_output_test.rows}
fit: {epochs: 1, batch_size: 4}
callbacks:
  - callbacks.LossMonitor
  - callbacks.ModelCheckpoint
"""
DATA = """
import numpy as np

def rows():
    return {"x": np.ones((8, 2), np.float32), "label": np.ones((8, 1), np.float32)}
"""
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full")
    (folder / "rows_of_the_output_test.py").write_text(DATA)
    (folder / "full.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@contextlib.contextmanager
def full_output(buffering):
    """Put standard output on a full disk, which fails at the last flush or, unbuffered, at once."""
    with contextlib.suppress(OSError):  # of the last flush
        stream = open(FULL, "w", buffering=buffering)  # noqa: SIM115
        with contextlib.closing(stream), contextlib.redirect_stdout(stream):
            yield


BUFFERINGS = pytest.mark.parametrize("buffering", [-1, 1], ids=["buffered", "line by line"])


@BUFFERINGS
def test_a_training_is_good_without_it(buffering, project, capfd):
    with full_output(buffering):
        code = main(["fit", "full.yaml", "--set", "run_dir=runs/full"])
    assert code == 0
    told = capfd.readouterr().err.splitlines()
    assert told[-1].startswith("standard output cannot be written (No space left on device)")
    assert sum("cannot be written" in line for line in told) == 1
    assert not [line for line in told if line.startswith("error")]


@pytest.mark.long(but=["buffered-command0", "line by line-command2"])
@pytest.mark.parametrize(
    "command", [["evaluate", "full.yaml"], ["predict", "full.yaml"], ["check", "full.yaml"], ["runs"]]
)
@BUFFERINGS
def test_a_result_that_is_printed_is_not(buffering, command, project, capfd):
    arguments = command + (["--run", str(_run(project))] if command[0] in ("evaluate", "predict") else [])
    with full_output(buffering):
        code = main(arguments)
    assert code == 1
    assert capfd.readouterr().err.splitlines()[-1] == (
        "error: standard output cannot be written (No space left on device): the result is not complete"
    )


def _run(project):
    """Return the folder of a finished run."""
    folder = project / "runs" / "kept"
    if not folder.exists():
        with contextlib.redirect_stdout(None):
            assert main(["fit", "full.yaml", "--set", f"run_dir={folder}"]) == 0
    return Run.read(folder).path


def test_predictions_that_cannot_be_written_are_named_with_their_file(project, capfd):
    (project / "full.npy").symlink_to(FULL)
    assert main(["predict", "full.yaml", "--run", str(_run(project)), "--output", "full.npy"]) == 1
    assert "full.npy: the predictions cannot be written (" in capfd.readouterr().err


@pytest.mark.long(but=["full disk"])
@pytest.mark.process
@pytest.mark.parametrize("reader", ["full disk", "gone"])
def test_a_process_ends_with_the_code_of_its_command(reader):
    """Not with 120, which the interpreter gives when its last flush fails."""
    process = [sys.executable, "-m", "trainer", "runs"]
    if reader == "full disk":
        with open(FULL, "w") as output:
            ended = subprocess.run(process, stdout=output, stderr=subprocess.PIPE, text=True)
        assert ended.stderr.startswith("error: standard output cannot be written (No space left on device)")
    else:
        with subprocess.Popen(process, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
            started.stdout.close()
            ended = subprocess.CompletedProcess(process, started.wait(), stderr=started.stderr.read())
        assert ended.stderr == ""
    assert ended.returncode == 1
