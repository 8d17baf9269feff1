"""A network on features is trained, evaluated and resumed from raw rows of every form."""

import numpy as np
import pandas as pd
import pytest
from mindspore import nn, ops, set_seed

from callbacks import ModelCheckpoint
from tests.trainer.features.every_kind import Net, as_columns, make_features, make_rows
from tests.trainer.features.test_features import FILES, TABLES
from trainer import Trainer
from trainer.errors import CheckpointMismatchError, ConfigurationError
from trainer.features import Categorical, FeatureEmbedding, Features, Numeric
from trainer.features.feature_data import inputs_of
from trainer.features.stream_rows import BatchTransform
from trainer.streams import FileStream, ReplayStream

BATCH = 64
ROWS, UNSEEN = make_rows(9 * BATCH), make_rows(3 * BATCH, seed=1)  # whole batches: an odd one is a program more


def make_trainer(metrics=("auc",), **options):
    set_seed(0)
    features = make_features(**options)
    net = Net(features)
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    return Trainer(net, nn.BCEWithLogitsLoss(), optimizer, metrics, features=features, seed=0)


def trained(data, callbacks=(), trainer=None, **options):
    trainer = trainer or make_trainer()
    options = {"epochs": 2, "batch_size": BATCH, "sink_size": 1, **options}
    trainer.fit(data, callbacks=list(callbacks), **options)
    return trainer


@pytest.fixture(scope="module")
def reference():
    return trained(ROWS)


@pytest.mark.long
def test_raw_rows_train_like_the_arrays_they_become(reference):
    trainer = make_trainer()
    trained(inputs_of(trainer.features, ROWS, fit=True), trainer=trainer)
    np.testing.assert_array_equal(trainer.predict(UNSEEN), reference.predict(UNSEEN))
    assert reference.history.history["loss"][1] < reference.history.history["loss"][0]


@pytest.mark.long
@pytest.mark.parametrize("form", ["pandas", "a.csv"])
def test_other_forms_train_to_the_same_weights(reference, form, tmp_path):
    if form in TABLES:
        data = TABLES[form](ROWS)
    else:
        data = tmp_path / form
        FILES[form](ROWS, data)
    trainer = trained(data, valid_dataset={"new": UNSEEN})
    np.testing.assert_array_equal(trainer.predict(UNSEEN), reference.predict(UNSEEN))
    assert trainer.evaluate(UNSEEN)["auc"] == trainer.history.history["val_new_auc"][-1]


def test_one_row_is_predicted_like_in_its_batch(reference):
    whole = reference.predict(UNSEEN)
    unlabelled = {name: value for name, value in UNSEEN[3].items() if name != "click"}
    np.testing.assert_allclose(reference.predict(unlabelled), whole[3:4], rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_a_resumed_fit_goes_on_with_what_was_learned(tmp_path, reference):
    trained(ROWS, [ModelCheckpoint(tmp_path, every=5)], max_steps=10)
    more = [*ROWS[:-1], {**ROWS[-1], "age": 1e6}]  # would move mean and boundaries
    resumed = trained(more[:1] + ROWS[1:], resume=tmp_path)
    np.testing.assert_array_equal(resumed.predict(UNSEEN), reference.predict(UNSEEN))
    other = trained(more, resume=tmp_path)
    np.testing.assert_array_equal(
        other.features.transform(UNSEEN)["numbers"], reference.features.transform(UNSEEN)["numbers"]
    )


def online(data, trainer, **options):
    trainer.online_train(data, callbacks=options.pop("callbacks", []), batch_size=BATCH, **options)
    return trainer


LOSS = ("loss",)  # windows of the loss alone need no further program


@pytest.mark.long
def test_streams_train_on_raw_rows_and_resume(tmp_path):
    (tmp_path / "rows").mkdir()
    FILES["a.jsonl"](ROWS[:300], tmp_path / "rows" / "1.jsonl")
    FILES["a.csv"](ROWS[300:], tmp_path / "rows" / "2.csv")
    whole = make_trainer(LOSS)
    with pytest.raises(ConfigurationError, match=r"call features.fit\(data\)"):
        whole.online_train(FileStream(tmp_path / "rows", end="at_last"))
    whole.features.fit(ROWS)
    online(FileStream(tmp_path / "rows", end="at_last"), whole)
    replayed = make_trainer(LOSS)
    replayed.features.fit(ROWS)
    online(ReplayStream(pd.DataFrame(as_columns(ROWS))), replayed)
    np.testing.assert_array_equal(replayed.predict(UNSEEN), whole.predict(UNSEEN))
    begun = make_trainer(LOSS)
    begun.features.fit(ROWS)
    checkpoints = {"callbacks": [ModelCheckpoint(tmp_path / "snapshots", every=4)], "resume": "auto"}
    online(FileStream(tmp_path / "rows", end="at_last"), begun, max_steps=4, **checkpoints)
    resumed = online(FileStream(tmp_path / "rows", end="at_last"), make_trainer(LOSS), **checkpoints)
    np.testing.assert_array_equal(resumed.predict(UNSEEN), whole.predict(UNSEEN))


def test_a_stream_loses_the_rows_that_are_forbidden():
    features = Features([Numeric("x", required=True), Categorical("c")], label="y")
    net = Small(features)
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params()), features=features)
    data = {"x": [1.0, None, 3, 4, None, 6], "c": ["a"] * 6, "y": [1, 0, 1, 0, 1, None]}
    online(ReplayStream(data), trainer)
    assert trainer.state.progress.samples_seen == 3
    stream = ReplayStream(data)
    batch = BatchTransform(features, stream)(stream.poll(6))
    assert [batch.origin_of(row)[1] for row in range(batch.rows)] == [0, 2, 3]
    assert sum(span.rows for span in batch.spans) == batch.rows
    assert stream.dead_letter.bad == 3


@pytest.mark.long
def test_group_time_and_weight_are_not_inputs():
    rows = {
        "x": np.arange(60.0), "c": ["a", "b", None] * 20, "user": ["u", "v"] * 30, "ts": np.arange(60.0) + 100,
        "w": np.ones(60), "y": [0, 1, 1, 0] * 15,
    }  # fmt: skip
    features = Features([Numeric("x"), Categorical("c")], label="y", group="user", event_time="ts")
    net = Small(features)
    optimizer = nn.Adam(net.trainable_params())
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), optimizer, ["gauc/user"], features=features)
    trainer.fit(rows, batch_size=30, callbacks=[])
    assert 0 <= trainer.evaluate(rows)["gauc"] <= 1
    trainer.online_train(ReplayStream(rows), batch_size=30, callbacks=[])
    assert 0 <= trainer.state.window["lifetime_gauc"] <= 1
    assert trainer.state.window["staleness"] > 1e9
    weighted = Features([Numeric("x"), Categorical("c")], label="y", weight="w")
    net = Small(weighted)
    trainer = Trainer(net, Weighted(), nn.Adam(net.trainable_params()), features=weighted)
    trainer.fit(rows, batch_size=60, callbacks=[])
    half = {**rows, "w": np.full(60, 0.5)}
    assert trainer.evaluate(half)["loss"] == pytest.approx(trainer.evaluate(rows)["loss"] / 2)


class Weighted(nn.Cell):
    def construct(self, logits, label, weight):
        return ops.binary_cross_entropy_with_logits(logits, label, weight, ops.ones_like(label))


class Small(nn.Cell):
    def __init__(self, features):
        super().__init__()
        self.embedding = FeatureEmbedding(features, 2)
        self.top = nn.Dense(3, 1)

    def construct(self, numbers, ids):
        fields, numbers, _ = self.embedding(numbers, ids)
        return self.top(ops.concat((fields[:, 0], numbers), 1)).reshape(-1)


class Wide(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(1, width), nn.Dense(width, 1))

    def construct(self, numbers):
        return self.layers(numbers).reshape(-1)


@pytest.mark.parametrize("verb", ["fit", "online_train"])
def test_features_learn_nothing_from_a_snapshot_that_is_refused(verb, tmp_path):
    def make(width):
        features, net = Features([Numeric("age", normalize="standard")], label="click"), Wide(width)
        return Trainer(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1), features=features)

    rows = {"age": [1.0, 2.0, 3.0, 4.0], "click": [0.0, 1.0, 0.0, 1.0]}
    make(2).fit(rows, callbacks=[ModelCheckpoint(tmp_path)])
    other = make(3)
    with pytest.raises(CheckpointMismatchError, match=r"\(3, 1\), the snapshot \(2, 1\)"):
        getattr(other, verb)(rows if verb == "fit" else ReplayStream(rows), callbacks=[], resume=tmp_path)
    assert not other.features.is_fitted
