"""Several tasks in one network: losses, masks, missing labels and metrics by task; finite data and streams."""

import logging
import re

import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss, roc_auc_score, root_mean_squared_error

from callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint, TensorBoard
from tests.callbacks.test_tensorboard import read
from trainer import MultiTaskLoss, Trainer
from trainer.errors import ConfigurationError, DataError, TrainerError
from trainer.serving import export_model
from trainer.streams import ReplayStream

TASKS = ("odd", "large", "ink")
ROWS = 1792  # of scikit-learn's 1,797 digits: no odd last batch, which would be compiled for itself


class ThreeHeads(nn.Cell):
    """Is the digit odd, is it above 4 (asked for odd ones alone), how much ink has it."""

    def __init__(self, kind=dict):
        super().__init__()
        self.odd, self.large, self.ink = (nn.Dense(64, 1, weight_init="zeros", bias_init="zeros") for _ in range(3))
        self.as_dict, self.columns = kind is dict, kind if isinstance(kind, int) else 0

    def construct(self, features):
        if self.as_dict:
            return {"ink": self.ink(features), "odd": self.odd(features), "large": self.large(features)}
        heads = self.odd(features), self.large(features), self.ink(features)
        return ops.concat(heads[: self.columns], 1) if self.columns else heads


@pytest.fixture(scope="module")
def digits():
    features, digit = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digit))[:ROWS]
    features, digit = (features[order] / 16).astype(np.float32), digit[order]
    ink = features.mean(axis=1) * 4
    ink[::5] = np.nan
    odd = (digit % 2).astype(np.int32)
    large = np.where(odd > 0, digit > 4, 7).astype(np.float32)  # what is masked may hold anything
    # label columns stand first, and in another order than the tasks
    return {"ink": ink, "large": large, "odd": odd, "features": features}


def loss(**options):
    bce, mse = nn.BCEWithLogitsLoss, nn.MSELoss
    losses = {"odd": bce(), "large": bce(reduction="none"), "ink": mse(reduction="none")}
    return MultiTaskLoss(losses, masks={"large": "odd"}, ignore_nan={"ink"}, **{"weights": {"ink": 0.5}, **options})


def make(kind=dict, **options):
    network = ThreeHeads(kind)
    return Trainer(network, loss(), nn.Adam(network.trainable_params(), 1e-2), **options)


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    trainer = make(metrics={"odd_auc", "large_auc", "ink_rmse"})
    stop = EarlyStopping("val_small_large_auc", patience=50)
    small = {name: column[:512] for name, column in digits.items()}
    watching = [
        EarlyStopping("ink_loss", patience=50),
        ModelCheckpoint(tmp_path_factory.mktemp("tasks"), monitor="odd_loss"),
        TensorBoard(tmp_path_factory.mktemp("events"), every=8),
    ]
    trainer.fit(digits, 4, {"all": digits, "small": small}, callbacks=[stop, *watching], batch_size=64, sink_size=4)
    return trainer


@pytest.mark.long
def test_evaluation_gives_losses_and_metrics_by_task_over_the_rows_that_count(trained, digits):
    results = trained.evaluate(digits, batch_size=128)
    outputs = trained.network(Tensor(digits["features"]))
    z = {task: outputs[task].asnumpy()[:, 0].astype(np.float64) for task in TASKS}
    odd, known = digits["odd"] > 0, ~np.isnan(digits["ink"])
    assert results["odd_auc"] == pytest.approx(roc_auc_score(digits["odd"], z["odd"]), abs=1e-6)
    assert results["large_auc"] == pytest.approx(roc_auc_score(digits["large"][odd], z["large"][odd]), abs=1e-6)
    rmse = root_mean_squared_error(digits["ink"][known], z["ink"][known])
    assert results["ink_rmse"] == pytest.approx(rmse, rel=1e-5)
    p = 1 / (1 + np.exp(-z["large"][odd]))
    assert results["large_loss"] == pytest.approx(log_loss(digits["large"][odd], p), rel=1e-5)
    assert results["ink_loss"] == pytest.approx(rmse**2, rel=1e-5)
    assert results["loss"] == pytest.approx(results["odd_loss"] + results["large_loss"] + 0.5 * results["ink_loss"])


@pytest.fixture(scope="module")
def half_labelled():
    """Two tasks on zero weights, which stay zero: each loss is log 2; the last half of `buy` is unknown."""
    network = nn.Dense(1, 2, weight_init="zeros", bias_init="zeros")
    bce = nn.BCEWithLogitsLoss(reduction="none")
    tasks = MultiTaskLoss({"click": bce, "buy": bce}, {"buy": 0.5}, ignore_nan=["buy"])
    buy = np.array([1, 0] * 2 + [np.nan] * 4, np.float32)
    rows = {"x": np.zeros((8, 1), np.float32), "click": np.ones(8, np.float32), "buy": buy}
    return Trainer(network, tasks, nn.SGD(network.trainable_params(), 0.0), {"loss"}), rows


@pytest.mark.long
@pytest.mark.parametrize("size", [8, 4, 2])
def test_the_loss_does_not_depend_on_how_missing_labels_fall_into_batches(half_labelled, size, caplog):
    trainer, rows = half_labelled
    whole = pytest.approx(1.5 * np.log(2))
    assert trainer.evaluate(rows, batch_size=size)["loss"] == whole
    history = trainer.fit(rows, 1, rows, batch_size=size, shuffle=False, callbacks=[]).history
    assert (history["loss"][-1], history["val_loss"][-1]) == (whole, whole)
    trainer.online_train(ReplayStream(rows), batch_size=size, window=1000, callbacks=[])
    assert trainer.state.window["window_loss"] == whole
    assert "holds NaN" not in caplog.text


def test_infinite_labels_and_missing_inputs_are_still_warned_of(half_labelled, caplog):
    trainer, rows = half_labelled
    trainer.evaluate({**rows, "buy": np.where(np.isnan(rows["buy"]), np.inf, 0)}, batch_size=8)
    assert "column 'buy' holds NaN or infinite values, first in row 4 (4 rows)" in caplog.text
    trainer.evaluate({**rows, "x": np.full((8, 1), np.nan, np.float32)}, batch_size=8)
    assert "column 'x' holds NaN or infinite values, first in row 0 (8 rows)" in caplog.text


@pytest.mark.long
def test_a_column_for_each_task_is_as_good_as_a_dict(digits):
    results, windows = [], []
    for kind in (tuple, 3):
        trainer = make(kind, metrics={"odd_auc", "ink_rmse"})
        trainer.online_train(ReplayStream(digits), callbacks=[], batch_size=128, window=1000)
        windows.append(
            {name: value for name, value in trainer.state.window.items() if "_auc" in name or "loss" in name}
        )
        results.append(trainer.evaluate(digits, batch_size=128))
    assert results[1] == pytest.approx(results[0], rel=1e-6)
    assert windows[1] == pytest.approx(windows[0], rel=1e-6)
    with pytest.raises(TrainerError, match=r"tensor of shape \(128, 2\) for 3 tasks"):
        make(2).fit(digits, batch_size=128, callbacks=[])


def test_fit_records_each_tasks_loss_and_every_named_validation_set(trained):
    history = trained.history.history
    for task in TASKS:
        assert len(history[f"{task}_loss"]) == 4
        assert history[f"{task}_loss"][-1] < history[f"{task}_loss"][0]
    last = {name: values[-1] for name, values in history.items()}
    weighted = last["odd_loss"] + last["large_loss"] + 0.5 * last["ink_loss"]
    assert last["loss"] == pytest.approx(weighted, rel=1e-5)
    assert {"val_all_loss", "val_small_loss", "val_small_odd_loss", "val_all_ink_rmse"} <= set(history)


def test_each_tasks_loss_can_be_monitored_and_is_drawn_with_its_weight(trained):
    losses = {name: values for name, values in trained.history.history.items() if name.startswith(TASKS)}
    (checkpoint,) = (one for one in trained.callbacks if isinstance(one, ModelCheckpoint))
    (board,) = (one for one in trained.callbacks if isinstance(one, TensorBoard))
    (watch,) = (one for one in trained.callbacks if one.monitor == "ink_loss")
    assert watch.best == pytest.approx(min(losses["ink_loss"]))
    steps = trained.state.progress.global_step // 4
    assert checkpoint.best_name == f"step_{steps * (1 + int(np.argmin(losses['odd_loss']))):08d}"
    events = read(board.folder)
    assert "ink (weight 0.5, without NaN labels)" in events["hparams/text_summary"][0]
    for task in TASKS:
        assert list(events[f"epoch/{task}_loss"].values()) == pytest.approx(losses[f"{task}_loss"])
        assert len(events[f"train/{task}_loss"]) > 4
        assert np.isfinite(list(events[f"train/{task}_loss"].values())).all()


@pytest.mark.long
def test_the_log_tells_each_tasks_loss_and_weight(digits, caplog):
    few = {name: column[:64] for name, column in digits.items()}
    with caplog.at_level(logging.INFO), pytest.raises(ConfigurationError, match="no metric of that name"):
        make().fit(few, callbacks=[EarlyStopping("inc_loss")], batch_size=32)
    with caplog.at_level(logging.INFO):
        make().fit(few, callbacks=[], batch_size=32)
    assert re.search(
        r"epoch 0: odd_loss 0\.\d+ \(weight 1\), .* ink_loss \d\.\d+ \(weight 0\.5, without NaN", caplog.text
    )


@pytest.mark.long
def test_windows_count_each_task_by_its_target_sunk_or_not(digits):
    windows = {}
    for kind, sink_size in ((dict, 1), (tuple, 4)):
        rows = []
        note = LambdaCallback(on_train_step_end=lambda t, rows=rows: rows.append(t.state.outputs.predictions))
        trainer = make(kind)
        trainer.online_train(ReplayStream(digits), [note], batch_size=64, sink_size=sink_size, window=5000)
        windows[kind] = trainer.state.window
        kept = np.concatenate([row.reshape(-1, 3) for row in rows])[: len(digits["odd"])]
        assert windows[kind]["lifetime_odd_auc"] == pytest.approx(roc_auc_score(digits["odd"], kept[:, 0]), abs=1e-6)
    first = windows[dict]
    odd = int((digits["odd"] > 0).sum())
    assert (first["lifetime_odd_rows"], first["lifetime_large_rows"]) == (ROWS, odd)
    assert first["lifetime_ink_rows"] == int((~np.isnan(digits["ink"])).sum())
    assert {"window_odd_loss", "window_large_loss", "window_ink_loss", "decayed_large_log_loss"} <= set(first)
    assert "lifetime_ink_r2" in first
    for name in ("lifetime_large_auc", "lifetime_ink_rmse", "window_large_loss"):
        assert windows[tuple][name] == pytest.approx(first[name], rel=1e-4)


VERBS = {
    "fit": lambda trainer, data: trainer.fit(data, batch_size=128, callbacks=[]),
    "compile": lambda trainer, data: trainer.compile(data, batch_size=128),
    "valid": lambda trainer, data: trainer.fit(tuple(data.values()), 1, data, callbacks=[], batch_size=128),
    "evaluate": lambda trainer, data: trainer.evaluate(data, batch_size=128),
    "online_train": lambda trainer, data: trainer.online_train(ReplayStream(data), callbacks=[], batch_size=128),
}


@pytest.mark.parametrize("verb", VERBS)
def test_label_columns_of_other_names_are_asked_for_by_every_verb(digits, verb):
    ordered = {name: digits[name][:256] for name in ("features", *TASKS)}
    renamed = {{"odd": "is_odd", "ink": "inc"}.get(name, name): column for name, column in ordered.items()}
    with pytest.raises(DataError, match=r"no column 'odd', 'ink' among features, is_odd.*MultiTaskLoss\(labels="):
        VERBS[verb](make(), renamed)


@pytest.mark.long
def test_label_columns_are_found_by_labels_or_in_a_tuple_by_position(digits):
    """Columns in another order train the same, and tuples are taken alike by finite data and streams."""
    ordered = [digits[name][:256] for name in ("features", *TASKS)]
    shuffled = {f"{name}_y" if name in TASKS else name: digits[name][:256] for name in reversed(digits)}
    network = ThreeHeads()
    named = Trainer(
        network, loss(labels={task: f"{task}_y" for task in TASKS}), nn.Adam(network.trainable_params(), 1e-2)
    )
    by_position = make()
    named.fit(shuffled, 1, callbacks=[], batch_size=128, shuffle=False)
    by_position.online_train([tuple(column[i : i + 128] for column in ordered) for i in (0, 128)], callbacks=[])
    for mine, other in zip(network.get_parameters(), by_position.network.get_parameters(), strict=True):
        assert mine.asnumpy() == pytest.approx(other.asnumpy(), abs=1e-6), mine.name


def test_mistakes_are_named_when_the_loss_is_made():
    with pytest.raises(ConfigurationError, match="did you mean 'large'"):
        loss(weights={"larg": 1.0})
    with pytest.raises(ConfigurationError, match="BCEWithLogitsLoss with reduction='none'"):
        MultiTaskLoss({"a": nn.MSELoss(), "b": nn.BCEWithLogitsLoss()}, masks={"b": "a"})
    with pytest.raises(ConfigurationError, match="number >= 0; received -1"):
        loss(weights={"ink": -1})
    with pytest.raises(ConfigurationError, match=r"unknown metric 'auk'.*did you mean 'auc'"):
        make(metrics=["odd_auk"])


@pytest.mark.parametrize("kind", [dict, tuple, 3], ids=["dict in another order", "tuple", "a column for each"])
def test_a_probability_is_that_of_its_task(digits, kind):
    """The heads give zeros: half for the two tasks of logits, and zero for the amount of ink."""
    answer = make(kind).predict({"features": digits["features"][:4]}, batch_size=4, output="probability")
    if kind is dict:
        answer = [answer[task] for task in TASKS]
    elif kind is not tuple:
        answer = answer.T
    assert [float(np.asarray(part).mean()) for part in answer] == [0.5, 0.5, 0.0]


class OneHead(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(64, 1)

    def construct(self, features):
        return self.dense(features).reshape(-1)


def test_a_single_task_of_one_number_for_each_row_trains_in_sunk_steps(digits):
    network = OneHead()
    trainer = Trainer(network, MultiTaskLoss({"odd": nn.BCEWithLogitsLoss()}), nn.SGD(network.trainable_params(), 0.1))
    stream = ReplayStream({name: digits[name][:64] for name in ("features", "odd")})
    trainer.online_train(stream, [], batch_size=8, sink_size=4, window=64)
    assert trainer.state.window["lifetime_odd_rows"] == 64


class Classified(OneHead):
    def __init__(self):
        super().__init__()
        self.which = nn.Dense(64, 5)

    def construct(self, features):
        return self.dense(features), self.which(features)


def test_the_class_of_a_row_that_does_not_count_may_be_anything(digits):
    losses = {"odd": nn.BCEWithLogitsLoss(), "which": nn.CrossEntropyLoss(reduction="none")}
    network = Classified()
    trainer = Trainer(network, MultiTaskLoss(losses, masks={"which": "odd"}), nn.SGD(network.trainable_params(), 0.1))
    data = {"features": digits["features"][:64], "odd": digits["odd"][:64]}
    data["which"] = np.where(data["odd"] > 0, np.arange(64) % 5, -1).astype(np.int32)
    trainer.fit(data, 1, callbacks=[], batch_size=16, sink_size=2, shuffle=False)
    assert 0 < trainer.state.task_losses["which_loss"] < 10
    last = int(np.flatnonzero(data["odd"])[-1])
    data["which"][last] = 5
    with pytest.raises(DataError, match=rf"class 5 in row {last % 16} of the batch \(rows: 1\)"):
        trainer.fit(data, 1, callbacks=[], batch_size=16, sink_size=2, shuffle=False)


def test_an_export_names_the_outputs_of_a_dict_as_the_network_does(digits, tmp_path):
    trainer = make()
    for number, task in enumerate(TASKS):
        ops.assign(getattr(trainer.network, task).bias, Tensor([float(number)]))
    export_model(trainer, tmp_path / "model", {"features": digits["features"][:8]}, onnx=False)
    example = np.load(tmp_path / "model" / "example.npz")
    assert [float(example[f"output.{task}"].mean()) for task in TASKS] == [0, 1, 2]
