"""Declared label, weight, group and kept columns with every kind of loss: used as declared everywhere, or refused."""

import dataclasses
import json
import re
from pathlib import Path

import mindspore
import numpy as np
import pandas as pd
import pytest
from mindspore import Tensor, amp, nn
from sklearn import metrics as sklearn_metrics

from tests.trainer.role_cases import BINARY, CASES, DATA, FILES, ITSELF, RATE, ROWS, Case, make_trainer, rows_of, start
from trainer import Trainer
from trainer.errors import ConfigurationError
from trainer.experiment.cli import main
from trainer.features import Categorical, Features, Numeric
from trainer.streams import ReplayStream

X = np.stack([DATA["a"], DATA["b"]], 1).astype(np.float64)


def loss_and_gradient(case: Case, weight, bias, rows):
    """Return the weighted loss of some rows and its gradient in logits, in float64."""
    data, w = rows_of(case), DATA["w"][rows]
    z = X[rows] @ weight.T + bias
    if case.outputs == 2:  # two tasks
        parts = [case.value(z[:, k : k + 1], data[n][rows].astype(np.float64)) for k, n in enumerate(("y", "v"))]
        values, gradient = sum(p[0] for p in parts), np.concatenate([p[1] for p in parts], 1)
        counted = w
    else:
        values, gradient, counts = case.value(z, data["y"][rows].astype(np.float64))
        counted = w * counts
    total = counted.sum() if case.mean else 1.0
    return (values * w).sum() / total, gradient * w[:, None] / total, total


def trained(case: Case, batches):
    """Return weight and bias after gradient descent in float64, and (loss, denominator) of each update."""
    rate = RATE if case.mean else RATE / 10
    weight, bias, losses = start(case.outputs).astype(np.float64), np.zeros(case.outputs), []
    weight *= not case.from_zero
    for rows in batches:
        loss, gradient, total = loss_and_gradient(case, weight, bias, rows)
        losses.append((loss, total))
        weight, bias = weight - rate * gradient.T @ X[rows], bias - rate * gradient.sum(0)
    return weight, bias, losses


THIRDS = [np.arange(ROWS)[n : n + 16] for n in range(0, ROWS, 16)]
USED = [case for case in CASES if case.used]
REFUSED = [case for case in CASES if not case.used]


@pytest.mark.long(but=["BCEWithLogitsLoss, mean"])
@pytest.mark.parametrize("case", USED, ids=[case.loss for case in USED])
def test_used_as_declared(case):
    """One pass trains the weights of NumPy; evaluate, validation and windows weigh loss and metrics."""
    trainer = make_trainer(case)
    data = rows_of(case)
    weight, bias, losses = trained(case, THIRDS)
    trainer.fit(data, batch_size=16, shuffle=False, valid_dataset=data, callbacks=[])
    np.testing.assert_allclose(trainer.network.dense.weight.asnumpy(), weight, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(trainer.network.dense.bias.asnumpy(), bias, rtol=1e-4, atol=1e-5)
    by_weight = case.mean and case.result != ITSELF
    means, totals = np.transpose(losses)
    expected = np.average(means, weights=totals if by_weight else None)
    assert trainer.history.history["loss"][-1] == pytest.approx(expected, rel=1e-4)
    evaluated = trainer.evaluate(data, batch_size=16)
    parts = [loss_and_gradient(case, weight, bias, rows) for rows in THIRDS]
    of_all = np.average([p[0] for p in parts], weights=[p[2] for p in parts] if by_weight else None)
    assert evaluated["loss"] == pytest.approx(of_all, rel=1e-4)
    assert trainer.history.history["val_loss"][-1] == pytest.approx(evaluated["loss"], rel=1e-6)
    if case.metrics:
        check_metrics(case, evaluated, trainer.predict(data).astype(np.float64)[:, 0], data)
    if "predict" in case.verbs:
        inputs = {name: data[name] for name in ("a", "b")}
        np.testing.assert_allclose(
            np.squeeze(trainer.predict(inputs)), np.squeeze(X @ weight.T + bias), rtol=1e-3, atol=1e-5
        )
        check_windows(case)


def check_metrics(case: Case, found, z, data):
    y, w = data["y"].astype(np.float64), DATA["w"]
    p = 1 / (1 + np.exp(-z))
    known = {
        "auc": lambda: sklearn_metrics.roc_auc_score(y, z, sample_weight=w),
        "log_loss": lambda: sklearn_metrics.log_loss(y, p, sample_weight=w),
        "accuracy": lambda: sklearn_metrics.accuracy_score(y, z > 0, sample_weight=w),
        "rmse": lambda: sklearn_metrics.mean_squared_error(y, z, sample_weight=w) ** 0.5,
        "mae": lambda: sklearn_metrics.mean_absolute_error(y, z, sample_weight=w),
        "r2": lambda: sklearn_metrics.r2_score(y, z, sample_weight=w),
    }
    for name in case.metrics:
        assert found[name] == pytest.approx(known[name](), rel=1e-5), name


def check_windows(case: Case):
    """A window's loss and metrics are those of the rows before each update, weighted."""
    trainer = make_trainer(case)
    trainer.optimizer.learning_rate.set_data(Tensor(0.0, mindspore.float32))
    trainer.features.is_fitted = True
    data = rows_of(case)
    trainer.online_train(ReplayStream(data), batch_size=16, window=ROWS, callbacks=[])
    window = trainer.state.window
    weight, bias = start(case.outputs).astype(np.float64), np.zeros(case.outputs)
    parts = [loss_and_gradient(case, weight, bias, rows) for rows in THIRDS]
    by_weight = case.mean and case.result != ITSELF
    expected = np.average([p[0] for p in parts], weights=[p[2] for p in parts] if by_weight else None)
    assert window["window_loss"] == pytest.approx(expected, rel=1e-4)
    if case.metrics:
        names = {name: window[f"window_{name}"] for name in case.metrics}
        check_metrics(case, names, (X @ weight.T + bias)[:, 0], data)


@pytest.mark.long(but=["a value per row, of your own", "MultiTaskLoss"])
@pytest.mark.parametrize("case", [case for case in USED if case.parts], ids=lambda case: case.loss)
def test_micro_batches_at_o2_are_one_weighted_batch(case):
    """The micro-batches' weights add up to very different sums, the last to 0."""
    scaler = amp.DynamicLossScaler(16.0, 2, 1000)
    trainer = make_trainer(case, gradient_accumulation_steps=4, amp_level="O2", loss_scale=scaler)
    trainer.fit(rows_of(case), 3, batch_size=ROWS // 4, shuffle=False, callbacks=[])
    weight, bias, _ = trained(case, [np.arange(ROWS)] * 3)
    np.testing.assert_allclose(trainer.network.dense.weight.asnumpy(), weight, atol=2e-3)
    np.testing.assert_allclose(trainer.network.dense.bias.asnumpy(), bias, atol=2e-3)
    assert trainer.read_counters()["skipped"] == 0


def test_group_and_kept_columns_beside_a_weight():
    """Metrics by group are weighted in every verb, and the kept column comes back beside unweighted predictions."""
    case = CASES[0]
    trainer = make_trainer(case, metrics={"gauc/g", "auc/g"})
    trainer.optimizer.learning_rate.set_data(Tensor(0.0, mindspore.float32))
    trainer.fit(BINARY, batch_size=16, shuffle=False, valid_dataset=BINARY, callbacks=[])
    z = (X @ start(1).T.astype(np.float64))[:, 0]
    aucs = {}
    for group in range(8):
        rows = (DATA["g"] == group) & (DATA["w"] > 0)
        if len({*BINARY["y"][rows]}) == 2:
            y, w = BINARY["y"][rows], DATA["w"][rows]
            aucs[group] = sklearn_metrics.roc_auc_score(y, z[rows], sample_weight=w), w.sum()
    assert len(aucs) > 2
    expected = {"gauc": np.average([a for a, _ in aucs.values()], weights=[w for _, w in aucs.values()])}
    expected |= {f"auc/g={group}": auc for group, (auc, _) in aucs.items()}
    evaluated = trainer.evaluate(BINARY, batch_size=16)
    validated = {name: values[-1] for name, values in trainer.history.history.items()}
    trainer.online_train(ReplayStream(BINARY), batch_size=16, window=ROWS, callbacks=[])
    for name, value in expected.items():
        assert evaluated[name] == pytest.approx(value, rel=1e-6), name
        assert validated[f"val_{name}"] == pytest.approx(value, rel=1e-6), name
        assert trainer.state.window[f"window_{name}"] == pytest.approx(value, rel=1e-6), name
    kept = trainer.predict({name: DATA[name] for name in ("a", "b", "g")}, keep=True)
    np.testing.assert_array_equal(np.asarray(kept["g"]).astype(np.int64), DATA["g"])
    np.testing.assert_allclose(np.asarray(kept["prediction"]).reshape(-1), z, rtol=1e-4, atol=1e-6)


EXPERIMENT = """
experiment: roles
network:
  class_path: mindspore.nn.Dense
  init_args: {{in_channels: 2, out_channels: {outputs}, weight_init: zeros, bias_init: zeros}}
loss: {loss}
optimizer: {{class_path: mindspore.nn.SGD, init_args: {{learning_rate: {rate}}}}}
metrics: {metrics}
features:
  columns: [{{kind: numeric, name: a}}, {{kind: numeric, name: b}}]
  label: {label}
  weight: w
  group: g
  event_time: t
data: {{train: rows.csv, test: rows.csv}}
fit: {{batch_size: 16, epochs: 1, shuffle: false}}
"""


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(BINARY).to_csv("rows.csv", index=False)

    def write(case, **changed):
        label = case.label if isinstance(case.label, str) else [*case.label]
        rate = RATE if case.mean else RATE / 10
        about = {"outputs": case.outputs, "rate": rate, "metrics": [*case.metrics], "label": label, "loss": case.yaml}
        Path("roles.yaml").write_text(EXPERIMENT.format(**about | changed))

    return write


IN_FILES = [case for case in CASES if case.yaml]


@pytest.mark.long(but=["BCEWithLogitsLoss, mean", "BCEWithLogitsLoss, sum", "RMSELoss", "one label for two tasks"])
@pytest.mark.parametrize("case", IN_FILES, ids=[case.loss for case in IN_FILES])
def test_an_experiment_is_told_what_its_roles_do(case, experiment, capsys):
    experiment(case)
    code, told = main(["check", "roles.yaml"]), capsys.readouterr()
    if case.used:
        assert code == 0
        assert "'w' weighs its rows, sum(w l) / sum(w)" in told.out
    else:
        assert code == 2
        assert re.search(case.result, told.err)
        assert main(["fit", "roles.yaml"]) == 2
    if FILES[1] in case.verbs and case.used:
        assert main(["fit", "roles.yaml"]) == 0
        found = json.loads(Path("runs/roles/metrics.json").read_text())["results"]
        case = dataclasses.replace(case, from_zero=True)
        weight, bias, _ = trained(case, THIRDS)
        loss = loss_and_gradient(case, weight, bias, np.arange(ROWS))[0]
        assert found["test_loss"] == pytest.approx(loss, rel=1e-4)
        z = (X @ weight.T + bias)[:, 0]
        check_metrics(case, {name: found[f"test_{name}"] for name in case.metrics}, z, BINARY)


@pytest.mark.parametrize("case", REFUSED, ids=[case.loss for case in REFUSED])
def test_refused_before_anything_is_compiled(case):
    with pytest.raises(ConfigurationError, match=case.result):
        make_trainer(case)


def test_raw_rows_without_a_declared_label_are_refused_by_name(experiment, capsys):
    """The last feature would be taken for the label."""
    net = nn.Dense(1, 1)
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), "sgd", features=Features([Numeric("a"), Categorical("g")]))
    wanted = "no column is declared as label, and BCEWithLogitsLoss takes 1 after the prediction; add label="
    for call in (
        lambda: trainer.fit(BINARY, batch_size=16, callbacks=[]),
        lambda: trainer.evaluate(BINARY, batch_size=16),
        lambda: trainer.online_train(ReplayStream(BINARY), batch_size=16, callbacks=[]),
    ):
        with pytest.raises(ConfigurationError, match=wanted):
            call()
    assert trainer.builder.programs == 0
    experiment(CASES[0])
    text = Path("roles.yaml").read_text().replace("  label: y\n  weight: w\n", "")
    Path("roles.yaml").write_text(text)
    for command in ("check", "fit"):
        assert main([command, "roles.yaml"]) == 2
        assert wanted in capsys.readouterr().err
