"""What windows of a stream count: the target decides, or the user; over real numbers, classes and anything else."""

import logging

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.train import MAE
from sklearn.datasets import load_diabetes, load_digits
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    log_loss,
    mean_absolute_error,
    mean_poisson_deviance,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

from callbacks import Callback, DriftMonitor, EarlyStopping, LambdaCallback, ModelCheckpoint
from trainer import Trainer
from trainer.errors import ConfigurationError, DataError
from trainer.metrics.drift import PageHinkley
from trainer.streams import ReplayStream


class Linear(nn.Cell):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.dense = nn.Dense(inputs, outputs, weight_init="zeros", bias_init="zeros")

    def construct(self, features):
        return self.dense(features)


def make(loss=None, inputs=10, outputs=1, rate=1e-2, **options):
    network = Linear(inputs, outputs)
    return Trainer(network, loss or nn.MSELoss(), nn.Adam(network.trainable_params(), rate), **options)


@pytest.fixture(scope="module")
def diabetes():
    """442 patients, 12 times over: 5,304 rows, more than are scored at once."""
    features, label = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(np.tile(np.arange(442), 12))
    label = ((label - label.mean()) / label.std()).astype(np.float32)
    features = (features * 20).astype(np.float32)
    return {"features": features[order], "clinic": (order % 7).astype(np.int64), "label": label[order][:, None]}


@pytest.fixture(scope="module")
def digits():
    features, label = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(label))
    return {"features": (features[order] / 16).astype(np.float32), "label": label[order].astype(np.int32)}


class Predictions(Callback):
    """Collects what the network gave before each update."""

    def __init__(self):
        self.rows = []
        self.windows = []

    def on_train_step_end(self, trainer):
        self.rows.append(trainer.state.outputs.predictions.reshape(-1, *trainer.state.outputs.predictions.shape[-1:]))

    def on_window_end(self, trainer):
        self.windows.append(dict(trainer.state.window))

    def all(self):
        return np.concatenate(self.rows)


def test_a_real_target_is_counted_by_mae_rmse_bias_and_r2(diabetes):
    seen, trainer = Predictions(), make()
    trainer.online_train(ReplayStream(diabetes), [seen], batch_size=64, window=1326)
    p, y = seen.all()[:, 0].astype(np.float64), diabetes["label"][:, 0].astype(np.float64)
    last = trainer.state.window
    assert last["lifetime_rmse"] == pytest.approx(root_mean_squared_error(y, p), rel=1e-6)
    assert last["lifetime_mae"] == pytest.approx(mean_absolute_error(y, p), rel=1e-6)
    assert last["lifetime_r2"] == pytest.approx(r2_score(y, p), rel=1e-6)
    assert last["lifetime_bias"] == pytest.approx((p - y).mean(), abs=1e-6)
    assert {"window_rmse", "decayed_r2", "window_loss", "window_rows", "lag"} <= set(last)
    assert not any("auc" in name for name in last)
    assert seen.windows[-2]["window_rmse"] < seen.windows[0]["window_rmse"]


def test_classes_are_counted_by_accuracy_and_log_loss_also_in_sunk_steps(digits):
    windows = {}
    for sink_size in (1, 4):
        trainer = make(nn.CrossEntropyLoss(), 64, 10)
        trainer.online_train(ReplayStream(digits), [], batch_size=64, sink_size=sink_size, window=900)
        windows[sink_size] = trainer.state.window
    names = {"lifetime_accuracy", "lifetime_log_loss", "window_accuracy", "decayed_log_loss"}
    assert names <= set(windows[1])
    assert windows[1]["lifetime_accuracy"] > 0.5
    for name in ("lifetime_accuracy", "lifetime_log_loss"):
        assert windows[4][name] == pytest.approx(windows[1][name], rel=1e-6)


@pytest.fixture(scope="module")
def labelled(digits):
    """Three labels of a digit: above 4, odd, a multiple of 3; float32 [1797, 3]."""
    digit = digits["label"]
    labels = np.stack([digit > 4, digit % 2 == 1, digit % 3 == 0], 1).astype(np.float32)
    return {"features": digits["features"], "labels": labels}


@pytest.mark.long
def test_several_labels_have_an_auc_and_a_log_loss_each_and_their_means(labelled):
    seen = Predictions()
    trainer = make(nn.BCEWithLogitsLoss(), 64, 3, metrics={"auc": "auc", "log_loss": "log_loss", "right": "accuracy"})
    trainer.online_train(ReplayStream(labelled), [seen], batch_size=64, sink_size=4, window=900)
    window = trainer.state.window
    default = make(nn.BCEWithLogitsLoss(), 64, 3)
    watch = EarlyStopping("lifetime_auc_2", patience=100)
    default.online_train(ReplayStream(labelled), [watch], batch_size=64, sink_size=4, window=900)
    assert watch.watched.mode == "max"
    evaluated = trainer.evaluate(labelled, batch_size=100)
    offline = trainer.predict(labelled["features"])
    for values, prefix, logits in (
        (window, "lifetime_", seen.all()),
        (default.state.window, "lifetime_", seen.all()),
        (evaluated, "", offline),
    ):
        y, p = labelled["labels"], 1 / (1 + np.exp(-logits.astype(np.float64)))
        each = [log_loss(y[:, label], p[:, label]) for label in range(3)]
        aucs = roc_auc_score(y, logits, average=None)
        assert [values[f"{prefix}auc_{label}"] for label in range(3)] == pytest.approx(list(aucs), abs=1e-6)
        assert values[f"{prefix}auc"] == pytest.approx(roc_auc_score(y, logits), abs=1e-6)
        assert [values[f"{prefix}log_loss_{label}"] for label in range(3)] == pytest.approx(each, rel=1e-5)
        assert values[f"{prefix}log_loss"] == pytest.approx(np.mean(each), rel=1e-5)
    assert evaluated["right"] == pytest.approx(accuracy_score(labelled["labels"] > 0, offline > 0))


class Quantile(nn.Cell):
    """The pinball loss of three quantiles; metrics compare the middle one with the label."""

    def __init__(self):
        super().__init__()
        self.prediction_activation = middle

    def construct(self, prediction, label):
        error = label - prediction
        levels = ms.Tensor([0.1, 0.5, 0.9])
        return ops.maximum(levels * error, (levels - 1) * error).mean()


def middle(predictions):
    return predictions[:, 1]


@pytest.mark.long(but=["loss0-1-options0-<lambda>", "loss3-3-options3-<lambda>"])
@pytest.mark.parametrize(
    ("loss", "outputs", "options", "rate"),
    [
        (nn.PoissonNLLLoss(), 1, {}, lambda p: np.exp(p[:, 0])),
        (nn.PoissonNLLLoss(log_input=False), 1, {"prediction_activation": "identity"}, lambda p: p[:, 0]),
        (nn.MSELoss(), 1, {"prediction_activation": "exp"}, lambda p: np.exp(p[:, 0])),
        (Quantile(), 3, {}, lambda p: p[:, 1]),
    ],
)
def test_metrics_compare_what_the_loss_says_is_comparable_with_the_label(diabetes, loss, outputs, options, rate):
    counts = np.random.default_rng(0).poisson(np.exp(diabetes["label"])).astype(np.float32)
    data = {"features": np.abs(diabetes["features"]), "label": counts}
    seen = Predictions()
    metrics = {"mae": "mae", "rmse": "rmse", "bias": "bias", "theirs": ms.train.MAE(), "mae_by": "mae/clinic"}
    trainer = make(loss, outputs=outputs, metrics=metrics if outputs == 1 else ["mae", "rmse", "bias"], **options)
    trainer.network.dense.bias.set_data(ms.Tensor(np.full(outputs, 0.1, np.float32)))
    clinic = {"clinic": diabetes["clinic"]}
    columns = {**clinic, **data} if outputs == 1 else data
    trainer.online_train(ReplayStream(columns), [seen], batch_size=64, window=10_000)
    window = trainer.state.window
    evaluated, offline = trainer.evaluate(columns, batch_size=512), trainer.predict(data["features"])
    y = counts[:, 0].astype(np.float64)
    for values, prefix, raw in ((window, "lifetime_", seen.all()), (evaluated, "", offline)):
        p = rate(raw.astype(np.float64))
        assert values[f"{prefix}mae"] == pytest.approx(mean_absolute_error(y, p), rel=1e-5)
        assert values[f"{prefix}rmse"] == pytest.approx(root_mean_squared_error(y, p), rel=1e-5)
        assert values[f"{prefix}bias"] == pytest.approx((p - y).mean(), rel=1e-4, abs=1e-5)
        if isinstance(loss, nn.PoissonNLLLoss) and prefix:
            assert values[f"{prefix}poisson_deviance"] == pytest.approx(mean_poisson_deviance(y, p), rel=1e-5)
    if outputs == 1:
        own = diabetes["clinic"] == 3
        expected = mean_absolute_error(y[own], rate(offline.astype(np.float64))[own])
        assert evaluated["mae_by/clinic=3"] == pytest.approx(expected, rel=1e-5)
        assert evaluated["theirs"] == pytest.approx(mean_absolute_error(y, offline[:, 0]), rel=1e-5), "MindSpore's own"


def test_an_activation_that_is_none_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigurationError, match=r"prediction_activation=.*'exp'.*received 'exq'; did you mean 'exp'"):
        make(prediction_activation="exq")
    with pytest.raises(ConfigurationError, match=r"for the only task; received 'click'"):
        make(prediction_activation={"click": "exp"})


def test_fit_names_a_metric_that_cannot_read_the_validation_before_the_first_step(diabetes):
    data = {name: diabetes[name] for name in ("features", "label")}
    trainer = make(metrics=["auc"])
    with pytest.raises(DataError, match=r"cannot read the first validation batch.*\[64, 1\].*labels of a binary"):
        trainer.fit(data, 2, data, callbacks=[], batch_size=64)
    assert trainer.state.progress.global_step == 0


@pytest.mark.long
def test_what_is_neither_trains_with_the_loss_alone_and_says_so_once(diabetes, caplog):
    class Pairwise(nn.Cell):
        def construct(self, prediction, label):
            return ops.square(prediction[:, :1] - prediction[:, 1:2] - label).mean()

    stopped = EarlyStopping("window_loss", patience=100)
    trainer = make(Pairwise(), outputs=3)
    with caplog.at_level(logging.INFO, "trainer"):
        trainer.online_train(ReplayStream(diabetes), [stopped], batch_size=64, window=1000)
    assert trainer.state.progress.samples_seen == 5304
    assert {name for name in trainer.state.window if name.startswith(("window", "life"))} == {"window_loss"}
    said = [r.message for r in caplog.records if "only the loss" in r.message]
    assert len(said) == 1
    assert "predictions [64, 3]" in said[0]
    with pytest.raises(ConfigurationError, match=r"available are .*window_loss"):
        make(Pairwise(), outputs=3).online_train(
            ReplayStream(diabetes), [EarlyStopping("window_auc", patience=1)], batch_size=64
        )


def test_windows_of_the_loss_alone_compile_one_program(diabetes):
    trainer = make(metrics=["loss"])
    trainer.online_train(ReplayStream(diabetes), [], batch_size=52, max_steps=4, window=104)
    assert {name for name in trainer.state.window if name.startswith(("window", "life"))} == {"window_loss"}
    assert trainer.builder.programs == 1


@pytest.mark.long
def test_chosen_metrics_count_too_groups_mindspores_and_a_users_own(digits):
    class Steps:
        """A metric of a user: rows in the window."""

        def clear(self):
            self.rows = 0

        def update(self, predictions, labels):
            self.rows += len(labels)

        def eval(self):
            return self.rows

    data = {**digits, "label": (digits["label"] == 3).astype(np.float32)[:, None]}
    data["user"] = np.random.default_rng(0).integers(0, 20, len(data["label"]))
    data["shop"] = np.array(["north", "south"])[data["user"] % 2]
    metrics = {"auc": "auc", "gauc": "gauc/user", "top": "recall@3/user", "mine": Steps(), "by_shop": "auc/shop"}
    trainer = make(nn.BCEWithLogitsLoss(), 64, metrics=metrics)
    drift = DriftMonitor(PageHinkley(), "decayed_gauc")
    trainer.online_train(ReplayStream(data), [drift], batch_size=64, window=900)
    last = trainer.state.window
    assert {f"{h}_{n}" for h in ("window", "decayed", "lifetime") for n in ("auc", "gauc", "top")} <= set(last)
    assert {"lifetime_by_shop/shop=north", "window_by_shop/shop=south"} <= set(last)
    assert last["window_mine"] == last["window_rows"] > 0
    assert "lifetime_mine" not in last
    assert {"window_log_loss", "lifetime_calibration"} <= set(last), "those of the target are counted as well"
    assert 0.5 < last["lifetime_gauc"] < 1

    seen = Predictions()
    classes = make(nn.CrossEntropyLoss(), 64, 10, metrics=[ms.train.F1(), "accuracy"])
    classes.online_train(ReplayStream(digits), [seen], batch_size=64, window=10_000)
    expected = f1_score(digits["label"], seen.all().argmax(axis=1), average=None)
    assert [classes.state.window[f"window_f1_{c}"] for c in range(10)] == pytest.approx(list(expected), abs=1e-6)
    right = accuracy_score(digits["label"], seen.all().argmax(axis=1))
    assert classes.state.window["lifetime_accuracy"] == pytest.approx(right, rel=1e-9)


def test_a_metric_that_cannot_read_the_target_is_named_before_the_first_step(diabetes):
    trainer = make(metrics={"auc"})
    with pytest.raises(DataError, match=r"the metrics chosen cannot read predictions \[64, 1\].*labels of a binary"):
        trainer.online_train(ReplayStream(diabetes), [], batch_size=64)
    assert trainer.state.progress.global_step == 0
    with pytest.raises(DataError, match=r"no column 'usr'.*did you mean 'user'"):
        make(metrics={"gauc/usr"}).online_train(ReplayStream({**diabetes, "user": diabetes["clinic"]}), batch_size=64)


def test_a_target_that_turns_out_otherwise_lets_the_metrics_go_and_not_the_run(diabetes, caplog):
    class Own(nn.Cell):
        def construct(self, prediction, label):
            return ops.square(prediction - label).mean()

    label = diabetes["label"].copy()
    label[:640] = (label[:640] > 0).astype(np.float32)
    trainer = make(Own())
    trainer.online_train(ReplayStream({**diabetes, "label": label}), [], batch_size=64, window=640)
    assert trainer.state.progress.samples_seen == 5304
    assert "windows continue without" in caplog.text
    assert np.isnan(trainer.state.window["lifetime_auc"])


@pytest.mark.long
def test_a_resumed_stream_goes_on_with_its_windows_to_the_bit(diabetes, tmp_path):
    def run(*callbacks, **options):
        trainer = make(metrics=["rmse", "r2", "rmse/clinic"])
        trainer.online_train(ReplayStream(diabetes), list(callbacks), batch_size=64, window=1000, **options)
        return trainer.state.window

    whole = run()
    run(ModelCheckpoint(tmp_path, every=50), max_steps=50)
    second = run(resume=tmp_path)
    same = {name for name in whole if any(word in name for word in ("rmse", "r2", "mae", "bias"))}
    assert len(same) >= 12 + 2 * 7
    assert {name: second[name] for name in same} == {name: whole[name] for name in same}


def test_slices_of_a_window_and_lag_can_be_monitored(diabetes):
    lag = DriftMonitor(PageHinkley(), "lag")
    trainer = make(metrics=["rmse/clinic"])
    told = []
    trainer.online_train(
        ReplayStream(diabetes),
        [lag, LambdaCallback(on_window_end=lambda t: told.append(t.state.window["lag"]))],
        batch_size=64,
        window=1000,
    )
    assert told
    assert {f"lifetime_rmse/clinic={clinic}" for clinic in range(7)} <= set(trainer.state.window)


def test_an_evaluation_during_a_window_leaves_its_metrics_alone(diabetes):
    def windows(evaluates):
        trainer, found = make(metrics={"mine": MAE()}, rate=0.0), []
        other = {name: diabetes[name][:64] * 100 for name in ("features", "label")}
        watching = LambdaCallback(
            on_train_step_end=lambda t: t.evaluate(other, batch_size=64) if evaluates else None,
            on_window_end=lambda t: found.append(t.state.window["window_mine"]),
        )
        rows = {name: diabetes[name][:640] for name in ("features", "label")}
        trainer.online_train(ReplayStream(rows), [watching], batch_size=64, window=320)
        return found

    assert windows(evaluates=True) == windows(evaluates=False)


class SeveralOutputs(nn.Cell):
    def __init__(self, named):
        super().__init__()
        self.named, self.dense = named, nn.Dense(10, 1, weight_init="zeros", bias_init="zeros")

    def construct(self, features):
        prediction = self.dense(features)
        if self.named:
            return {"prediction": prediction, "features": features}
        return prediction, features


class LossOfFirst(nn.Cell):
    """A loss that receives all outputs, a tuple or a dict of them."""

    def __init__(self, key):
        super().__init__()
        self.key, self.loss = key, nn.MSELoss()

    def construct(self, outputs, label):
        return self.loss(outputs[self.key], label)


def test_the_first_output_of_a_dict_is_scored_as_that_of_a_tuple(diabetes):
    x, y = (diabetes[name][:128] for name in ("features", "label"))
    windows = []
    for named in (True, False):
        network = SeveralOutputs(named)
        trainer = Trainer(network, LossOfFirst("prediction" if named else 0), nn.Adam(network.trainable_params(), 1e-2))
        trainer.online_train([(x[n : n + 32], y[n : n + 32]) for n in range(0, 128, 32)], window=64, callbacks=[])
        windows.append({name: trainer.state.window[f"window_{name}"] for name in ("loss", "mae", "rmse")})
    assert windows[0] == windows[1]
