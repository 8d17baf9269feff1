"""From two towers to the items of a user: the loss on raw rows, vectors of users and items, exact and approximate."""

import sys

import numpy as np
import pytest
from mindspore import nn, set_seed

from callbacks import Callback, ModelCheckpoint
from tests.trainer.models.tables import make_features, make_rows
from trainer import Every, Trainer
from trainer.errors import ConfigurationError, DataError
from trainer.features import Categorical, Features, Numeric
from trainer.models import (
    InBatchSoftmax,
    ItemIndex,
    TwoTower,
    item_vectors,
    read_vectors,
    top_items,
    user_vectors,
    write_vectors,
)
from trainer.serving import Publish, ServedModel
from trainer.streams import ReplayStream

USERS, ITEMS = 60, 24
TASTES = 4  # a user likes the items of one kind


def choices(rows, seed=0, dtype=str):
    """Return users and the items that they chose; some items are much more popular than others."""
    random = np.random.default_rng(seed)
    user = random.integers(0, USERS, rows)
    popularity = np.arange(1, ITEMS // TASTES + 1) ** -1.0
    item = random.choice(ITEMS // TASTES, rows, p=popularity / popularity.sum()) * TASTES + user % TASTES
    if dtype is str:
        return {"user": np.char.add("u", user.astype(str)), "item": np.char.add("i", item.astype(str))}
    return {"user": user, "item": item}


def make_trainer(loss=None, **options):
    set_seed(0)
    features = Features([Categorical("user"), Categorical("item")], label="item")
    net = TwoTower(features, ["item"], dim=8, hidden=[16], width=8)
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    return Trainer(net, loss or InBatchSoftmax(0.2), optimizer, features=features, seed=0, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trainer, the losses of its last epoch batch by batch, and what it published."""
    root = tmp_path_factory.mktemp("towers") / "published"
    trainer = make_trainer()
    trainer.fit(choices(15 * 128), epochs=8, batch_size=128, callbacks=[Publish(root, batch=64)])
    return trainer, root


ALL_USERS = {"user": [f"u{n}" for n in range(USERS)]}
ALL_ITEMS = {"item": [f"i{n}" for n in range(ITEMS)]}


def test_vectors_of_users_and_items_come_from_their_columns_alone(trained, caplog):
    trainer, root = trained
    users, items = user_vectors(trainer, ALL_USERS), item_vectors(trainer, ALL_ITEMS)
    assert (users.shape, items.shape) == ((USERS, 8), (ITEMS, 8))
    np.testing.assert_allclose(np.square(items).sum(1), 1, rtol=1e-4)
    with ServedModel(root, follow=False) as served:
        np.testing.assert_array_equal(user_vectors(served, ALL_USERS), users)
        np.testing.assert_array_equal(item_vectors(served, ALL_ITEMS), items)
    assert not [record.getMessage() for record in caplog.records if "is missing in all" in record.getMessage()]


@pytest.mark.parametrize("method", ["exact", "hnsw"])
def test_a_user_is_given_items_of_the_kind_that_he_chose(trained, method):
    trainer, _ = trained
    index = ItemIndex.of_model(trainer, ALL_ITEMS, ALL_ITEMS["item"], method)
    ids, scores = index.search(user_vectors(trainer, ALL_USERS), 3)
    liked = [[int(item[1:]) % TASTES == n % TASTES for item in row] for n, row in enumerate(ids)]
    assert np.mean(liked) > 0.9
    assert np.all(np.diff(scores, axis=1) <= 0)


def test_numbers_that_are_vectors_stand_beside_numbers_that_are_not():
    features = Features(
        [Categorical("user"), Categorical("item"), Numeric("price", embedding="mlp"), Numeric("age")], label="item"
    )
    net = TwoTower(features, ["item", "price"], dim=4, hidden=[8], width=4)
    trainer = Trainer(net, InBatchSoftmax(0.2), nn.Adam(net.trainable_params(), 1e-2), features=features)
    rows = choices(64)
    trainer.fit({**rows, "price": np.ones(64), "age": np.arange(64.0)}, epochs=1, batch_size=32)
    vectors = [user_vectors(trainer, {"user": ["u1"], "age": [age]}) for age in (0.0, 50.0)]
    assert not np.allclose(*vectors)


class Losses(Callback):
    def __init__(self):
        self.losses = []

    def on_train_step_end(self, trainer):
        self.losses.extend(map(float, trainer.state.outputs.losses))


@pytest.mark.long
def test_the_negatives_of_a_batch_of_any_size_are_its_own_rows():
    """Batches of many sizes are filled up where rows are independent; here a copied row would be a negative."""
    from tests.trainer.models.test_interactions import close, softmax_loss

    trainer, rows = make_trainer(), choices(300, dtype=str)
    trainer.optimizer.learning_rate.set_data(0.0 * trainer.optimizer.learning_rate)
    sizes = [32, 20, 9]
    starts = np.cumsum([0, *sizes])
    batches = [{name: column[a : a + n] for name, column in rows.items()} for a, n in zip(starts, sizes, strict=False)]
    losses = Losses()
    for batch in batches:
        trainer.fit(batch, epochs=1, batch_size=len(batch["item"]), callbacks=[losses])
    outputs = trainer.predict(rows)
    for loss, start, size in zip(losses.losses, starts, sizes, strict=False):
        part = slice(start, start + size)
        item = rows["item"][part]
        shares = np.array([(item == name).mean() for name in item])
        close(loss, softmax_loss(outputs[part], item, 0.2, np.log(shares)))


@pytest.mark.long
def test_a_stream_estimates_how_often_items_are_sampled_and_goes_on_where_it_was(tmp_path):
    def make():
        return make_trainer(InBatchSoftmax(0.2, "running", buckets=101), metrics=["loss"])

    rows, whole = choices(640), make()
    whole.online_train(ReplayStream(rows), [], batch_size=32, sink_size=2)
    first = make()
    saved = ModelCheckpoint(tmp_path, Every(steps=10))
    first.online_train(ReplayStream(rows), [saved], batch_size=32, sink_size=2, max_steps=10)
    again = make()
    again.online_train(ReplayStream(rows), [], batch_size=32, sink_size=2, resume=tmp_path / "step_00000010")
    for name in ("step", "interval", "last_step"):
        wanted = getattr(whole.loss_fn, name).asnumpy()
        np.testing.assert_array_equal(getattr(again.loss_fn, name).asnumpy(), wanted)
    assert int(again.loss_fn.step.asnumpy()[0]) == 20
    frequent, rare = (again.loss_fn.interval.asnumpy()[_bucket(name, 101)] for name in ("i0", "i20"))
    assert 1 <= frequent < rare
    np.testing.assert_array_equal(again.predict(ALL_USERS), whole.predict(ALL_USERS))


def _bucket(name, buckets):
    from trainer.embedding.tables.hashing import to_ids

    return int((to_ids(np.array([name]))[0] & 0x7FFFFFFF) % buckets)


def test_accumulated_batches_would_have_other_negatives():
    with pytest.raises(ConfigurationError, match=r"gradient_accumulation_steps=2: InBatchSoftmax compares each row"):
        make_trainer(gradient_accumulation_steps=2)


def test_items_as_floats_are_refused_with_the_cure():
    features = make_features("price")
    net = TwoTower(features, ["item", "price"], dim=4, hidden=[4], width=4)
    trainer = Trainer(net, InBatchSoftmax(), nn.Adam(net.trainable_params()), features=features)
    with pytest.raises(Exception, match="label_dtype='int32'"):
        trainer.fit(make_rows(), batch_size=64)


def test_a_model_of_one_tower_has_no_vectors_of_users():
    class Scores:
        def predict(self, rows):
            return np.zeros(len(rows["user"]), np.float32)

    with pytest.raises(ConfigurationError, match=r"come from two_tower, .*shape \[2\]"):
        user_vectors(Scores(), {"user": [1, 2]})


def test_the_nearest_items():
    random = np.random.default_rng(0)
    users, items = random.normal(size=(3, 4)), random.normal(size=(9, 4))
    order = np.argsort(-users @ items.T, axis=1)[:, :5]
    best, scores = top_items(users, items, 5)
    np.testing.assert_array_equal(best, order)
    np.testing.assert_allclose(scores, np.take_along_axis(users @ items.T, order, 1), rtol=1e-5)
    assert top_items(users, items, 20)[0].shape == (3, 9)
    np.testing.assert_array_equal(top_items(np.ones((1, 4)), np.ones((6, 4)), 3)[0], [[0, 1, 2]])


def test_of_items_with_the_score_of_the_last_one_the_first_are_taken():
    """A user without a history has a vector of zeros, so all items tie."""
    random = np.random.default_rng(0)
    users, items = random.integers(-1, 2, (20, 3)), random.integers(-1, 2, (500, 3))
    users[0] = 0
    order = np.argsort(-users @ items.T, axis=1, kind="stable")
    for count in (1, 10, 499, 500):
        np.testing.assert_array_equal(top_items(users, items, count)[0], order[:, :count])
    index = ItemIndex(np.arange(500), items)
    np.testing.assert_array_equal(index.search(users, 5, exclude=order[:, :1].tolist())[0], order[:, 1:6])


@pytest.mark.parametrize("method", ["exact", "hnsw"])
@pytest.mark.parametrize("ids", [np.arange(100, 1100), np.array([f"item {n}" for n in range(1000)])])
def test_an_index_answers_with_ids_and_leaves_out_what_was_seen(method, ids):
    random = np.random.default_rng(0)
    items, users = (random.normal(size=(n, 8)).astype(np.float32) for n in (1000, 20))
    index = ItemIndex(ids, items, method)
    exact = ids[np.argsort(-users @ items.T, axis=1)]
    answers, scores = index.search(users, 10)
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(answers, exact[:, :10], strict=True)]) > 0.95
    seen = [exact[n, :n].tolist() for n in range(20)]
    answers, scores = index.search(users, 10, exclude=seen)
    assert not any(set(row) & set(hidden) for row, hidden in zip(answers, seen, strict=True))
    if method == "exact":
        np.testing.assert_array_equal(answers, [exact[n, n : n + 10] for n in range(20)])
    assert np.isfinite(scores).all()
    one = ItemIndex(ids[:2], items[:2], method)
    assert one.search(users[:1], 5, exclude=[ids[:1]])[0][0, 0] == ids[1]
    assert one.search(users[:1], 5, exclude=[ids[:1]])[1][0, 1] == -np.inf


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
@pytest.mark.parametrize("ids", [np.array([7, 3]), np.array(["a", "bc"])])
def test_vectors_are_read_as_they_were_written(tmp_path, ending, ids):
    path = tmp_path / f"items{ending}"
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_vectors(path, ids, vectors)
    got_ids, got = read_vectors(path)
    np.testing.assert_array_equal(got_ids, ids)
    np.testing.assert_array_equal(got, vectors)
    assert ItemIndex.read(path).search([[1, 1, 1]], 1)[0] == [[ids[1]]]
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="items"):
        read_vectors(path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ItemIndex([1, 1], np.ones((2, 3))), "1 occurs 2 times"),
        (lambda: ItemIndex([1], np.ones((2, 3))), "1 ids and 2 vectors"),
        (lambda: ItemIndex([1], [[np.nan, 1]]), "row 0 is not finite"),
        (lambda: ItemIndex([1], [[1.0]], "annoy"), "'exact', 'hnsw'"),
        (lambda: ItemIndex([1], [[1.0]]).search([[1, 2]]), "users have 2 columns, items 1"),
        (lambda: ItemIndex([1], [[1.0]]).search([[1.0]], exclude=[]), "0 lists for 1 users"),
        (lambda: ItemIndex([1], [[1.0]]).search([[1.0]], exclude=[["a"]]), "ids are int64"),
        (lambda: ItemIndex([1.5], [[1.0]]), "integers or text"),
        (lambda: ItemIndex([2**63 + 5], [[1.0]]), r"integers below 2\*\*63, or text; received 9223372036854775813"),
        (lambda: write_vectors("a.csv", [1], [[1.0]]), ".npz or .parquet"),
        (lambda: InBatchSoftmax(correction="running", rate=0), "rate"),
        (lambda: InBatchSoftmax(correction="stream"), "'batch', 'running'"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ConfigurationError, match=message):
        call()


def test_without_faiss_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigurationError, match=r"mindspore-trainer\[retrieval\]"):
        ItemIndex([1], [[1.0]], "hnsw")


def test_a_label_that_a_feature_reads_keeps_its_ids():
    features = Features([Categorical("item", dtype="int64"), Categorical("name"), Numeric("price")], label="item")
    rows = features.read({"item": [2**40, 2**40 + 1, None], "name": ["a", "b", "c"], "price": [1, 2, 3]})
    assert list(rows.bad) == [2]
    labels = features.batch(rows.columns)["item"]
    assert labels.dtype == np.int64
    assert len(set(labels.tolist())) == 2
