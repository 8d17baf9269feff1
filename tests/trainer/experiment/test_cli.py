"""The command line on real data: 569 breast tumours, bundled with scikit-learn."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.terminals import real_terminal
from trainer.checkpoint.folder_lock import claim
from trainer.experiment.cli import main
from trainer.experiment.runs.run_folder import Run
from trainer.report.run_data import read_record

ROOT = Path(__file__).parents[3]
DATA = """
import numpy as np
from sklearn.datasets import load_breast_cancer


def rows(part: str):
    data = load_breast_cancer()
    x = ((data.data - data.data.mean(0)) / data.data.std(0)).astype(np.float32)
    y = data.target.astype(np.float32)[:, None]
    keep = {"train": slice(0, 380), "valid": slice(380, 480), "test": slice(480, None)}[part]
    return {"x": x[keep], "label": y[keep]}


def stream():
    data = rows("train")
    while True:
        for first in range(0, 380, 38):
            yield {name: column[first : first + 38] for name, column in data.items()}


class Report:
    def __call__(self, trainer, run_dir):
        (run_dir / "report.txt").write_text("written")
        kinds = [type(callback).__name__ for callback in trainer.callbacks]
        return {"steps": trainer.state.progress.global_step, "epochs": trainer.history.epoch, "callbacks": kinds}
"""
CONFIG = """\
experiment: tumours
seed: 3
network: {class_path: mindspore.nn.Dense, init_args: {in_channels: 30, out_channels: 1}}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 3e-2}}
metrics: [auc]
data:
  train: {class_path: tumours_of_the_cli_test.rows, init_args: {part: train}}
  valid: {class_path: tumours_of_the_cli_test.rows, init_args: {part: valid}}
  test: {class_path: tumours_of_the_cli_test.rows, init_args: {part: test}}
fit: {epochs: 2, batch_size: 20}
callbacks:
  - class_path: callbacks.ProgressBar
  - {class_path: callbacks.ModelCheckpoint, init_args: {monitor: val_auc}}
report: tumours_of_the_cli_test.Report
"""
ONLINE = """\
experiment: online
network: {class_path: mindspore.nn.Dense, init_args: {in_channels: 30, out_channels: 1}}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 3e-2}}
metrics: [auc]
data:
  stream: {class_path: trainer.streams.IterableStream, init_args: {source: tumours_of_the_cli_test.stream}}
  test: {class_path: tumours_of_the_cli_test.rows, init_args: {part: test}}
online:
  window: {class_path: trainer.Window, init_args: {rows: 100}}
  batch_size: 20
  sink_size: 5
  max_steps: 10
callbacks:
  - {class_path: callbacks.ModelCheckpoint, init_args: {every: window}}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "tumours_of_the_cli_test.py").write_text(DATA)
    (folder / "configs").mkdir()
    (folder / "configs" / "tumours.yaml").write_text(CONFIG)
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def finished(project):
    """The folder of a run of two epochs."""
    assert main(["fit", "configs/tumours.yaml"]) == 0
    return Path("runs/tumours")


def test_fit_leaves_everything_needed_to_know_and_repeat_the_run(finished):
    run = Run.read(finished)
    assert run.config["optimizer"]["init_args"]["beta1"] == 0.9
    assert run.config["fit"]["epochs"] == 2
    assert run.versions["seed"] == 3
    assert run.versions["mindspore"].startswith("2.")
    assert run.metrics["stop_reason"] == "limit: epochs=2"
    assert run.metrics["progress"]["global_step"] == 2 * 19
    assert 0.9 < run.metrics["results"]["test_auc"] <= 1
    # the test evaluation in between has not taken away what the training left to report on
    assert run.metrics["report"] == {
        "steps": 38,
        "epochs": [1, 2],
        "callbacks": ["RunRecord", "History", "ProgressBar", "ModelCheckpoint"],
    }
    assert (finished / "report.txt").read_text() == "written"
    history = json.loads((finished / "history.json").read_text())
    assert history["steps"]["val_auc"] == [19, 38]


def test_the_same_configuration_and_seed_give_the_same_run_in_a_folder_of_its_own(finished, capsys):
    assert main(["fit", "runs/tumours/config.yaml"]) == 0
    assert "runs/tumours is in use by an earlier run; this one goes to runs/tumours-2" in capsys.readouterr().err
    first, second = Run.read(finished), Run.read("runs/tumours-2")
    assert second.metrics["results"] == first.metrics["results"]


def test_a_run_killed_before_its_first_snapshot_begins_again_from_what_it_was_given(finished):
    begin = [
        "--set",
        f"init_from={finished}",
        "--set",
        "fit.epochs=1",
        "--set",
        "optimizer.init_args.learning_rate=0.0",
    ]
    assert main(["fit", "configs/tumours.yaml", "--set", "run_dir=runs/begun", *begin]) == 0
    whole = Run.read("runs/begun").metrics["results"]
    shutil.rmtree("runs/begun/checkpoints")  # as a kill before the first snapshot leaves it
    assert main(["fit", "--resume", "runs/begun"]) == 0
    assert Run.read("runs/begun").metrics["results"] == whole
    assert whole["val_auc"] == pytest.approx(Run.read(finished).metrics["results"]["val_auc"], abs=1e-6)


def test_columns_of_arrays_cannot_be_kept(finished, capsys):
    assert main(["predict", str(finished), "--output", "answers.csv", "--keep", "x"]) == 2
    assert "predict --keep takes columns of raw rows, which need the section features" in capsys.readouterr().err


def test_a_resume_that_is_rejected_leaves_the_results_of_the_run(finished, capsys):
    before = [(finished / name).read_bytes() for name in ("metrics.json", "history.json", "config.yaml")]
    assert main(["fit", "--resume", str(finished), "--set", "metrics=[accuracy]"]) == 2
    assert "no metric of that name is produced" in capsys.readouterr().err
    assert [(finished / name).read_bytes() for name in ("metrics.json", "history.json", "config.yaml")] == before


def test_a_run_does_not_go_on_from_the_snapshot_of_another_run_in_the_same_folder(project, capsys):
    shared = ["configs/tumours.yaml", "--set", "callbacks.1.init_args.dirpath=together", "--set", "fit.epochs=1"]
    assert main(["fit", *shared, "--set", "run_dir=runs/one"]) == 0
    assert "holds snapshots of an earlier run" not in capsys.readouterr().err
    assert main(["fit", *shared, "--set", "run_dir=runs/other"]) == 0
    assert "together holds snapshots of an earlier run" in capsys.readouterr().err
    assert main(["fit", "--resume", "runs/one", "--set", "fit.epochs=2"]) == 2
    assert "is of another run, runs/other" in capsys.readouterr().err
    shutil.copytree("runs/other", "runs/copy")
    assert main(["fit", "--resume", "runs/copy", "--set", "fit.epochs=2"]) == 2
    assert "copy the snapshots to runs/copy/checkpoints and add --set" in capsys.readouterr().err
    shutil.copytree("together", "runs/copy/checkpoints")
    own = ["--set", "callbacks.1.init_args.dirpath=null"]
    assert main(["fit", "--resume", "runs/copy", *own, "--set", "fit.epochs=2"]) == 0
    assert Run.read("runs/copy").metrics["progress"]["epoch"] == 2
    Path("runs/other").rename("runs/moved")
    assert main(["fit", "--resume", "runs/moved", "--set", "fit.epochs=2"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "runs/moved"]) == 1
    assert "puts snapshots elsewhere, give --checkpoint FOLDER" in capsys.readouterr().err
    assert main(["evaluate", "runs/moved", "--checkpoint", "together"]) == 0


def test_what_is_set_when_a_run_begins_again_is_recorded(finished):
    assert main(["fit", "configs/tumours.yaml", "--set", "run_dir=runs/again", "--set", "fit.epochs=1"]) == 0
    shutil.rmtree("runs/again/checkpoints")  # as a kill before the first snapshot leaves it
    assert main(["fit", "--resume", "runs/again", "--set", "network.init_args.has_bias=false"]) == 0
    assert Run.read("runs/again").config["network"]["init_args"]["has_bias"] is False
    (entry,) = json.loads(Path("runs/again/resumes.json").read_text())
    assert entry["snapshot"] is None
    assert main(["evaluate", "runs/again"]) == 0, "the network is the one that was trained"


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(finished, capsys):
    assert main(["fit", "configs/tumours.yaml", "--set", "run_dir=runs/long", "--set", "fit.epochs=4"]) == 0
    shutil.copytree(finished, "runs/resumed")  # a run folder may be moved
    assert main(["fit", "--resume", "runs/resumed", "--set", "fit.epochs=4"]) == 0
    long, resumed = Run.read("runs/long"), Run.read("runs/resumed")
    assert resumed.metrics["progress"]["global_step"] == 4 * 19
    assert resumed.metrics["results"] == long.metrics["results"]
    (entry,) = json.loads(Path("runs/resumed/resumes.json").read_text())
    assert entry["overrides"] == ["fit.epochs=4"]
    assert entry["snapshot"].endswith("step_00000038")
    assert resumed.config["fit"]["epochs"] == 4
    capsys.readouterr()
    assert main(["compare", "runs/tumours", "runs/resumed"]) == 0
    table = capsys.readouterr().out
    assert "fit.epochs" in table
    assert "test_auc" in table
    assert "learning_rate" not in table


@pytest.mark.long
def test_a_learning_rate_that_is_set_when_a_run_is_resumed_is_that_of_the_training(finished):
    """The snapshot holds the one before."""
    slower = Path("runs/slower")
    shutil.copytree(finished, slower)
    rate = ["--set", "optimizer.init_args.learning_rate=1e-3"]
    for epochs, options in ((3, rate), (4, []), (5, ["--set", "optimizer.init_args={learning_rate: 2e-3}"])):
        assert main(["fit", "--resume", str(slower), "--set", f"fit.epochs={epochs}", *options]) == 0
    rates = read_record(slower / "record.jsonl").series["train/learning_rate"]
    by_step = dict(zip(rates.steps, rates.values, strict=True))
    assert [by_step[19 * epoch] for epoch in range(1, 6)] == pytest.approx([3e-2, 3e-2, 1e-3, 1e-3, 2e-3])


def test_runs_are_listed_and_any_number_of_them_compared(finished, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    for name, rate in (("slow", 0.001), ("fast", 0.1)):
        sets = [f"run_dir=runs/{name}", f"optimizer.init_args.learning_rate={rate}"]
        assert main(["fit", "configs/tumours.yaml", *(part for text in sets for part in ("--set", text))]) == 0
    shown = capsys.readouterr().out
    best = Run.read("runs/fast").metrics["best"]["val_auc"]
    assert f"{best['value']:.6g}" in shown
    assert f"step_{best['step']:08d}" in shown or "none kept" in shown
    with claim("runs/slow", "run folder"):
        assert main(["runs"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[2:]}
    assert list(lines)[:2] == ["runs/fast", "runs/slow"]
    assert "running" in lines["runs/slow"]
    assert lines["runs/fast"].split()[1:3] == ["finished", "38"]
    assert f"val_auc {best['value']:.4g}" in lines["runs/fast"]
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["compare", "runs/tumours", "runs/slow", "runs/fast"]) == 0
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 60
    assert table.index("Configuration") < table.index("Results")
    rate = next(line for line in table.splitlines() if line.startswith("optimizer.init_args.learning_rate"))
    assert rate.split()[2] == "0.001"
    # what is the same in all of them is no difference
    assert "seconds" in table
    for same in ("steps", "rows", "state"):
        assert not re.search(rf"^{same} ", table, re.MULTILINE)
    assert main(["compare", "runs/slow"]) == 2
    assert "two or more run folders" in capsys.readouterr().err


@pytest.mark.long
def test_on_a_terminal_results_are_shown_once_and_lines_break_between_words(project, monkeypatch):
    name = "a-run-with-a-name-of-some-length"
    words = ["fit", "configs/tumours.yaml", "--set", f"run_dir=runs/{name}"]
    (project / "runs" / name).mkdir(parents=True)
    (project / "runs" / name / "config.yaml").write_text("{}")  # taken: the message about it is a long line
    monkeypatch.setenv("COLUMNS", "80")
    with real_terminal(80) as (file, read):
        monkeypatch.setattr(sys, "stderr", file)
        monkeypatch.setattr(sys, "stdout", file)
        assert main(words) == 0
        assert main([*words, "--set", "fit.epoch=2"]) == 2
        text = read()
    lines = re.split(r"[\r\n]+", text)
    assert max(map(len, lines)) <= 80
    assert f"runs/{name} is in use by an earlier run; this one goes to runs/{name}-2 " in " ".join(text.split()) + " "
    assert "section fit has no argument 'epoch'; accepts epochs," in " ".join(text.split())
    assert sum(line.startswith("val_auc ") for line in lines) == 1
    assert sum(line.startswith("test_auc ") for line in lines) == 1
    assert text.count("limit: epochs=2") == 1  # why it ended
    assert "% training" in text
    assert f"snapshot runs/{name}-2/checkpoints/step_00000038" in lines


def test_evaluate_and_predict_use_the_weights_of_the_run(finished, capsys):
    assert main(["evaluate", str(finished), "--checkpoint", "last"]) == 0
    shown = capsys.readouterr().out
    recorded = Run.read(finished).metrics["results"]["test_auc"]
    assert f"{recorded:.6g}" in shown
    assert main(["predict", "configs/tumours.yaml", "--run", str(finished), "--output", "out/predicted.npy"]) == 0
    predicted = np.load("out/predicted.npy")
    assert predicted.shape == (89, 1)
    assert main(["predict", str(finished), "--output", "out/archive.npz"]) == 0
    assert "(89, 1) written to out/archive.npz" in " ".join(capsys.readouterr().out.split())
    np.testing.assert_array_equal(np.load("out/archive.npz")["arr_0"], predicted)
    assert main(["evaluate", str(finished), "--split", "vald"]) == 2
    assert "data: has no dataset 'vald'; it has test, valid, train" in capsys.readouterr().err


def test_the_batch_size_of_an_evaluation_may_be_a_variable(finished, capsys, monkeypatch):
    monkeypatch.setenv("ROWS_OF_THE_TEST", "30")
    capsys.readouterr()
    assert main(["evaluate", str(finished), "--set", "fit.batch_size=${env:ROWS_OF_THE_TEST}"]) == 0, (
        capsys.readouterr()
    )
    assert main(["evaluate", str(finished)]) == 0
    shown = re.findall(r"test_?auc *([\d.]+)|auc *([\d.]+)", capsys.readouterr().out)
    assert len(set(shown)) == 1


def test_a_run_of_an_experiment_that_is_named_like_a_second_run_is_not_taken_for_it(project, capsys):
    """Copies of a configuration are often named so: visits and visits-2."""
    for name in ("copied", "copied-2"):
        assert main(["fit", "configs/tumours.yaml", "--set", f"experiment={name}", "--set", "fit.epochs=1"]) == 0
    command = ["evaluate", "configs/tumours.yaml", "--set", "experiment=copied"]
    capsys.readouterr()
    assert main(command) == 0
    assert "test (runs/copied/checkpoints" in capsys.readouterr().out
    assert main(["fit", "configs/tumours.yaml", "--set", "experiment=copied", "--set", "fit.epochs=1"]) == 0
    capsys.readouterr()
    assert main(command) == 0
    assert "test (runs/copied-3/checkpoints" in capsys.readouterr().out
    assert main(["evaluate", "configs/tumours.yaml", "--set", "experiment=new", "--set", "run_dir=runs/copied"]) == 2
    assert "there is no run of configs/tumours.yaml in runs/copied yet" in " ".join(capsys.readouterr().err.split())
    odd = ["--set", "run_dir=runs/lr[1]", "--set", "fit.epochs=1"]
    assert main(["fit", "configs/tumours.yaml", *odd]) == 0
    capsys.readouterr()
    assert main(["evaluate", "configs/tumours.yaml", *odd]) == 0
    assert "test (runs/lr[1]/checkpoints" in capsys.readouterr().out


@pytest.mark.parametrize("part", ["", "/checkpoints", "/checkpoints/best"])
def test_a_snapshot_is_evaluated_where_it_is_mirrored(finished, capsys, part):
    capsys.readouterr()
    assert main(["evaluate", str(finished), "--checkpoint", finished.absolute().as_uri() + part]) == 0, (
        capsys.readouterr()
    )
    auc = capsys.readouterr().out.split("auc")[-1]
    assert main(["evaluate", str(finished), "--checkpoint", "best" if part.endswith("best") else "last"]) == 0
    assert capsys.readouterr().out.split("auc")[-1].split() == auc.split()
    assert main(["evaluate", str(finished), "--checkpoint", f"{finished.absolute().as_uri()}/absent"]) == 1
    assert "there is no snapshot in file:///" in capsys.readouterr().err


def test_fit_tests_the_averages_that_evaluate_reads_from_the_run(project, capsys):
    text = CONFIG.replace("experiment: tumours", "experiment: averaged")
    average = "callbacks:\n  - {class_path: callbacks.EMA, init_args: {decay: 0.99}}\n"
    (project / "configs" / "averaged.yaml").write_text(text.replace("callbacks:\n", average))
    assert main(["fit", "configs/averaged.yaml"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "runs/averaged", "--checkpoint", "last"]) == 0
    recorded = Run.read("runs/averaged").metrics["results"]["test_loss"]
    assert f"{recorded:.6g}" in capsys.readouterr().out


def test_a_record_that_the_experiment_names_is_that_of_the_run(project, capsys):
    named = project / "recorded.yaml"
    named.write_text(CONFIG.replace("callbacks.ProgressBar", "callbacks.RunRecord"))
    assert main(["fit", str(named), "--set", f"run_dir={project / 'recorded'}"]) == 0, capsys.readouterr()
    assert len(read_record(project / "recorded" / "record.jsonl").series["val/auc"].values) == 2


def test_check_runs_nothing(project, monkeypatch, capsys):
    (project / "explosive_of_the_cli_test.py").write_text(
        "class Net:\n    pass\ndef data(part: str):\n    raise AssertionError('check must not read data')\n"
    )
    sets = ["--set", "data.train.class_path=explosive_of_the_cli_test.data"]
    assert main(["check", "configs/tumours.yaml", *sets]) == 0
    assert "nothing wrong" in capsys.readouterr().out
    assert main(["check", "configs/tumours.yaml", *sets, "--set", "trainer.amp_level=O4"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("--set trainer.amp_level=O4: trainer.amp_level: takes 'O0', 'O1', 'O2', 'O3', ")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("fit.sink_size=0", "fit.sink_size: takes a whole number >= 1, or -1 to let the trainer choose; received 0"),
        ("run_dir=.", "run_dir: received '.' (str); accepts the path of a folder"),
        ("run_dir=/", "run_dir: received '/' (str); accepts the path of a folder"),
        ("online.sink_size=-1", "online.sink_size: takes a whole number >= 1; received -1"),
        ("init_from=runs/nowhere", "init_from.path: takes a snapshot, a run folder, a .ckpt file or a published model"),
        ("init_from={path: runs/nowhere}", "that exists; received 'runs/nowhere'"),
    ],
)
def test_check_names_what_would_fail_when_training_begins(project, override, message, capsys):
    assert main(["check", "configs/tumours.yaml", "--set", override]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"--set {override}: ")
    assert message in err


def test_a_run_needs_the_path_that_it_began_from_no_more(finished, project):
    began = ["--set", f"init_from={finished}", "--set", "run_dir=runs/began"]
    assert main(["check", "configs/tumours.yaml", "--set", "fit.sink_size=-1", *began]) == 0
    assert main(["evaluate", str(finished), "--set", "init_from=runs/gone"]) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        # known only when the object is made
        ("optimizer.init_args.learning_rate=-1.0", "configs/tumours.yaml:5:25: optimizer: mindspore.nn.Adam cannot be"),
        ("network.class_path=tumours_of_the_cli_test.rows", "network.init_args.in_channels: rows has no argument"),
        # known only when training begins
        ("fit.epochs=0", "epochs"),
        ("callbacks.1.init_args={monitor: val_acu, mode: max}", "did you mean 'val_auc'?"),
        (
            "data.train.init_args.part=trian",
            "data.train: tumours_of_the_cli_test.rows cannot be created: KeyError: 'trian'",
        ),
    ],
)
def test_what_cannot_work_is_reported_without_a_traceback_and_leaves_no_run_folder(project, override, expected, capfd):
    assert main(["fit", "configs/tumours.yaml", "--set", "run_dir=runs/refused", "--set", override]) == 2
    err = capfd.readouterr().err
    assert expected in err
    assert "Traceback" not in err
    assert not Path("runs/refused").exists()


def test_a_snapshot_of_another_network_is_a_failed_run_not_a_wrong_configuration(finished, capsys):
    sets = ["--set", "network.init_args.out_channels=2"]
    assert main(["evaluate", str(finished), *sets]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: the snapshot does not fit")
    assert "weight" in err


def start(forks, command, run, overrides):
    """Start the command line in a process of its own, with a run folder of the name `run`."""
    arguments = ["-m", "trainer.experiment.cli", *command, "--set", f"run_dir=runs/{run}", "--set", overrides]
    return forks.start(*arguments, environment={**os.environ, "PYTHONUNBUFFERED": "1"})


def wait_until(condition, process):
    while not condition():
        assert process.poll() is None, process.errors.read_text()
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.process
def test_sigterm_winds_the_run_up_and_it_can_be_resumed(project, forks, capsys):
    process = start(forks, ["fit", "configs/tumours.yaml"], "stopped", "fit.epochs=1000000")
    try:
        wait_until(lambda: "\nepoch 3/" in process.errors.read_text(), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, process.errors.read_text()
    finally:
        process.kill()
    rest = process.errors.read_text()
    assert "stopped by SIGTERM" in rest
    stopped = Run.read("runs/stopped").metrics
    assert stopped["stop_reason"] == "signal: SIGTERM"
    assert main(["runs"]) == 0
    assert re.search(r"runs/stopped +interrupted ", capsys.readouterr().out)
    done = stopped["progress"]["epoch"]
    assert stopped["snapshot"].endswith(f"step_{stopped['progress']['global_step']:08d}")
    assert main(["fit", "--resume", "runs/stopped", "--set", f"fit.epochs={done + 2}"]) == 0
    assert Run.read("runs/stopped").metrics["progress"]["epoch"] == done + 2


def test_online_trains_on_a_stream_and_goes_on_where_it_stopped(project, capsys):
    (project / "configs" / "online.yaml").write_text(ONLINE)
    assert main(["online", "configs/online.yaml"]) == 0
    first = Run.read("runs/online").metrics
    assert first["progress"]["global_step"] == 10
    assert main(["online", "--resume", "runs/online", "--set", "online.max_steps=25"]) == 0
    second = Run.read("runs/online").metrics
    assert second["progress"] == {"epoch": 0, "step_in_epoch": 25, "global_step": 25, "samples_seen": 500}
    assert second["results"]["lifetime_auc"] > 0.8
    assert second["results"]["test_auc"] > 0.9
    assert main(["fit", "configs/online.yaml"]) == 2
    assert "data.train: is missing; trainer fit needs it" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.process
def test_a_run_is_not_resumed_twice_at_once(project, capsys, forks):
    (project / "configs" / "online.yaml").write_text(ONLINE)
    process = start(forks, ["online", "configs/online.yaml"], "twice", "online.max_steps=100000000")
    try:
        wait_until(Path("runs/twice/checkpoints/last").exists, process)
        assert main(["online", "--resume", "runs/twice"]) == 2
        assert f"runs/twice is being written by process {process.pid} on" in capsys.readouterr().err
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    finally:
        process.kill()
    assert not list(Path("runs/twice").rglob(".lock"))
    done = Run.read("runs/twice").metrics["progress"]["global_step"]
    assert main(["online", "--resume", "runs/twice", "--set", f"online.max_steps={done + 5}"]) == 0


def test_a_function_given_by_name_is_looked_up_before_anything_runs(project, capsys):
    (project / "configs" / "online.yaml").write_text(ONLINE.replace("test.stream", "test.streem"))
    assert main(["check", "configs/online.yaml"]) == 2
    assert "data.stream.init_args.source: received 'tumours_of_the_cli_test.streem'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "--item-id", "id"], "export --item-id names a column of --items FILE, which is not given"),
        (["export", "--user-id", "id"], "export --user-id names a column of --users FILE, which is not given"),
        (["export", "--publish", "p", "--output", "o"], "export --output cannot be combined with --publish"),
        (["export", "--publish", "p", "--no-onnx"], "export --no-onnx cannot be combined with --publish"),
        (["features", "--to", "folder"], "features --to needs --fit"),
        (["features", "--engine", "ray"], "features --engine needs --fit"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(arguments, message, capsys):
    assert main([*arguments, "configs/tumours.yaml"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_wrong_command_line_is_a_number_not_an_exit(capsys):
    assert main(["ft"]) == 2
    assert "did you mean 'fit'?" in capsys.readouterr().err
    assert main(["fit"]) == 2
    assert main(["evaluate"]) == 2
    assert main(["--help"]) == 0
    assert main(["compare", "nowhere", "nowhere"]) == 2
    capsys.readouterr()
    assert main(["fit", "a.yaml", "--resum", "b", "--sett", "a=1"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("usage: trainer fit ")
    assert "unrecognized arguments: --sett a=1; did you mean '--set'?" in shown


@pytest.mark.process
def test_help_does_not_import_mindspore():
    code = "import sys; from trainer.experiment.cli import main; main(['--help']); main(['compare', 'a', 'b']); "
    code += "sys.exit('mindspore' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_the_version_is_reported(capsys):
    import trainer

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mindspore-trainer {trainer.__version__}\n"
