"""Labels that the loss ignores, and rows of weight 0: metrics and losses are those of the other rows."""

import io

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from callbacks import EarlyStopping, ProgressBar, TerminateOnNaN
from tests.trainer.run.networks import OneNumber
from trainer import MultiTaskLoss, Trainer
from trainer.errors import DataError
from trainer.features import Features, Numeric
from trainer.streams import ReplayStream

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
CLASSES = np.where(np.arange(40) < 30, X.argmax(1), 0).astype(np.int32)
IGNORED = np.where(np.arange(40) % 2, CLASSES, -1).astype(np.int32)
COUNTED = IGNORED >= 0


def dense(outputs=3):
    weight = 5 * np.eye(outputs, 3, dtype=np.float32)
    return nn.Dense(3, outputs, weight_init=Tensor(weight), bias_init="zeros")


def of_classes(loss, metrics):
    network = dense()
    return Trainer(network, loss, nn.SGD(network.trainable_params(), 0.0), metrics)


@pytest.mark.parametrize("tasks", [False, True])
def test_metrics_leave_out_the_labels_that_the_loss_ignores(tasks):
    cross_entropy, prefix = nn.CrossEntropyLoss(ignore_index=-1), "a_" if tasks else ""
    loss = MultiTaskLoss({"a": cross_entropy}) if tasks else cross_entropy
    trainer = of_classes(loss, ["accuracy", "log_loss", "f1", "top_1_accuracy"])
    expected = trainer.evaluate((X[COUNTED], CLASSES[COUNTED]), batch_size=20)
    measured = trainer.evaluate((X, IGNORED), batch_size=20)
    for name in ("accuracy", "log_loss", "f1", "top_1_accuracy"):
        assert measured[prefix + name] == pytest.approx(expected[prefix + name], rel=1e-6), name
    share = (X.argmax(1) == CLASSES)[COUNTED].mean()
    assert measured[f"{prefix}accuracy"] == share < 1


def test_windows_of_classes_leave_out_ignored_labels():
    trainer = of_classes(nn.CrossEntropyLoss(ignore_index=-1), None)
    batches = [(X[n : n + 10], IGNORED[n : n + 10]) for n in range(0, 40, 10)]
    trainer.online_train(batches, [], window=40)
    assert trainer.state.window["window_accuracy"] == (X.argmax(1) == CLASSES)[COUNTED].mean()


class Shifted(nn.Cell):
    def __init__(self):
        super().__init__()
        self.shift = ms.Parameter(Tensor(np.float32(0)), name="shift")

    def construct(self, maps):
        return maps + self.shift


def test_each_pixel_is_a_label():
    maps = RNG.normal(size=(4, 3, 2, 2)).astype(np.float32)
    labels = np.where(RNG.random((4, 2, 2)) < 0.5, maps.argmax(1), -1).astype(np.int32)
    labels[0, 0] = (maps[0, :, 0].argmax(0) + 1) % 3
    network = Shifted()
    trainer = Trainer(
        network, nn.CrossEntropyLoss(ignore_index=-1), nn.SGD(network.trainable_params(), 0.0), "accuracy"
    )
    expected = (maps.argmax(1) == labels)[labels >= 0].mean()
    assert trainer.evaluate((maps, labels), batch_size=4)["accuracy"] == pytest.approx(expected)
    assert expected < 1


def test_a_binary_label_of_two_classes_may_be_ignored():
    network = nn.Dense(3, 2)
    loss, labels = nn.CrossEntropyLoss(ignore_index=-1), np.minimum(IGNORED, 1)
    trainer = Trainer(network, loss, nn.SGD(network.trainable_params(), 0.0), ["auc"], calibration="platt")
    expected = trainer.evaluate((X[COUNTED], labels[COUNTED]))["auc"]
    assert trainer.evaluate((X, labels))["auc"] == pytest.approx(expected)
    trainer.fit((X, labels), valid_dataset=(X, labels), batch_size=40, callbacks=[])
    assert "calibrated_calibration" not in trainer.evaluate((X, labels))  # too few rows


NAMES = {nn.BCEWithLogitsLoss: ["accuracy", "auc", "log_loss", "binary"], nn.MSELoss: ["mae", "rmse", "bias", "r2"]}


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("tasks", [False, True])
def test_the_label_of_a_row_of_weight_0_may_be_missing(kind, tasks):
    weight = (np.arange(40) % 3 > 0).astype(np.float32)
    label = (X[:, 1] > 0).astype(np.float32)
    results = {}
    for value in (np.nan, 0):
        network, features = OneNumber(), Features([Numeric("x")], label="y", weight="w")
        loss = MultiTaskLoss({"y": kind()}) if tasks else kind()
        trainer = Trainer(network, loss, nn.SGD(network.trainable_params(), 0.1), NAMES[kind], features=features)
        rows = (X[:, :1], np.where(weight > 0, label, value).astype(np.float32), weight)
        trainer.fit(rows, batch_size=20, shuffle=False, callbacks=[])
        results[value] = trainer.evaluate(rows, batch_size=16) | {"weight": network.dense.weight.asnumpy().item()}
    assert results[np.nan] == pytest.approx(results[0], rel=1e-6)
    assert np.isfinite(list(results[0].values())).all()


def test_a_prediction_of_a_row_of_weight_0_may_be_nan():
    weight = (np.arange(40) % 3 > 0).astype(np.float32)
    network, features = OneNumber(), Features([Numeric("x")], label="y", weight="w")
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1), ["mae"], features=features)
    expected = trainer.evaluate((X[:, :1], X[:, 1], weight), batch_size=16)
    x = np.where(weight[:, None] > 0, X[:, :1], np.nan).astype(np.float32)
    assert trainer.evaluate((x, X[:, 1], weight), batch_size=16) == pytest.approx(expected, rel=1e-6)


def test_an_input_of_a_row_of_weight_0_may_be_nan_or_infinite():
    weight = (np.arange(40) % 3 > 0).astype(np.float32)
    trained = []
    for value in (np.nan, np.inf, 0):
        network, features = OneNumber(), Features([Numeric("x")], label="y", weight="w")
        trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1), features=features)
        x = np.where(weight > 0, X[:, 0], value).astype(np.float32)[:, None]
        trainer.fit((x, X[:, 1], weight), batch_size=20, shuffle=False, callbacks=[])
        trained.append(network.dense.weight.asnumpy().item())
    assert len({*trained}) == 1
    assert np.isfinite(trained[0])


WEIGHTED = {"class_weights": np.array([1, 10, 0], np.float32), "ignored": None}


@pytest.mark.parametrize("name", WEIGHTED)
def test_the_loss_does_not_depend_on_the_size_of_the_batches(name):
    weight = WEIGHTED[name]
    labels = np.where(np.arange(40) < 8, 2 if weight is not None else -1, CLASSES).astype(np.int32)
    loss = nn.CrossEntropyLoss(None if weight is None else Tensor(weight), ignore_index=-1)
    trainer = of_classes(loss, ["loss"])
    whole = trainer.evaluate((X, labels), batch_size=40)["loss"]
    assert trainer.evaluate((X, labels), batch_size=8)["loss"] == pytest.approx(whole, rel=1e-6)
    assert trainer.evaluate((X, labels), batch_size=12)["loss"] == pytest.approx(whole, rel=1e-6)
    for sink_size in (1, 2):
        history = trainer.fit((X, labels), batch_size=8, shuffle=False, callbacks=[], sink_size=sink_size)
        assert history.history["loss"] == pytest.approx([whole], rel=1e-6)


@pytest.mark.parametrize("tasks", [False, True])
def test_a_batch_whose_labels_do_not_count_changes_nothing(tasks):
    network, weight = dense(), Tensor(np.array([1, 10, 0], np.float32))
    loss = MultiTaskLoss({"a": nn.CrossEntropyLoss(weight)}) if tasks else nn.CrossEntropyLoss(weight)
    trainer = Trainer(network, loss, nn.SGD(network.trainable_params(), 0.1))
    before = network.weight.asnumpy().copy()
    trainer.fit((X, np.full(40, 2, np.int32)), batch_size=20, callbacks=[TerminateOnNaN()])
    np.testing.assert_array_equal(network.weight.asnumpy(), before)
    assert trainer.state.stop_reason.kind == "limit"
    assert np.isnan(trainer.evaluate((X, np.full(40, 2, np.int32)))["loss"])


def test_a_window_whose_rows_all_have_weight_0_has_no_loss():
    features = Features([Numeric("x")], label="y", weight="w")
    network = OneNumber()
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.0), features=features)
    x = np.tile(X[:, 0], 3)
    stream = ReplayStream({"x": x, "y": x + 1, "w": np.repeat([1.0, 0.0, 1.0], 40)})
    shown = ProgressBar(line_seconds=0, file=io.StringIO(), terminal=False)
    history = trainer.online_train(stream, [shown, EarlyStopping("window_loss", 9)], batch_size=20, window=40)
    assert history.history["window_loss"] == pytest.approx([1, 1])
    assert len(history.history["window_mae"]) == 3


def test_an_evaluation_in_which_no_row_counts_says_so(caplog):
    features = Features([Numeric("x")], label="y", weight="w")
    network = OneNumber()
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1), features=features)
    rows = {"x": [1.0, 2.0], "y": [0.0, 1.0]}
    trainer.evaluate({**rows, "w": [0.0, 1.0]})
    assert not caplog.records
    assert np.isnan(trainer.evaluate({**rows, "w": [0.0, 0.0]})["loss"])
    (warning,) = caplog.messages
    assert "every row has the weight 0" in warning


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_a_weight_below_0_or_not_finite_is_refused_without_metrics_too(weight):
    """A row of a negative weight was left out of the loss, and counted in what divides it."""
    network, features = OneNumber(), Features([Numeric("x")], label="y", weight="w")
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1), features=features)
    weights = np.ones(12, np.float32)
    weights[9] = weight
    data = X[:12, :1], X[:12, 1], weights
    refused = pytest.raises(DataError, match=r"weighs the rows and takes finite numbers from 0; received .* in row 3")
    with refused:
        trainer.fit(data, batch_size=6, shuffle=False, callbacks=[])
    with refused:
        trainer.evaluate(data, batch_size=6)


def test_data_without_the_weights_are_refused_for_the_number_of_columns():
    """Their last column, the label, is not taken for weights that are negative."""
    network, features = OneNumber(), Features([Numeric("x")], label="y", weight="w")
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1), features=features)
    for verb in (trainer.fit, trainer.evaluate):
        with pytest.raises(DataError, match=r"received 2 columns .* so 3 columns are expected"):
            verb((X[:12, :1], -abs(X[:12, 1])), batch_size=6)
