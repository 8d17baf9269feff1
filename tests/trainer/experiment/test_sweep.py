"""`trainer sweep`: real trials in processes of their own, a kill in the middle, and what searches propose."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.errors import ConfigurationError
from trainer.experiment.cli import main
from trainer.experiment.commands.sweep_command import _parse_variation
from trainer.experiment.configuration.loader import load_config
from trainer.experiment.runs.run_folder import project_paths, record_resume, write_record
from trainer.experiment.sweep import resume, sweep
from trainer.experiment.sweep_plan import (
    Plan,
    Range,
    Trial,
    drop_torn_line,
    measurements,
    plain,
    read_plan,
    read_trials,
)
from trainer.experiment.sweep_search import SEARCHES

DATA = """
import numpy as np

from callbacks import Callback


class CSVLogger(Callback):
    def __init__(self, path):
        self.path = path

    def on_train_end(self, trainer):
        open(self.path, "a").close()


def rows(seed=0):
    x = np.random.default_rng(seed).normal(size=(200, 4)).astype(np.float32)
    return {"x": x, "label": x.sum(1, keepdims=True)}


def stream():
    for seed in range(3):
        yield rows(seed)
"""
CONFIG = """\
experiment: line
network: {class_path: mindspore.nn.Dense, init_args: {in_channels: 4, out_channels: 1}}
loss: mindspore.nn.MSELoss
optimizer: {class_path: mindspore.nn.SGD, init_args: {learning_rate: 0.1}}
data:
  train: {class_path: rows_of_the_sweep_test.rows}
  valid: {class_path: rows_of_the_sweep_test.rows, init_args: {seed: 1}}
fit: {epochs: 2, batch_size: 20}
callbacks: [{class_path: callbacks.ModelCheckpoint}]
"""
STREAM = "  stream: {class_path: rows_of_the_sweep_test.stream}\n"
RATE = "optimizer.init_args.learning_rate"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a sweep")
    (folder / "rows_of_the_sweep_test.py").write_text(DATA)
    (folder / "line.yaml").write_text(CONFIG)
    return folder / "line.yaml"


@pytest.mark.long
@pytest.mark.process
def test_a_sweep_that_was_killed_goes_on_where_it_was(config, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "rates"
    command = [sys.executable, "-m", "mindspore_trainer", "sweep", str(config), "--output", str(folder)]
    command += ["--vary", f"{RATE}=1e-4,0.1", "--vary", "fit.epochs=1,2"]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not (folder / "000" / "metrics.json").is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    left_behind = [trial for trial in read_trials(folder) if trial.state == "waiting"]
    first = (folder / "000" / "versions.json").read_text()
    assert len(read_trials(folder)) < 4

    read = []
    monkeypatch.setattr(
        "trainer.experiment.sweep.measurements",
        lambda folder, monitor: read.append(folder.name) or measurements(folder, monitor),
    )
    assert main(["sweep", "--resume", str(folder), "--processes", "2"]) == 0
    lines = (folder / "003" / "record.jsonl").read_text().splitlines()
    assert 0 < read.count("003") <= len(lines) + 1, "a record is read when it has grown, and at the end"
    assert (folder / "000" / "versions.json").read_text() == first, "a trial that had ended was trained again"
    trials = read_trials(folder)
    assert [trial.state for trial in trials] == ["done"] * 4
    for trial in left_behind:  # the process that the kill left behind was waited for, not disturbed
        assert "in use" not in (folder / f"{trial.number:03d}.log").read_text()
    assert [tuple(trial.values.values()) for trial in trials] == [(1e-4, 1), (1e-4, 2), (0.1, 1), (0.1, 2)]
    for trial in trials:
        history = json.loads((trial.folder / "history.json").read_text())
        assert trial.value == pytest.approx(min(history["history"]["val_loss"]))
    table = capsys.readouterr().out.splitlines()
    assert table[2].split()[:4] == ["003", "done", "0.1", "2"]  # the best rate with the more epochs is first
    page = (folder / "report.html").read_text("utf-8")
    assert "Values of the trials" in page
    assert [trial.number for trial in resume(folder)] == [3, 2, 1, 0]  # nothing is left to do

    with pytest.raises(ConfigurationError, match="holds another sweep"):
        sweep(config, {RATE: [0.5]}, monitor="val_loss", folder=folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", f"{RATE}=0.1..1"], "a grid takes lists"),
        (["--vary", f"{RATE}=0.1..1", "--search", "random"], "needs the number of trials"),
        (["--vary", f"{RATE}=1..0.1", "--search", "random", "--trials", "2"], "low < high"),
        (["--vary", f"{RATE}s=0.1,1"], "learning_rate"),
        (["--vary", f"{RATE}=[0.1,1"], f"--vary {RATE}=[0.1,1: invalid YAML"),
        (["--vary", f"{RATE}=0.1..1:lin", "--search", "random", "--trials", "2"], "'lin'"),
        (["--vary", f"{RATE}=0.1,1", "--prune"], "prune works with search 'optuna'"),
        ([], "needs values to vary"),
        (["--vary", f"{RATE}=x,0.2"], "x"),
        (
            ["--vary", "seed=1", "--set", "run_dir=runs/one"],
            "gives each trial a run folder of its own; received run_dir",
        ),
        (["--vary", "run_dir=runs/one,runs/two"], "received run_dir"),
        (["--vary", "seed=1", "--vary", "seed=2"], "all values of a setting at once; received seed twice"),
    ],
)
def test_what_cannot_work_is_reported_before_the_first_trial(config, tmp_path, capsys, arguments, message):
    assert main(["sweep", str(config), "--output", str(tmp_path / "none"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_values_on_the_command_line():
    assert _parse_variation("a.b=1,2.5,x") == ("a.b", [1, 2.5, "x"])
    assert _parse_variation("a=1e-4..1e-1:log") == ("a", (1e-4, 1e-1, "log"))
    assert _parse_variation("a=8..64") == ("a", (8, 64))
    assert _parse_variation("network.hidden=[64,32],[128]") == ("network.hidden", [[64, 32], [128]])
    assert _parse_variation("a=on,010,'x,y'") == ("a", ["on", 10, "x,y"])  # as in a file
    assert _parse_variation("a=../one,../two") == ("a", ["../one", "../two"])
    assert _parse_variation("a='1..2'") == ("a", ["1..2"])


def test_random_draws_depend_on_seed_and_number_alone_and_stay_in_their_ranges():
    plan = Plan("x", {"rate": Range(1e-4, 1e-1, log=True), "dim": Range(4, 8), "kind": ["a", "b"]}, "random", 50)
    draws = [SEARCHES["random"](plan, []).propose(number) for number in range(200)]
    assert draws == [SEARCHES["random"](plan, []).propose(number) for number in range(200)]
    assert all(1e-4 <= draw["rate"] <= 1e-1 and draw["dim"] in range(4, 9) for draw in draws)
    assert 60 < sum(draw["rate"] < 10**-2.5 for draw in draws) < 140  # half of them below the middle of the logarithms
    assert {draw["kind"] for draw in draws} == {"a", "b"}


@pytest.mark.long
def test_trials_at_the_same_time_write_publish_and_mirror_to_places_of_their_own(config, tmp_path):
    publishing = config.with_name("publishing.yaml")
    publisher = "{class_path: trainer.serving.Publish, init_args: {root: published, every: 10}}"
    logger = "{class_path: callbacks.CSVLogger, init_args: [rates.csv]}"
    saver = "ModelCheckpoint, init_args: {dirpath: snapshots}}"
    other = "{class_path: rows_of_the_sweep_test.CSVLogger, init_args: {path: theirs}}"
    profiler = "{class_path: callbacks.Profiler, init_args: {steps: 2, skip: 2, folder: measured}}"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    server = f"{{class_path: callbacks.PrometheusMonitor, init_args: {{port: {port}}}}}"
    added = f"{saver}, {publisher}, {publisher}, {logger}, {other}, {profiler}, {server}]"
    publishing.write_text(CONFIG.replace("ModelCheckpoint}]", added))
    overrides = [f"mirror={(tmp_path / 'mirror').as_uri()}"]
    options = {"monitor": "val_loss", "processes": 2, "overrides": overrides}
    trials = sweep(publishing, {RATE: [0.1, 0.01]}, folder=tmp_path / "sweep", **options)
    assert [trial.state for trial in trials] == ["done", "done"]
    for trial in trials:
        for name in ("published", "published-2"):
            assert (trial.folder / name / "current.json").is_file()
            assert (tmp_path / "mirror" / trial.folder.name / name / "current.json").is_file()
        assert (trial.folder / "checkpoints" / "last").is_file()
        assert (trial.folder / "log.csv").read_text().startswith("step,")
        assert (trial.folder / "profile").is_dir()
    assert not any(Path(name).exists() for name in ("published", "snapshots", "rates.csv", "measured"))
    assert Path("theirs").is_file()  # a class of the user's own keeps what it is given
    assert (
        len(sweep(publishing, {RATE: [0.1, 0.01]}, folder=tmp_path / "sweep", **options)) == 2
    )  # nothing is left to do


def test_a_sweep_whose_trials_all_failed_has_a_page(config, tmp_path, capsys):
    command = ["sweep", str(config), "--vary", "data.train.init_args.seed=-1", "--output", str(tmp_path / "sweep")]
    with project_paths(config):
        assert main(command) == 1
    assert "000 failed" in " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "sweep" / "report.html").read_text("utf-8")
    assert "<td>000</td><td>failed</td>" in page
    assert "waiting</td>" not in page


@pytest.mark.long
def test_windows_of_a_stream_rank_trials_too(config, tmp_path):
    online = config.with_name("online.yaml")
    online.write_text(
        CONFIG.replace("  train: {class_path: rows_of_the_sweep_test.rows}\n", "")
        .replace("  valid: {class_path: rows_of_the_sweep_test.rows, init_args: {seed: 1}}\n", STREAM)
        .replace("fit: {epochs: 2, batch_size: 20}", "online: {window: 200}")
    )
    trials = sweep(
        online, {RATE: [1e-4, 0.1]}, folder=tmp_path / "sweep", monitor="window_loss", mode="min", command="online"
    )
    assert [(trial.number, trial.state) for trial in trials] == [(1, "done"), (0, "done")]
    for trial in trials:
        windows = json.loads((trial.folder / "history.json").read_text())["history"]["window_loss"]
        assert len(windows) == 3
        assert trial.value == pytest.approx(min(windows))


@pytest.mark.long
def test_a_trial_that_cannot_start_has_failed_and_the_others_go_on(config, tmp_path):
    """Values that are right each, and wrong together: AdamWeightDecay has no momentum."""
    together = config.with_name("together.yaml")
    together.write_text(CONFIG)
    vary = {
        "optimizer.class_path": ["mindspore.nn.SGD", "mindspore.nn.AdamWeightDecay"],
        "optimizer.init_args.momentum": [0.9],
    }
    plan = Plan(str(together), vary, monitor="val_loss")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(plain(plan)))
    for _ in range(2):
        trials = resume(tmp_path / "sweep")
        assert [trial.state for trial in trials] == ["done", "failed"]
        assert "momentum" in (tmp_path / "sweep" / "001.log").read_text()


def test_a_metric_that_trials_do_not_record_is_refused_after_the_first_one(config, tmp_path, capsys):
    arguments = ["--vary", f"{RATE}=0.1,0.01", "--monitor", "val_lss", "--output", str(tmp_path / "sweep")]
    assert main(["sweep", str(config), *arguments]) == 2
    assert "loss, val_loss; received 'val_lss'; did you mean 'val_loss'?" in capsys.readouterr().err
    assert [trial.state for trial in read_trials(tmp_path / "sweep")] == ["done"]
    assert main(["sweep", "--resume", str(tmp_path / "sweep")]) == 2
    assert len(read_trials(tmp_path / "sweep")) == 1


def test_optuna_learns_from_earlier_trials_and_ends_those_without_a_prospect(tmp_path):
    plan = Plan("x", {"rate": Range(0.0, 1.0)}, "optuna", 60, prune=True, mode="min")
    search = SEARCHES["optuna"](plan, [])
    tried = []
    for number in range(40):
        values = search.propose(number)
        loss = (values["rate"] - 0.7) ** 2
        trial = Trial(number, values, tmp_path / f"{number:03d}", "done", loss)
        assert not (number < 2 and search.is_hopeless(trial, 1, loss))
        search.ended(trial, loss)
        tried.append(trial)
    assert abs(min(tried, key=lambda trial: trial.value).values["rate"] - 0.7) < 0.05
    waiting = Trial(40, {"rate": 0.25}, tmp_path / "040")
    again = SEARCHES["optuna"](plan, [*tried, waiting])  # as after a kill
    assert again.optuna_trials[40].params == {"rate": 0.25}
    late = Trial(41, again.propose(41), tmp_path / "041")
    assert abs(late.values["rate"] - 0.7) < 0.3
    for number, loss in ((42, 0.1), (43, 0.1)):
        other = Trial(number, again.propose(number), tmp_path / f"{number:03d}", "done", loss)
        again.is_hopeless(other, 1, loss)
        again.ended(other, loss)
    assert again.is_hopeless(late, 1, 9.0)
    assert not again.is_hopeless(waiting, 1, 0.01)


@pytest.mark.parametrize("state", ["done", "pruned"])
def test_after_a_resume_trials_are_compared_with_those_before_it(tmp_path, state):
    plan, before = Plan("x", {"rate": Range(0.0, 1.0)}, "optuna", 6, prune=True, mode="min"), []
    for number in range(3):
        trial = Trial(number, {"rate": 0.5}, tmp_path / f"{number:03d}", "pruned" if number == 2 else state, 0.1)
        trial.folder.mkdir()
        lines = [json.dumps({"step": step, "val/loss": loss}) + "\n" for step, loss in ((10, 0.2), (20, 0.1))]
        (trial.folder / "record.jsonl").write_text("".join(lines))
        before.append(trial)
    search = SEARCHES["optuna"](plan, before)
    late = Trial(3, search.propose(3), tmp_path / "003")
    assert search.is_hopeless(late, 10, 9.0) == (state == "done")  # the median is that of the complete trials


def test_optuna_draws_other_values_after_a_resume(tmp_path):
    plan = Plan("x", {"rate": Range(0.0, 1.0)}, "optuna", 6, mode="min")
    search = SEARCHES["optuna"](plan, [])
    done = []
    for number in range(3):
        trial = Trial(number, search.propose(number), tmp_path / f"{number:03d}", "done", 0.5)
        search.ended(trial, 0.5)
        done.append(trial)
    again = SEARCHES["optuna"](plan, done)
    rates = [trial.values["rate"] for trial in done] + [again.propose(number)["rate"] for number in range(3, 6)]
    assert len(set(rates)) == 6


def test_a_line_that_a_kill_cut_off_is_removed_before_the_next_one_is_written(tmp_path):
    path = tmp_path / "trials.jsonl"
    drop_torn_line(path)
    assert not path.exists()
    path.write_text('{"rate": 1}\n{"ra')
    drop_torn_line(path)
    assert path.read_text() == '{"rate": 1}\n'
    drop_torn_line(path)
    assert path.read_text() == '{"rate": 1}\n'


def test_a_folder_without_a_sweep_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="holds no sweep"):
        read_plan(Path(tmp_path))


def ended_trial(folder, monitor):
    """Write a sweep with one trial, which has recorded the metric twice."""
    (folder / "000").mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps(plain(Plan("line.yaml", {RATE: [0.1]}, monitor=monitor))))
    (folder / "trials.jsonl").write_text(json.dumps({RATE: 0.1}) + "\n")
    (folder / "000" / "metrics.json").write_text(json.dumps({"stop_reason": "limit: epochs=2"}))
    lines = [{"directions": {"window_auc": True, "val_auc": True, "val_bias": None}}]
    lines += [{"window/auc": v, "val/auc_1": v, "val/bias": v} for v in (0.75, 0.5)]
    record = "".join(json.dumps({"step": step, **line}) + "\n" for step, line in enumerate(lines))
    (folder / "000" / "record.jsonl").write_text(record)


@pytest.mark.parametrize("monitor", ["window_auc", "auc", "val_auc_1"])
def test_a_metric_of_a_window_or_of_one_label_has_the_direction_of_the_metric(tmp_path, monitor):
    ended_trial(tmp_path, monitor)
    (trial,) = resume(tmp_path)
    assert trial.value == 0.75


def test_a_metric_without_a_direction_ranks_no_trials(tmp_path):
    ended_trial(tmp_path, "val_bias")
    with pytest.raises(ConfigurationError, match=r"more or less of 'val_bias' is better.*--mode min or --mode max"):
        resume(tmp_path)


def test_a_sweep_of_an_experiment_that_has_changed_is_refused(config, tmp_path):
    """Otherwise the results of the file as it was would be shown as those of the file as it is."""
    path, folder = tmp_path / "line.yaml", tmp_path / "rates"
    path.write_text(CONFIG)
    (folder / "000").mkdir(parents=True)
    plan = Plan(str(path), {RATE: [0.1]})
    (folder / "sweep.json").write_text(json.dumps(plain(plan)))
    (folder / "trials.jsonl").write_text(json.dumps({RATE: 0.1}) + "\n")
    with project_paths(config):
        write_record(folder / "000", load_config(path, [f"{RATE}=0.1", f"run_dir={folder / '000'}"]), "fit")
        (folder / "000" / "metrics.json").write_text(json.dumps({"stop_reason": "limit: epochs=2"}))
        (trial,) = sweep(path, {RATE: [0.1]}, monitor="val_loss", folder=folder)
        assert trial.state == "done"
        path.write_text(CONFIG.replace("epochs: 2", "epochs: 20"))
        with pytest.raises(ConfigurationError, match=r"has changed since .* began.*fit.epochs: 2, now 20.*--output"):
            sweep(path, {RATE: [0.1]}, monitor="val_loss", folder=folder)
        with pytest.raises(ConfigurationError, match="has changed"):
            resume(folder)


def test_a_trial_that_was_resumed_by_hand_with_other_settings_is_no_other_experiment(config, tmp_path, caplog):
    path, folder = tmp_path / "line.yaml", tmp_path / "rates"
    path.write_text(CONFIG)
    trial = folder / "000"
    trial.mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps(plain(Plan(str(path), {RATE: [0.1]}))))
    (folder / "trials.jsonl").write_text(json.dumps({RATE: 0.1}) + "\n")
    with project_paths(config):
        write_record(trial, load_config(path, [f"{RATE}=0.1", f"run_dir={trial}"]), "fit")
        record_resume(
            trial, load_config(trial, ["fit.epochs=20", "optimizer.init_args={learning_rate: 0.5}"]), None, 1.0
        )
        (trial / "metrics.json").write_text(json.dumps({"stop_reason": "limit: epochs=20"}))
        (ended,) = resume(folder)
        assert ended.state == "done"
        assert "trial 0 was resumed by hand with fit.epochs=20, optimizer.init_args=" in caplog.text
        path.write_text(CONFIG.replace("batch_size: 20", "batch_size: 10"))
        with pytest.raises(ConfigurationError, match=r"began.*comparable: fit.batch_size: 20, now 10\. Choose"):
            resume(folder)


def test_a_resumed_sweep_takes_no_options_of_a_new_one(tmp_path, capsys):
    arguments = ["--vary", f"{RATE}=1", "--trials", "9", "--set", "seed=2"]
    assert main(["sweep", "--resume", str(tmp_path), *arguments]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "takes only --processes; received --vary, --trials, --set. To change it, begin another" in said
