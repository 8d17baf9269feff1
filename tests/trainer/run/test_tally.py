"""What an evaluation adds up: metrics by group and by slice read columns that the network does not take."""

import numpy as np
import pytest
from mindspore import nn
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

from tests.trainer.run.networks import OneNumber
from trainer import MultiTaskLoss, Trainer
from trainer.errors import DataError
from trainer.features import Features, Numeric


class Linear(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(30, 1, weight_init="ones", bias_init="zeros")

    def construct(self, features):
        return self.dense(features)


@pytest.fixture(scope="module")
def table():
    data = load_breast_cancer()
    features = (-(data.data - data.data.mean(0)) / data.data.std(0)).astype(np.float32)
    user = np.random.default_rng(0).integers(0, 25, 569)
    site = np.array(["north", "south"])[user % 2]
    return {"user": user, "site": site, "features": features, "label": data.target.astype(np.float32)[:, None]}


@pytest.fixture(scope="module")
def trainer():
    network = Linear()
    optimizer = nn.SGD(network.trainable_params(), 0.0)
    return Trainer(network, nn.BCEWithLogitsLoss(), optimizer, metrics=["auc", "gauc/user", "auc/site"])


def expected(table):
    scores, label = table["features"].sum(axis=1), table["label"][:, 0]
    total = weight = 0.0
    for user in np.unique(table["user"]):
        mine = table["user"] == user
        if 0 < label[mine].sum() < mine.sum():
            total, weight = total + mine.sum() * roc_auc_score(label[mine], scores[mine]), weight + mine.sum()
    rows_of = {name: table["site"] == name for name in ("north", "south")}
    sites = {name: roc_auc_score(label[rows], scores[rows]) for name, rows in rows_of.items()}
    return total / weight, sites


def test_groups_and_slices_are_read_from_columns_kept_aside(trainer, table):
    gauc, sites = expected(table)
    results = trainer.evaluate(table, batch_size=100)
    assert results["gauc"] == pytest.approx(gauc, abs=1e-6)
    assert {name: results[f"auc/site={name}"] for name in sites} == pytest.approx(sites, abs=1e-6)
    # training data may have these columns too
    history = trainer.fit(table, 1, table, callbacks=[], batch_size=100).history
    assert history["val_gauc"][-1] == pytest.approx(gauc, abs=1e-6)


def test_a_column_that_is_missing_is_named(trainer, table):
    bare = {name: table[name] for name in ("features", "label")}
    with pytest.raises(DataError, match=r"reads the column 'user', which the dataset does not have"):
        trainer.evaluate(bare, batch_size=100)


def test_a_dict_of_columns_is_one_validation_set_and_a_dict_of_datasets_several(trainer, table):
    south = table["site"] == "south"
    sets = {"south": {name: column[south] for name, column in table.items()}, "stored": lambda: batches(table)}
    history = trainer.fit(table, 1, sets, callbacks=[], batch_size=100).history
    assert {"val_south_loss", "val_south_auc", "val_stored_gauc"} <= set(history)
    assert history["val_stored_gauc"][-1] == pytest.approx(expected(table)[0], abs=1e-6)
    assert "val_loss" not in history


def batches(table):
    for start in range(0, 569, 100):
        yield {name: column[start : start + 100] for name, column in table.items()}


@pytest.mark.long
@pytest.mark.parametrize("tasks", [False, True])
def test_logits_between_0_and_1_are_not_taken_for_probabilities(table, tasks):
    network = Linear()
    network.dense.weight.set_data(network.dense.weight * 0)  # every logit is 0 before the first step
    loss = (
        MultiTaskLoss({"benign": nn.BCEWithLogitsLoss()}, labels={"benign": "label"})
        if tasks
        else nn.BCEWithLogitsLoss()
    )
    optimizer = nn.SGD(network.trainable_params(), 0.0)
    trainer = Trainer(network, loss, optimizer, metrics=["log_loss", "accuracy", "log_loss/site"])
    own, of = ("benign_", "_benign") if tasks else ("", "")
    known = {name: table[name] for name in ("site", "features", "label")}
    results = trainer.evaluate(known, batch_size=100)
    trainer.online_train(iter([known]), callbacks=[], window=569)
    windows = trainer.state.window
    half = table["label"].mean()
    for found, name in ((results, own), (windows, f"window{of}_")):
        assert found[f"{name}log_loss"] == pytest.approx(np.log(2)), sorted(found)
        assert found[f"{name}log_loss/site=north"] == pytest.approx(np.log(2))
        assert found[f"{name}accuracy"] == pytest.approx(1 - half)
    assert windows[f"window{of}_calibration"] == pytest.approx(0.5 / half)


def test_metrics_weigh_rows_of_arrays_without_names_too():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 40)).astype(np.float32)
    weight = rng.random(40).astype(np.float32)
    network, features = OneNumber(), Features([Numeric("x")], label="y", weight="w")
    optimizer = nn.SGD(network.trainable_params(), 0.0)
    trainer = Trainer(network, nn.MSELoss(), optimizer, metrics={"mae"}, features=features)
    expected = pytest.approx((weight * np.abs(x - y)).sum() / weight.sum(), rel=1e-5)
    assert trainer.evaluate((x[:, None], y, weight), batch_size=16)["mae"] == expected
    batches = [(x[n : n + 10, None], y[n : n + 10], weight[n : n + 10]) for n in range(0, 40, 10)]
    assert trainer.evaluate(batches)["mae"] == expected
