"""`trainer fit --baseline`: plain models beside the result, and what each column is worth to it."""

import json
import sys
import weakref

import numpy as np
import pytest
from mindspore import nn

from tests.own_tables import write_csv
from trainer import Trainer
from trainer.experiment.cli import main
from trainer.features import Features, Numeric
from trainer.features.raw_rows import RawData
from trainer.models import LogisticRegression
from trainer.report.baseline import Baseline
from trainer.report.run_data import read_record

CONFIG = """\
experiment: t
features:
  columns:
    - {kind: numeric, name: x}
    - {kind: numeric, name: noise}
    - {kind: categorical, name: kind}
    - {kind: categorical, name: other}
    - {kind: list, name: tags, separator: "|", max_length: 3}
  label: click
network: {model: deepfm, dim: 2, hidden: [4]}
loss: {class_path: mindspore.nn.BCEWithLogitsLoss}
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 1e-5}}
metrics: [log_loss, auc]
data:
  train: {class_path: trainer.features.RawFiles, init_args: {path: t.csv, part: train}}
  valid: {class_path: trainer.features.RawFiles, init_args: {path: t.csv, part: valid}}
  test: {class_path: trainer.features.RawFiles, init_args: {path: t.csv, part: test}}
fit: {epochs: 1, batch_size: 256}
callbacks:
  - {class_path: callbacks.ModelCheckpoint, init_args: {monitor: val_log_loss, restore_best: true}}
"""
ROWS = 3000
PLANTED, NOISE = ("x", "kind", "tags"), ("noise", "other")
LOGISTIC, BOOSTED = "logistic regression", "gradient boosting"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, ROWS)).round(3)
    kind, other = rng.integers(0, 6, (2, ROWS))
    tags = ["|".join(rng.choice(list("uvw"), rng.integers(1, 4), replace=False)) for _ in range(ROWS)]
    score = x + np.array([-2, -1, 0, 0, 1, 2])[kind] + 2 * np.char.count(np.array(tags), "u") - 1
    columns = {"x": x, "noise": noise, "kind": np.array(list("abcdef"))[kind], "other": other, "tags": tags}
    write_csv(columns | {"click": (rng.random(ROWS) < 1 / (1 + np.exp(-score))).astype(int)}, tmp_path / "t.csv")
    (tmp_path / "t.yaml").write_text(CONFIG)
    return tmp_path


@pytest.mark.long
def test_a_baseline_that_wins_is_said_so_and_a_network_that_begins_as_it_loses_nothing(folder, capsys):
    assert main(["fit", "t.yaml", "--baseline"]) == 0, capsys.readouterr()
    printed = capsys.readouterr().out
    found = json.loads((folder / "runs/t/metrics.json").read_text())["baseline"]
    assert list(found["plain"]) == [LOGISTIC, BOOSTED]
    assert found["model"]["log_loss"] > 0.68 > 0.5 > found["plain"][LOGISTIC]["log_loss"]
    assert found["best"] in found["plain"]
    assert f"the baseline wins: {found['best']} is better by log_loss" in printed
    for values in found["plain"].values():
        assert f"{values['log_loss']:.4f}     {values['auc']:.4f}" in printed

    begins = ["--set", "baseline={start: true}", "--set", "fit.valid_on_start=true"]
    assert main(["fit", "t.yaml", "--set", "data.test.init_args.part=valid", *begins]) == 0, capsys.readouterr()
    found = json.loads((folder / "runs/t-2/metrics.json").read_text())["baseline"]
    assert found["model"]["log_loss"] == pytest.approx(found["plain"][LOGISTIC]["log_loss"], abs=1e-3)
    validated = read_record(folder / "runs/t-2/record.jsonl").series["val/log_loss"]
    assert validated.steps[0] == 0
    assert validated.values[0] == pytest.approx(found["plain"][LOGISTIC]["log_loss"], abs=1e-4)
    least = min(mean - deviation for mean, deviation in (found["importance"][name] for name in PLANTED))
    assert least > 10 * max(mean + deviation for mean, deviation in (found["importance"][name] for name in NOISE))
    page_of(folder / "runs/t-2", found, capsys)


def page_of(run, found, capsys):
    assert main(["report", str(run)]) == 0, capsys.readouterr()
    page = (run / "report.html").read_text("utf-8")
    assert f"<td>{BOOSTED}</td>" in page
    assert page.count("Loss of quality when a column is shuffled</") == 2  # a figure and a table with the deviations
    assert f'<td>{"x"}</td><td class="number">{found["importance"]["x"][0]:.6g}</td>' in page
    figures = [part.partition("</figcaption>")[0] for part in page.split("<figcaption>")[1:]]
    assert {"Loss", "AUC, validation"} <= {*figures}
    assert "Log loss, validation" not in figures  # it is val/loss once more


def test_without_scikit_learn_or_a_linear_part_there_is_the_regression_and_it_is_said(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    without_linear_part = ["--set", "network={model: autoint, dim: 4, hidden: [4]}", "--set", "baseline={start: true}"]
    assert main(["fit", "t.yaml", *without_linear_part]) == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert "no comparison with gradient boosting" in printed
    assert "AutoInt has no linear part, so it keeps its initial weights" in printed
    assert list(json.loads((folder / "runs/t/metrics.json").read_text())["baseline"]["plain"]) == [LOGISTIC]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("metrics=[]", "needs metrics, such as metrics: [log_loss, auc]"),
        ("baseline={begin: true}", "section baseline has no argument 'begin'"),
        ("baseline={train: t.csv}", "is given elsewhere: data.train"),
        ("features.label=[click, x]", "one label"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_training(folder, capsys, change, message):
    assert main(["fit", "t.yaml", "--baseline", "--set", change]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "runs/t").exists()
    assert main(["fit", "t.yaml", "--baseline", "--set", "data.test=null", "--set", "data.valid=null"]) == 2
    assert "data.test or data.valid" in capsys.readouterr().err


def test_plain_models_are_ranked_by_the_first_metric_that_ranks(folder, capsys):
    """Slices have several values, and a bias has no best one."""
    metrics = ["--set", "features.group=kind", "--set", "metrics=[auc/kind, log_loss]"]
    assert main(["fit", "t.yaml", "--baseline", *metrics]) == 0, capsys.readouterr()
    found = json.loads((folder / "runs/t/metrics.json").read_text())["baseline"]
    assert found["best"] == min(found["plain"], key=lambda name: found["plain"][name]["log_loss"])
    assert found["importance"]["kind"][0] < 0.1  # a loss of log loss, not of an AUC
    assert main(["fit", "t.yaml", "--baseline", "--set", "metrics=[acc/kind]", "--set", "features.group=kind"]) == 2
    assert "one declares whether higher is better; received acc/kind" in " ".join(capsys.readouterr().err.split())


def test_plain_models_of_counts_predict_counts_where_the_network_predicts_their_logarithms(folder, capsys):
    rng = np.random.default_rng(1)
    x = rng.normal(size=ROWS).round(3)
    write_csv({"x": x, "count": rng.poisson(5 + x)}, folder / "t.csv")
    columns = ["--set", "features={columns: [{kind: numeric, name: x}], label: count}"]
    options = ["--set", "loss=mindspore.nn.PoissonNLLLoss", "--set", "metrics=[rmse]", "--set", "callbacks=[]"]
    assert main(["fit", "t.yaml", "--baseline", *columns, *options]) == 0, capsys.readouterr()
    plain = json.loads((folder / "runs/t/metrics.json").read_text())["baseline"]["plain"]
    assert plain["ridge regression"]["rmse"] == pytest.approx(5**0.5, rel=0.15)


def test_a_plain_model_that_a_metric_cannot_read_is_left_out(folder, capsys):
    rng = np.random.default_rng(1)
    x = rng.normal(size=ROWS).round(3)
    write_csv({"x": x, "count": rng.poisson(np.exp(x))}, folder / "t.csv")
    columns = ["--set", "features={columns: [{kind: numeric, name: x}], label: count}", "--set", "callbacks=[]"]
    options = ["--set", "loss=mindspore.nn.PoissonNLLLoss", "--set", "metrics=[poisson_deviance]"]
    assert main(["fit", "t.yaml", "--baseline", *columns, *options]) == 0, capsys.readouterr()
    said = " ".join(capsys.readouterr().err.split())
    assert "no comparison with ridge regression: PoissonDeviance takes rates above 0" in said
    found = json.loads((folder / "runs/t/metrics.json").read_text())["baseline"]
    assert "ridge regression" not in found["plain"]
    assert found["model"]["poisson_deviance"] > 0


class Parts(RawData):
    """Rows in parts; counts how many parts are held at the same time."""

    in_memory = False

    def __init__(self, rows, size):
        self.rows, self.size, self.most = rows, size, 0

    def names(self, csv_format):
        return list(self.rows)

    def parts(self, features, bad_rows, *, labelled=True, kept=False):
        held = []
        for first in range(0, len(self.rows["x"]), self.size):
            rows = {name: column[first : first + self.size] for name, column in self.rows.items()}
            part = features.read(rows, labelled=labelled, kept=kept)
            held = [*(array for array in held if array() is not None), weakref.ref(part.columns["x"])]
            self.most = max(self.most, len(held))
            yield part


def test_the_test_rows_are_compared_part_by_part():
    rng = np.random.default_rng(0)
    x = rng.normal(size=60_000)
    rows = {"x": x, "click": (rng.random(len(x)) < 1 / (1 + np.exp(-x))).astype(np.float32)}
    features = Features([Numeric("x")], label="click")
    net = LogisticRegression(features)
    optimizer = nn.Adam(net.trainable_params(), 0.1)
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), optimizer, metrics=["log_loss", "auc"], features=features)
    train = {name: column[:2000] for name, column in rows.items()}
    trainer.fit(train, epochs=1, batch_size=200)
    parts = Parts(rows, 2000)
    found = Baseline(train, parts).compare(trainer)
    assert parts.most <= 8, "columns are shuffled in the first 10,000 rows, and all others are read and forgotten"
    plain, whole = found["plain"], trainer.evaluate(rows)
    assert found["model"]["auc"] == pytest.approx(whole["auc"])
    assert list(plain) == [LOGISTIC, BOOSTED]
    of_all = Baseline(train, rows).compare(trainer)
    assert {name: values["auc"] for name, values in plain.items()} == pytest.approx(
        {name: values["auc"] for name, values in of_all["plain"].items()}
    )
    assert found["importance"] == of_all["importance"]


class OneNumber(nn.Cell):
    def __init__(self, outputs):
        super().__init__()
        self.dense = nn.Dense(1, outputs)

    def construct(self, numbers):
        return self.dense(numbers)


def compared(x, label, loss, outputs, metric):
    features = Features([Numeric("x")], label="y", label_dtype="int32" if outputs > 1 else "float32")
    net = OneNumber(outputs)
    trainer = Trainer(net, loss, nn.Adam(net.trainable_params(), 0.1), metrics=[metric], features=features)
    rows = {"x": x, "y": label}
    trainer.fit(rows, 1, batch_size=100, callbacks=[])
    return Baseline(rows, rows).compare(trainer)["plain"]


def test_classes_without_rows_and_ignored_labels_leave_the_others_their_numbers():
    x = np.random.default_rng(0).normal(size=1000)
    label = np.digitize(x, [-1, 0, 1])
    for classes in ([0, 1, 3, 3], [1, 1, 3, 3], [3, 3, 3, 3], [0, 1, 3, -100]):
        plain = compared(x, np.array(classes)[label], nn.CrossEntropyLoss(), 4, "accuracy")
        assert {name: values["accuracy"] > 0.95 for name, values in plain.items()} == {LOGISTIC: True, BOOSTED: True}
    plain = compared(x, np.ones(1000), nn.BCEWithLogitsLoss(), 1, "accuracy")
    assert plain[BOOSTED]["accuracy"] == 1


def test_labels_between_0_and_1_are_compared_with_the_regression_alone(caplog):
    x = np.random.default_rng(0).normal(size=1000)
    plain = compared(x, 1 / (1 + np.exp(-x)), nn.BCEWithLogitsLoss(), 1, "log_loss")
    assert list(plain) == [LOGISTIC]
    assert "no comparison with gradient boosting: Unknown label type" in caplog.text
