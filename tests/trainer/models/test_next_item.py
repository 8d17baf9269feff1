"""SASRec, HSTU and BPR: the equations of their losses, causality, and a planted order that each learns and serves."""

import numpy as np
import pytest
from mindspore import Tensor, set_seed

from callbacks import ModelCheckpoint
from tests.trainer.models.tables import make_features
from trainer import Trainer, models
from trainer.data.finite.interactions import DrawnNegatives, interactions
from trainer.errors import ConfigurationError, DataError
from trainer.features import Categorical, Features, ListFeature
from trainer.models import BPR, GBCE, HSTU, BPRLoss, InBatchSoftmax, ItemIndex, SASRec, item_vectors, user_vectors
from trainer.serving import Publish, ServedModel
from trainer.serving.http.openapi import openapi_document
from trainer.serving.http.service_call import ServeOptions
from trainer.serving.published_items import ItemTable, PublishedItems

ITEMS = 20
ALL = {"item": [f"i{n}" for n in range(ITEMS)]}


def walks(rows, seed=0):
    """Return histories in which item n follows item n - 1, and the item that follows each."""
    random = np.random.default_rng(seed)
    starts, lengths = random.integers(0, ITEMS, rows), random.integers(1, 7, rows)
    history = [
        [f"i{(first + n) % ITEMS}" for n in range(length)] for first, length in zip(starts, lengths, strict=False)
    ]
    return {"history": history, "item": [f"i{n % ITEMS}" for n in starts + lengths]}


def declared(**options):
    item = {"table": "item", "options": options or None}
    return Features(
        [Categorical("item", **item), ListFeature("history", pooling=None, max_length=6, **item)], label="item"
    )


def train(net, loss, features, rows, epochs, callbacks=()):
    trainer = Trainer(net, loss, ("adam", {"learning_rate": 1e-2}), features=features, seed=0)
    trainer.fit(rows, epochs=epochs, batch_size=32, callbacks=list(callbacks), sink_size=4)
    return trainer


@pytest.mark.parametrize(
    ("model", "options", "loss", "epochs"),
    [
        (SASRec, {"blocks": 1}, InBatchSoftmax(1.0), 10),
        (HSTU, {"layers": 1, "normalize": True}, InBatchSoftmax(0.05), 10),
        pytest.param(SASRec, {"blocks": 1, "dropout": 0.0}, GBCE(ITEMS), 40, marks=pytest.mark.long),
        pytest.param(HSTU, {"heads": 2}, BPRLoss(), 12, marks=pytest.mark.long),
    ],
)
def test_a_planted_order_is_learned_and_recommended(model, options, loss, epochs, tmp_path):
    set_seed(0)
    features = declared()
    net = model(features, dim=16, **options)
    publish = Publish(tmp_path, 60.0, items=ALL, item_id="item")
    trainer = train(net, loss, features, walks(256), epochs, [publish])
    test = walks(64, 1)
    users = user_vectors(trainer, {"history": test["history"]})
    first = ItemIndex(ALL["item"], item_vectors(trainer, ALL)).search(users, 1)[0][:, 0]
    assert np.mean(first == np.array(test["item"])) > 0.9
    with ServedModel(tmp_path, follow=False) as served:
        assert [ids[0] for ids in served.recommend({"history": test["history"]}, 1).ids] == first.tolist()
        answer = served.recommend(k=ITEMS, history=test["history"][:3], without=[["i3"], [], []])
        for row, ids in enumerate(answer.ids):
            left_out = {*test["history"][row], *(["i3"] if row == 0 else [])}
            assert sorted(ids) == sorted(set(ALL["item"]) - left_out)
            assert ids[0] == first[row] or first[row] in left_out
        for arguments, message in (
            ({"history": [["i1"]], "users": {"history": [["i1"]]}}, "one of the two"),
            ({}, "one of the two"),
            ({"history": [["i1"]], "without": []}, "0 lists in without=, but 1"),
            ({"history": [[1]]}, "are text; received 1"),
            ({"history": ["i1"]}, "list of ids for each user"),
        ):
            with pytest.raises((ConfigurationError, DataError), match=message):
                served.recommend(**arguments)
    assert not user_vectors(trainer, {"history": [[]]}).any()  # of nobody nothing is known


def test_bpr_learns_who_likes_what():
    set_seed(0)
    random = np.random.default_rng(0)
    user = random.integers(0, 40, 2000)
    rows = {"user": user, "item": random.integers(0, 5, 2000) * 4 + user % 4}
    features = Features([Categorical("user", dtype="int64"), Categorical("item", dtype="int64")], label="item")
    trainer = train(BPR(features, ["item"], dim=8), BPRLoss(), features, rows, 10)
    index = ItemIndex.of_model(trainer, {"item": np.arange(20)}, np.arange(20))
    ids, _ = index.search(user_vectors(trainer, {"user": np.arange(40)}), 5)
    assert np.mean(ids % 4 == np.arange(40)[:, None] % 4) > 0.95


def bpr_of_negatives():
    item = {"dtype": "int64", "table": "item"}
    columns = [Categorical("user", dtype="int64"), Categorical("item", **item)]
    features = Features([*columns, ListFeature("negatives", pooling=None, **item)], label="item")
    return features, BPR(features, ["item"], dim=4, negatives="negatives")


def test_bpr_compares_with_the_negatives_of_each_epoch_also_when_it_goes_on(tmp_path):
    random = np.random.default_rng(0)
    user = random.integers(0, 20, 300)
    rows = {"user": user, "item": random.integers(0, 10, 300) * 2 + user % 2}
    drawn, results = [], []

    class Noted(DrawnNegatives):
        def of_epoch(self, epoch):
            drawn.append(epoch)
            return super().of_epoch(epoch)

    data = Noted(rows, "user", "item", "negatives", np.arange(20), 3, 0)
    for epochs in ((4,), (2, 2)):
        set_seed(0)
        for part in range(len(epochs)):
            features, net = bpr_of_negatives()
            trainer = Trainer(net, BPRLoss(), ("adam", {"learning_rate": 3e-2}), features=features, seed=0)
            save = ModelCheckpoint(tmp_path / str(len(epochs)))
            resume = tmp_path / str(len(epochs)) if part else None
            trainer.fit(data, epochs=sum(epochs[: part + 1]), batch_size=64, callbacks=[save], resume=resume)
        results.append(user_vectors(trainer, {"user": np.arange(20)}))
    assert drawn == [0, *(1, 2, 3), *(1, 2, 3)]
    np.testing.assert_array_equal(*results)
    items = item_vectors(trainer, {"item": np.arange(20)})
    published = ItemTable({"item": np.arange(20)}, "item").state(trainer, features, net)
    assert published["json"]["user_columns"] == ["user"]  # a served user has no negatives
    fields = features.unlabelled_schema.fields
    body = openapi_document(ServeOptions(), fields, PublishedItems(published))["paths"]["/predict"]["post"][
        "requestBody"
    ]
    *_, row = body["content"]["application/json"]["schema"]["anyOf"]
    assert (list(row["properties"]), "negatives" in fields) == (["user", "item"], True)
    scores = results[0] @ items.T
    assert np.mean(np.argsort(-scores, axis=1)[:, :10] % 2 == np.arange(20)[:, None] % 2) > 0.9
    net.set_train()
    vectors, negatives = random.normal(size=(2, 8)).astype(np.float32), random.normal(size=(2, 3, 4)).astype(np.float32)
    kept = np.array([[1, 1, 0], [1, 0, 0]], np.float32)
    own = (vectors[:, :4] * vectors[:, 4:]).sum(1)
    each = np.log1p(np.exp(np.einsum("nd,nkd->nk", vectors[:, :4], negatives) - own[:, None]))
    loss = BPRLoss()((Tensor(vectors), Tensor(negatives), Tensor(kept)), None)
    np.testing.assert_allclose(loss.asnumpy(), (each * kept).sum() / 3, rtol=1e-5)


def test_negatives_of_a_softmax_are_refused():
    features, net = bpr_of_negatives()
    data = interactions({"user": [1, 1, 2, 2, 2], "item": [1, 2, 3, 4, 2]}, "train", "random", negatives=2)
    with pytest.raises(Exception, match=r"BPR\(negatives=\.\.\.\) needs BPRLoss"):
        train(net, InBatchSoftmax(1.0), features, data, 1)


@pytest.mark.parametrize("model", [SASRec, HSTU])
def test_a_place_sees_what_came_before_it_and_no_padding(model):
    """While it trains, each place has the vector that its prefix alone gives, and the item that follows it."""
    set_seed(0)
    net = model(declared(mode="dense", capacity=30), dim=8, dropout=0.0)
    for parameter in net.trainable_params():
        parameter.set_data(Tensor(np.random.default_rng(0).normal(0, 0.3, parameter.shape), parameter.dtype))
    padding = net.embedding.rows[0].padding
    histories, items = [[3, 1, 4, 1, 5], [9, 2], []], np.array([6, 5, 3])
    padded = np.full((3, 5), padding)
    for row, history in enumerate(histories):
        padded[row, : len(history)] = history
    vectors, rows, kept = (part.asnumpy() for part in net.set_train()(Tensor(items[:, None]), Tensor(padded)))
    net.set_train(False)
    assert kept.sum(1).tolist() == [5, 2, 0]
    for row, history in enumerate(histories):
        following = [*history, items[row]][1:]
        assert rows[row, : len(history)].tolist() == following
        for place, item in enumerate(following):
            prefix = Tensor(np.array([history[: place + 1]]))
            alone = net(Tensor(np.array([[item]])), prefix).asnumpy()[0]
            # positions are counted back from the newest item, so those of a prefix differ: compare without them
            if place == len(history) - 1:
                np.testing.assert_allclose(vectors[row, place], alone, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(vectors[row, place, 8:], alone[8:], rtol=1e-5)
    changed = padded.copy()
    changed[0, 3:] = [7, 8]
    again = net.set_train()(Tensor(items[:, None]), Tensor(changed))[0].asnumpy()
    np.testing.assert_array_equal(again[0, :2], vectors[0, :2])
    assert not np.allclose(again[0, 3, :8], vectors[0, 3, :8])


def plain(name, users, items, item, rows):
    """Return the mean loss of the rows that count, by its formula, row by row."""
    chosen = np.flatnonzero(rows)
    share = {number: np.mean(item[chosen] == number) for number in item[chosen]}
    losses = []
    for row in chosen:
        own = users[row] @ items[row]
        others = {n: np.mean([users[row] @ items[r] for r in chosen if item[r] == n]) for n in share if n != item[row]}
        each = np.array(list(others.values()))
        if name == "softmax":
            of_rows = [r for r in chosen if item[r] != item[row]]
            logits = [(users[row] @ items[r]) / 0.5 - np.log(share[item[r]]) for r in of_rows]
            mine = own / 0.5 - np.log(share[item[row]])
            losses.append(np.log(np.exp([mine, *logits]).sum()) - mine)
        elif name == "bpr":
            losses.append(np.log1p(np.exp(each - own)).mean())
        else:
            rate = len(each) / (50 - 1)
            power = rate * (0.75 * (1 - 1 / rate) + 1 / rate)
            losses.append((power * np.log1p(np.exp(-own)) + np.log1p(np.exp(each)).sum()) / (len(each) + 1))
    return np.mean(losses)


@pytest.mark.parametrize(
    ("name", "loss"), [("softmax", InBatchSoftmax(0.5)), ("gbce", GBCE(50, 0.75)), ("bpr", BPRLoss())]
)
def test_the_losses_are_those_of_their_formulas_for_rows_and_for_places(name, loss):
    random = np.random.default_rng(0)
    users = random.normal(size=(12, 4)).astype(np.float32)
    table = random.normal(size=(5, 4)).astype(np.float32)
    item = random.integers(0, 5, 12).astype(np.int32)
    vectors = np.concatenate((users, table[item]), 1)
    of_rows = loss(Tensor(vectors), Tensor(item)).asnumpy()
    np.testing.assert_allclose(of_rows, plain(name, users, table[item], item, np.ones(12)), rtol=1e-5)
    kept = np.array([1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1], np.float32)
    places = Tensor(vectors.reshape(3, 4, 8)), Tensor(item.reshape(3, 4)), Tensor(kept.reshape(3, 4))
    np.testing.assert_allclose(
        loss(places, Tensor(item[:3])).asnumpy(), plain(name, users, table[item], item, kept), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SASRec(make_features(pooling=None)),
            r"reads only the history \(history\) and the item \(item\); feature 'age'",
        ),
        (lambda: HSTU(make_features()), "HSTU needs a history"),
        (lambda: SASRec(declared(), dim=6, heads=4), r"heads=4\) does not divide the width 6"),
        (lambda: HSTU(declared(), layers=0), "layers"),
        (lambda: SASRec(declared(), dropout=1), "dropout"),
        (lambda: BPR(make_features(), ["item"]), "'age' is a number"),
        (lambda: BPR(Features([Categorical("user"), Categorical("item")]), ["itm"]), "did you mean 'item'"),
        (lambda: BPR(declared(), ["item"], negatives="histori"), "did you mean 'history'"),
        (lambda: BPR(make_features(pooling=None), ["item", "age"], negatives="history"), "is a number"),
        (lambda: BPR(declared(), ["item", "history"], negatives="history"), "one feature of the item"),
        (lambda: GBCE(1), "items"),
        (lambda: GBCE(9, 1.5), "calibration"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_running_estimate_is_refused_where_the_items_are_known_by_their_places():
    features = declared()
    net = SASRec(features, dim=4, blocks=1)
    with pytest.raises(Exception, match="use correction='batch'"):
        train(net, InBatchSoftmax(1.0, "running", buckets=16), features, walks(32), 1)


def test_the_models_are_known_by_name():
    assert [models.MODELS[name] for name in ("bpr", "sasrec", "hstu")] == ["BPR", "SASRec", "HSTU"]


@pytest.mark.parametrize("loss", [InBatchSoftmax(0.5), GBCE(ITEMS), BPRLoss()], ids=lambda loss: type(loss).__name__)
def test_a_batch_of_users_without_a_history_changes_no_weight(loss):
    features = declared()
    net = SASRec(features, dim=4, blocks=1, dropout=0.0)
    trainer = train(net, loss, features, walks(32), 1)
    before = {p.name: p.asnumpy().copy() for p in net.trainable_params()}
    optimizer = trainer.optimizer
    trainer.learning_rate = 0.0 * trainer.learning_rate
    trainer.fit({"history": [[], [], []], "item": ["i1", "i2", "i3"]}, 1, batch_size=3, callbacks=[])
    assert trainer.state.train_loss == 0
    assert optimizer is trainer.optimizer
    for parameter in net.trainable_params():
        np.testing.assert_array_equal(parameter.asnumpy(), before[parameter.name])
