"""`--resume auto`: the command line of an engine that starts a job again, which is the same every time."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from trainer.experiment.cli import main
from trainer.experiment.runs.run_folder import Run

pytestmark = pytest.mark.process

MODULE = """
import os
import signal
from pathlib import Path

import numpy as np

from callbacks import Callback


def rows():
    x = np.random.default_rng(0).normal(size=(320, 4)).astype(np.float32)
    return {"x": x, "label": x.sum(1, keepdims=True) + 1}


class KillOnce(Callback):
    def __init__(self, step: int, mark: str):
        self.step, self.mark = step, Path(mark)

    def on_train_step_end(self, trainer):
        if trainer.state.progress.global_step == self.step and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""
CONFIG = """
experiment: sums
seed: 3
network: {class_path: mindspore.nn.Dense, init_args: {in_channels: 4, out_channels: 1}}
loss: mindspore.nn.MSELoss
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 1e-2}}
data:
  train: {class_path: sums_of_the_restart_test.rows}
fit: {epochs: 2, batch_size: 20, sink_size: 1}
callbacks:
  - {class_path: sums_of_the_restart_test.KillOnce, init_args: {step: 13, mark: killed}}
  - {class_path: callbacks.ModelCheckpoint, init_args: {every: 5}}
"""
COMMAND = ["fit", "sums.yaml", "--resume", "auto"]


@pytest.fixture(scope="module")
def project(tmp_path_factory, forks):
    """A folder with a run that was killed in step 13, and one that nobody disturbed."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "sums_of_the_restart_test.py").write_text(MODULE)
    (folder / "sums.yaml").write_text(CONFIG)
    before = Path.cwd()
    os.chdir(folder)
    process = forks.start("-m", "trainer.experiment.cli", *COMMAND)
    assert process.wait() == -9, process.errors.read_text()
    assert main(["fit", "sums.yaml", "--set", "run_dir=runs/undisturbed"]) == 0
    yield folder
    os.chdir(before)


@pytest.fixture
def killed(project):
    """The killed run, as the kill left it."""
    shutil.rmtree("kept", ignore_errors=True)
    shutil.copytree("runs/sums", "kept")
    yield project
    shutil.rmtree("runs/sums", ignore_errors=True)
    shutil.copytree("kept", "runs/sums")


def test_the_same_command_begins_a_run_and_goes_on_with_it(killed):
    assert main(COMMAND) == 0
    assert [path.name for path in sorted(Path("runs").iterdir())] == ["sums", "undisturbed"]
    (entry,) = json.loads(Path("runs/sums/resumes.json").read_text())
    assert entry["snapshot"].endswith("step_00000010")
    runs = [Run.read(f"runs/{name}").metrics for name in ("sums", "undisturbed")]
    assert runs[0]["results"] == runs[1]["results"]
    assert runs[0]["progress"] == runs[1]["progress"]


def test_a_run_took_what_all_of_its_processes_took(killed, capsys):
    record = Path("runs/sums/record.jsonl")
    began = json.loads(record.read_text().splitlines()[0])["time"]
    record.write_text(record.read_text() + json.dumps({"step": 12, "time": began + 700, "train/loss": 0.5}) + "\n")
    total = 700.0
    for _ in range(2):  # after a kill, and after an end
        assert main(COMMAND) == 0
        metrics = Run.read("runs/sums").metrics
        assert metrics["seconds_before"] == pytest.approx(total, abs=1e-2)
        assert metrics["seconds"] > metrics["seconds_before"]
        total = metrics["seconds"]
        assert "of it before the resume" in capsys.readouterr().out
    entries = json.loads(Path("runs/sums/resumes.json").read_text())
    assert [entry["seconds_before"] for entry in entries] == pytest.approx([700.0, metrics["seconds_before"]], abs=1e-2)
    Path("runs/sums/metrics.json").unlink()  # as a kill leaves it, after a resume
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    started = [line["time"] for line in lines if "directions" in line][-1]
    assert main(COMMAND) == 0
    before = metrics["seconds_before"] + lines[-1]["time"] - started
    assert Run.read("runs/sums").metrics["seconds_before"] == pytest.approx(before, abs=1e-2)


def test_started_again_after_its_end_it_trains_nothing(killed):
    assert main(COMMAND) == 0
    ended = Run.read("runs/sums").metrics
    assert main(COMMAND) == 0
    again = Run.read("runs/sums").metrics
    assert again["progress"] == ended["progress"]
    assert again["results"] == ended["results"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--set", "fit.batch_size=10"], r"fit\.batch_size: 20, now 10"),
        (["--set", "optimizer.init_args.beta1=0.8"], r"optimizer\.init_args\.beta1: 0\.9, now 0\.8"),
        (["--set", "metrics=[mae]"], r"metrics: absent, now \['mae'\]"),
    ],
)
def test_another_configuration_is_refused_by_what_differs(killed, change, named, capsys):
    assert main([*COMMAND, *change]) == 2
    err = capsys.readouterr().err
    assert re.search(named, " ".join(err.split()))
    assert "--resume runs/sums --set A.B=C" in " ".join(err.split())
    assert "Traceback" not in err


def test_a_default_of_another_version_is_no_difference(killed):
    config = Path("runs/sums/config.yaml")
    text = config.read_text()
    assert "beta1: 0.9\n" in text
    config.write_text(text.replace("beta1: 0.9\n", "beta1: 0.95\n"))
    assert main(COMMAND) == 0


def test_without_a_run_here_the_mirror_is_asked(killed):
    mirrored = [*COMMAND, "--set", "mirror=" + (killed / "mirror").as_uri(), "--set", "run_dir=runs/mirrored"]
    (killed / "mirror").mkdir()
    assert main(mirrored) == 0, "there is none in the mirror either: it begins"
    first = Run.read("runs/mirrored").metrics
    shutil.rmtree("runs/mirrored")
    assert main(mirrored) == 0
    assert len(json.loads(Path("runs/mirrored/resumes.json").read_text())) == 1
    assert Run.read("runs/mirrored").metrics["results"] == first["results"]
    shutil.rmtree("runs/mirrored")


@pytest.mark.parametrize("ignored", ["run_dir=runs/elsewhere", "init_from=runs/undisturbed"])
def test_a_resumed_run_refuses_what_it_would_ignore(killed, ignored, capsys):
    assert main(["fit", "--resume", "runs/sums", "--set", ignored]) == 2
    assert f"--set {ignored.partition('=')[0]}=... has no effect" in " ".join(capsys.readouterr().err.split())
    assert not Path("runs/sums/resumes.json").exists()


def test_a_trial_of_one_batch_leaves_a_run_that_is_resumed_as_it_is(killed, capsys):
    assert main(COMMAND) == 0
    files = {name: Path("runs/sums", name).read_bytes() for name in ("metrics.json", "config.yaml", "history.json")}
    assert main(["fit", "--resume", "runs/sums", "--set", "fit.fast_dev_run=true"]) == 2
    assert "fit.fast_dev_run trains new weights" in " ".join(capsys.readouterr().err.split())
    assert {name: Path("runs/sums", name).read_bytes() for name in files} == files


def test_auto_needs_a_configuration(project, capsys):
    assert main(["fit", "--resume", "auto"]) == 2
    assert "auto is not a run folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recorded", "overrides", "resumed", "code"),
    [
        (True, [], [], 0),
        (False, [], [], 2),  # somebody wrote it
        (True, ["callbacks.1.init_args.earlier=8"], [], 2),
        (True, [], ["callbacks.1.init_args.earlier=7"], 2),
        (True, [], ["callbacks.1.init_args={earlier: 7}"], 2),
    ],
)
def test_a_recorded_default_of_an_argument_that_is_gone_does_not_close_the_run(
    project, tmp_path, capsys, recorded, overrides, resumed, code
):
    run = shutil.copytree("runs/undisturbed", tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["callbacks"][1]["init_args"]["earlier"] = 7
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    versions = json.loads((run / "versions.json").read_text())
    versions["defaults"] += ["callbacks.1.init_args.earlier"] * recorded
    (run / "versions.json").write_text(json.dumps(versions))
    (run / "resumes.json").write_text(json.dumps([{"overrides": resumed}]))
    sets = [word for override in overrides for word in ("--set", override)]
    assert main(["check", str(run), *sets]) == code
    assert ("ModelCheckpoint has no argument 'earlier'" in capsys.readouterr().err) == (code == 2)
