"""A server follows a model that is still being trained."""

import gc
import threading
import time
import weakref

import mindspore as ms
import numpy as np
import pandas as pd
import pytest
from mindspore import nn, ops

from callbacks import Callback
from trainer import Trainer
from trainer.embedding import Embedding, EmbeddingBag, Eviction
from trainer.errors import CheckpointNotFoundError, ConfigurationError, DataError, GraphError
from trainer.serving import version_update
from trainer.serving.packed_rows import pack_rows, unpack_rows
from trainer.serving.published import known_versions
from trainer.serving.publisher import Publish
from trainer.serving.served_model import ServedModel

BATCH = 16


class Net(nn.Cell):
    """Two tables on one column of strings, a bag, a dense column and moving statistics."""

    def __init__(self):
        super().__init__()
        self.deep = Embedding(4, 65, name="deep", eviction=Eviction("lru", share=0.2), dtype="float16")
        self.wide = Embedding(1, name="wide")
        self.bag = EmbeddingBag(3, name="bag", dtype="float16")
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Dense(4 * 2 + 3 + 2, 1)

    def construct(self, users, tags, numbers):
        deep = self.deep(users).reshape(users.shape[0], -1)
        both = ops.concat((deep, self.bag(tags), self.norm(numbers)), 1)
        return (self.head(both) + self.wide(users).sum(1)).reshape(-1)


def columns(seed, rows=BATCH, first=0, last=60):
    rng = np.random.default_rng(seed)
    users = np.char.add("user-", rng.integers(first, last, (rows, 2)).astype(str))
    tags = rng.integers(-1, 20, (rows, 3))
    return users, tags, rng.standard_normal((rows, 2)).astype(np.float32)


def batches():
    """Endlessly many, users slowly changing."""
    rng = np.random.default_rng(1)
    for seed in range(10_000):
        users, tags, numbers = columns(seed, first=5 * seed, last=5 * seed + 15)
        label = (rng.random(BATCH) < 0.4).astype(np.float32)
        yield {"users": users, "tags": tags, "numbers": numbers, "label": label}


class Watch(Callback):
    """After every published version, compare the server's answer with the trainer's tables and weights."""

    def __init__(self, publish):
        self.publish, self.model, self.versions = publish, None, []

    def on_train_step_end(self, trainer):
        self.publish.wait()
        self.model = self.model or ServedModel(self.publish.root, follow=False)
        self.model.refresh()
        self.versions.append(self.model.version)
        table = trainer.tables.tables.tables["deep"]
        served = self.model.graph.tables["deep"]
        with table.lock:  # steps ahead are being prepared meanwhile; what they take away is still trained and served
            ids = table.map.items()[0]
            ids = ids[table.lookup(ids) > 0]
            leaving = [one.ids for plan in table.pending for one in plan.evicted]
            rows = table.store.read(table.lookup(ids))[:, :4]
        assert set(served.map.items()[0].tolist()) == set(np.concatenate((ids, *leaving)).tolist())
        np.testing.assert_array_equal(served.store.read(served.lookup(ids)), rows)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    ms.set_seed(0)
    network = Net()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.05))
    publish = Publish(tmp_path_factory.mktemp("served"), every=1e-6, compact=4, batch=8)
    watch = Watch(publish)
    trainer.online_train(batches, max_steps=14, callbacks=[publish, watch])
    return trainer, publish, watch


def test_every_version_serves_exactly_the_trained_rows(run):
    trainer, publish, watch = run
    assert watch.versions == list(range(1, 15))
    assert trainer.tables.tables.tables["deep"].counters["evicted"] > 0
    assert (publish.root / "v_00000011" / "full.safetensors").exists()
    assert not (publish.root / "v_00000005").exists()


def test_predictions_are_those_of_the_trainer(run):
    trainer, publish, watch = run
    users, tags, numbers = columns(77, rows=21, last=90)
    expected = trainer.predict(users, tags, numbers)
    with ServedModel(publish.root) as model:
        served = model.predict({"users": users, "tags": tags, "numbers": numbers, "more": users})
        np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-6)
        watch.model.refresh()
        np.testing.assert_array_equal(watch.model.predict((users, tags, numbers)), served)
        with pytest.raises(DataError, match=r"must be \[n, 3\]; received \(21, 2\)"):
            model.predict((users, tags[:, :2], numbers))
        with pytest.raises(DataError, match=r"takes 3 columns .*; received 1"):
            model.predict(users)


def test_a_server_follows_without_being_asked(run, monkeypatch):
    trainer, publish, _ = run
    delete, threads = nn.Cell.__del__, set()

    def note(cell):
        if getattr(cell, "compile_cache", False):
            threads.add(threading.current_thread())
        delete(cell)

    monkeypatch.setattr(nn.Cell, "__del__", note)
    question = columns(5)
    with ServedModel(publish.root) as model:
        before, version = model.predict(question), model.version
        trainer.online_train(batches, max_steps=3, callbacks=[publish])
        deadline = time.monotonic() + 120
        while model.version <= version + 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.2)
        model.refresh()
        after = model.predict(question)
    assert model.version == max(known_versions(publish.root)) > version
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, trainer.predict(*question), rtol=1e-5, atol=1e-6)
    assert all(0 <= delay < 60 for delay in model.delays)
    # another one would wait for the graph that trains, which may be waiting for Python
    assert threads <= {threading.main_thread()}


def test_a_model_that_is_no_longer_used_is_not_kept_by_its_thread(run):
    _, publish, _ = run
    before = set(threading.enumerate())
    model = weakref.ref(ServedModel(publish.root, poll=0.01))
    (thread,) = set(threading.enumerate()) - before
    deadline = time.monotonic() + 30
    while (model() is not None or thread.is_alive()) and time.monotonic() < deadline:
        gc.collect()
        thread.join(0.05)
    assert model() is None
    assert not thread.is_alive()


@pytest.mark.long
def test_a_server_that_answers_nothing_keeps_no_graphs_it_has_replaced(run, monkeypatch):
    trainer, publish, _ = run
    opened = weakref.WeakSet()

    class Noted(version_update.ServedGraph):
        def __init__(self, folder):
            super().__init__(folder)
            opened.add(self)

    monkeypatch.setattr(version_update, "ServedGraph", Noted)
    question, count = columns(5), []
    with ServedModel(publish.root, follow=False) as model:
        model.predict(question)
        for _ in range(3):
            trainer.online_train(batches, max_steps=9, callbacks=[publish])  # so far ahead that all rows are read anew
            publish.wait()
            model.refresh()
            gc.collect()
            count.append(len(opened))
        np.testing.assert_allclose(model.predict(question), trainer.predict(*question), rtol=1e-5, atol=1e-6)
        gc.collect()
        count.append(len(opened))
    assert count == [2, 2, 2, 1]


@pytest.mark.long
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_model_trained_in_low_precision_is_served_as_it_predicts(level, tmp_path):
    ms.set_seed(0)
    network = Net()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.05), amp_level=level)
    publish = Publish(tmp_path, every=1e-6, batch=8)
    trainer.online_train(batches, max_steps=4, callbacks=[publish])
    question = columns(77, rows=11)
    with ServedModel(tmp_path) as model:
        served = model.predict(question)
    expected = trainer.predict(*question)
    assert served.dtype == expected.dtype == np.float32
    np.testing.assert_allclose(served, expected, rtol=2e-3, atol=2e-3)


def test_int8_rows_err_by_less_than_half_a_step():
    weights = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
    weights[3] = 0
    packed = pack_rows(weights, "int8")
    assert packed["weights"].dtype == np.int8
    error = np.abs(unpack_rows(packed) - weights)
    assert (error <= np.abs(weights).max(axis=1, keepdims=True) / 254 + 1e-7).all()


def test_what_cannot_work_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"takes 'float32', 'int8'; received 'int4'; did you mean 'int8'"):
        Publish(tmp_path, rows="int4")
    with pytest.raises(CheckpointNotFoundError, match="no model has been published at"):
        ServedModel(tmp_path)


@pytest.mark.long
def test_two_publishers_of_one_run_publish_every_change_each(tmp_path):
    network = Net()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.05))
    roots = [tmp_path / "first", tmp_path / "second"]
    publishers = [Publish(root, every=1e-6, batch=8) for root in roots]
    trainer.online_train(batches, max_steps=4, callbacks=publishers)
    users, tags, numbers = columns(3, first=0, last=30)
    expected = trainer.predict(users, tags, numbers)
    for root in roots:
        with ServedModel(root, follow=False) as model:
            assert model.step == 4
            np.testing.assert_allclose(model.predict((users, tags, numbers)), expected, rtol=1e-5, atol=1e-6)


class Users(nn.Cell):
    def __init__(self):
        super().__init__()
        self.users = Embedding(2, name="users")
        self.top = nn.Dense(1, 1)

    def construct(self, user, x):
        return self.users(user).sum(1) + self.top(x).reshape(-1)


@pytest.mark.parametrize("ids", [[5, 7, 5], ["a", "bc", "a"]], ids=["numbers", "text"])
def test_ids_are_the_same_in_any_array_and_what_is_no_id_is_named(ids, tmp_path):
    network, x = Users(), np.ones((3, 1), np.float32)
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    label = np.array([1, -1, 1], np.float32)
    trainer.fit({"user": np.array(ids), "x": x, "y": label}, 3, batch_size=3, callbacks=[Publish(tmp_path)])
    with ServedModel(tmp_path, follow=False) as model:
        expected = model.predict([np.array(ids), x]).tolist()
        for users in (ids, np.array(ids, object), pd.Series(ids), pd.Series(ids, dtype=object)):
            assert model.predict({"user": users, "x": x}).tolist() == expected
        for missing in (None, float("nan"), 5.5):
            with pytest.raises(DataError, match="column 'user' "):
                model.predict([[*ids[:2], missing], x])
        with pytest.raises(DataError, match="column 'x' takes float32"):
            model.predict([ids, np.array([[1.0], [None], [2.0]], object)])


class Shop(nn.Cell):
    """A dense and a sparse table, one of MindSpore's own, and columns of other types."""

    rows_are_independent = True

    def __init__(self):
        super().__init__()
        self.items = Embedding(2, 10, name="items")
        self.users = Embedding(2, name="users")
        self.places = nn.Embedding(10, 2)
        self.head = nn.Dense(4, 1)

    def construct(self, item, user, place, x, count, new):
        vectors = self.items(item) + self.users(user) + self.places(place)
        numbers = ops.stack((x + count.astype(ms.float32), new.astype(ms.float32)), 1)
        return self.head(ops.concat((vectors, numbers), 1)).reshape(-1)


GOODS = {
    "item": np.arange(8) % 10,
    "user": np.arange(8) - 3,
    "place": np.arange(8, dtype=np.int32),
    "x": np.linspace(0, 1, 8, dtype=np.float32),
    "count": np.arange(8, dtype=np.int32),
    "new": np.arange(8) % 2 == 0,
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    network, root = Shop(), tmp_path_factory.mktemp("shop")
    trainer = Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.1))
    trainer.fit({**GOODS, "y": np.ones(8, np.float32)}, 2, batch_size=8, callbacks=[Publish(root, batch=8)])
    with ServedModel(root, follow=False) as model:
        yield trainer, model, root


@pytest.mark.parametrize("wrong", [-1, 10])
def test_an_id_out_of_range_of_a_dense_table_is_refused(shop, wrong):
    trainer, model, _ = shop
    rows = {**GOODS, "item": np.array([wrong, *GOODS["item"][1:]])}
    for predict in (trainer.predict, model.predict):
        with pytest.raises(DataError, match=f"dense table 'items' takes ids from 0 to 9; received {wrong}"):
            predict(rows)
    np.testing.assert_array_equal(model.predict(GOODS), trainer.predict(GOODS))


def test_rows_on_which_the_network_fails_do_not_end_later_predictions(shop):
    trainer, model, _ = shop
    expected = model.predict(GOODS)
    for predict in (model.predict, trainer.predict):
        with pytest.raises(GraphError, match="should be in the range"):
            predict({**GOODS, "place": np.full(8, 22, np.int32)})
        np.testing.assert_array_equal(predict(GOODS), expected)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("new", np.full(8, 0.5), "column 'new' takes bool; received fractions"),
        ("count", np.full(8, 2.0**31), "column 'count' takes int32; received .* larger numbers"),
        ("x", np.full(8, "1.5"), "column 'x' takes float32; received text"),
        ("x", 1.5, r"column x must be \[n\]"),
    ],
)
def test_values_that_a_column_cannot_hold_are_refused(shop, column, values, said):
    with pytest.raises(DataError, match=said):
        shop[1].predict({**GOODS, column: values})


def test_no_rows_are_named(shop):
    for rows in ({name: column[:0] for name, column in GOODS.items()}, []):
        with pytest.raises(DataError, match="there are no rows"):
            shop[1].predict(rows)
