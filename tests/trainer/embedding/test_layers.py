"""Embedding cells: bags, given vectors, what their constructors refuse."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from trainer import Trainer
from trainer.data.ragged import Ragged
from trainer.embedding import Embedding, EmbeddingBag, EmbeddingGroup, RowSGD
from trainer.embedding.tables.hashing import to_ids
from trainer.errors import ConfigurationError
from trainer.features import Categorical, FeatureEmbedding, Features

IDS = np.array([[5, 9, -1], [-1, -1, -1], [9, 9, 7]])
WEIGHTS = np.array([[1.0, 3.0, 5.0], [1.0, 1.0, 1.0], [0.5, 0.5, 2.0]], np.float32)
VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4) + 1


class Summed(nn.Cell):
    """The sum of the numbers of a row's vectors."""

    def __init__(self, dim, **options):
        super().__init__()
        self.words = Embedding(dim, mode="sparse", name="words", **options)
        self.bias = ms.Parameter(Tensor([0.0]), name="bias")

    def construct(self, ids):
        return self.words(ids).sum(axis=(1, 2)) + self.bias


def bag(combiner):
    cell = EmbeddingBag(4, combiner=combiner, name=f"bag_{combiner}")
    cell.host_table().put(np.array([5, 9, 7]), VECTORS)
    return cell


def expected(combiner, ids, weights):
    rows = np.stack([VECTORS[[5, 9, 7].index(i)] if i >= 0 else np.zeros(4) for i in ids.ravel().tolist()])
    factor = np.where(ids >= 0, weights, 0)
    total = (rows.reshape(*ids.shape, 4) * factor[..., None]).sum(1)
    norm = {"sum": 1, "mean": factor.sum(1), "sqrtn": np.sqrt((factor**2).sum(1))}[combiner]
    return total / np.where(norm == 0, 1, norm).reshape(-1, 1) if combiner != "sum" else total


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_bags_combine_padded_ids(combiner):
    cell = bag(combiner)
    ones = np.ones_like(WEIGHTS)
    np.testing.assert_allclose(cell(Tensor(IDS)).asnumpy(), expected(combiner, IDS, ones), rtol=1e-6)
    weighted = cell(Tensor(IDS), Tensor(WEIGHTS)).asnumpy()
    np.testing.assert_allclose(weighted, expected(combiner, IDS, WEIGHTS), rtol=1e-6)


def test_bags_combine_ids_with_offsets():
    flat, offsets = np.array([5, 9, 9, 9, 7]), np.array([0, 2, 2], np.int32)
    out = bag("mean")(Tensor(flat), None, Tensor(offsets)).asnumpy()
    np.testing.assert_allclose(out[0], VECTORS[:2].mean(0))
    assert not out[1].any()
    np.testing.assert_allclose(out[2], (2 * VECTORS[1] + VECTORS[2]) / 3, rtol=1e-6)
    dense = EmbeddingBag(4, 10, mode="dense", scale=1.0)
    weights = Tensor(np.array([1, 2, 0, 0, 3], np.float32))
    graph = dense.compile_and_run(Tensor(flat, ms.int32), weights, Tensor(offsets)).asnumpy()
    rows = dense.weight.asnumpy()
    np.testing.assert_allclose(graph[[0, 2]], [rows[5] + 2 * rows[9], 3 * rows[7]], rtol=1e-6)


@pytest.mark.parametrize("mode", ["sparse", "dense"])
def test_padding_gives_zeros(mode):
    cell = Embedding(4, 10, mode=mode, padding=3, name=f"padded_{mode}", scale=1.0)
    out = cell(Tensor(np.array([[3, 1]], np.int32))).asnumpy()
    assert not out[0, 0].any()
    assert out[0, 1].any() == (mode == "dense")  # nothing was trained, so the sparse table knows no id


def test_vectors_have_ids_of_any_kind():
    words = ["the", "new york", "ü"]
    question = Tensor(np.append(to_ids(np.array(words))[::-1], 12345))
    answer = np.concatenate((VECTORS[::-1], np.zeros((1, 4))))
    cell = Embedding.from_pretrained(VECTORS, ids=words, name="words")
    np.testing.assert_array_equal(cell(question).asnumpy(), answer)
    numbered = Embedding.from_pretrained(Tensor(VECTORS), name="numbers")
    np.testing.assert_array_equal(numbered(Tensor([2, 0])).asnumpy(), VECTORS[[2, 0]])


@pytest.mark.parametrize(
    ("vectors", "options", "message"),
    [
        (np.ones(3), {}, r"numbers of shape \[n, dim\]; received .*float64 of shape \(3,\)"),
        (VECTORS, {"ids": [1, 1, 2]}, "ids must be distinct"),
        (VECTORS, {"ids": [1, 2]}, "one for each of the 3 vectors"),
        ("nowhere.txt", {}, r"numbers of shape \[n, dim\]"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(vectors, options, message):
    with pytest.raises(ConfigurationError, match=message):
        Embedding.from_pretrained(vectors, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"admission": 3}, "admission takes MinSightings, Probability or None; received 3"),
        ({"eviction": {"ttl": 3}}, "eviction takes Eviction, 'lru', 'lfu' or None; received {'ttl': 3}"),
        ({"scale": "x"}, "scale takes a number >= 0"),
        ({"padding": 0.5}, "padding takes a whole number"),
        ({"table": "items"}, "table takes another Embedding.* received 'items'"),
        ({"mode": "dense", "capacity": 9, "eviction": "lru"}, "mode='dense' .* no admission, eviction or path"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Embedding(4, **options)


class Words(nn.Cell):
    def __init__(self, trainable):
        super().__init__()
        self.words = Embedding.from_pretrained(VECTORS, trainable=trainable, name="words", optimizer=RowSGD())
        self.head = nn.Dense(8, 1)

    def construct(self, ids):
        return self.head(self.words(ids).reshape(ids.shape[0], -1)).reshape(-1)


@pytest.mark.long(but=["True"])
@pytest.mark.parametrize("trainable", [True, False])
def test_given_vectors_learn_only_if_they_may(trainable):
    ms.set_seed(0)
    network = Words(trainable)
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01), amp_level="O2", clip_norm=1.0)
    data = (np.array([[0, 1], [1, 50]] * 8), np.linspace(-1, 1, 16, dtype=np.float32))
    before = network.head.weight.asnumpy().copy()
    trainer.fit(data, epochs=2, batch_size=4, sink_size=1)
    table = network.words.host_table()
    moved = np.abs(table.store.read(table.lookup(np.arange(3))) - VECTORS).max(axis=1)
    assert not np.array_equal(before, network.head.weight.asnumpy())
    assert (moved[:2] > 0).all() == trainable
    assert moved[2] == 0
    assert len(table) == 3 + trainable
    assert np.isfinite(trainer.predict(np.array([[50, 2]]))).all()


@pytest.mark.long(but=["True"])
@pytest.mark.parametrize("in_file", [False, True])
def test_rows_put_before_the_first_training_are_trained(in_file, tmp_path):
    network = Summed(4, path=tmp_path / "rows" if in_file else None)
    network.words.host_table().put(np.array([5, 9, 7]), VECTORS)
    data = np.array([[5, 5]] * 4), np.zeros(4, np.float32)
    Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.5)).fit(data, batch_size=4, sink_size=1)
    found = network.words(Tensor(np.array([5, 9, 7]))).asnumpy()
    np.testing.assert_allclose(found[0], VECTORS[0] - 0.5, rtol=1e-3)  # the first step of Adam is the rate
    np.testing.assert_array_equal(found[1:], VECTORS[1:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "dim takes a whole number >= 1; received 0"),
        (
            {"dim": 4, "mode": "spares"},
            "mode takes 'auto', 'dense', 'sparse'; received 'spares'; did you mean 'sparse'",
        ),
        ({"dim": 4, "eviction": "lru"}, "'lru' needs a capacity"),
        ({"dim": 4, "eviction": "lur", "capacity": 5}, "received 'lur'; did you mean 'lru'"),
        ({"dim": 4, "mode": "dense"}, "mode='dense' needs a capacity"),
        ({"dim": 4, "optimizer": nn.Adam}, "optimizer takes a RowOptimizer"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        Embedding(**arguments)


def test_trainers_of_one_network_see_each_others_rows_whatever_the_size_of_their_batches():
    network = Summed(4)
    rng = np.random.default_rng(0)
    ids, target = rng.integers(0, 200_000, (12_000, 2)), rng.random(12_000).astype(np.float32)
    reader = Trainer(network)
    reader.predict((ids,), batch_size=1000)  # before there is an optimizer
    trainer = Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.1))
    trainer.fit((ids, target), batch_size=1000, callbacks=[])
    for batch_size in (1000, 12_000, 1000):
        own, read = (one.predict((ids,), batch_size=batch_size) for one in (trainer, reader))
        np.testing.assert_array_equal(own, read)


@pytest.mark.long
@pytest.mark.parametrize("steps", [1, 2], ids=["each batch", "accumulated"])
def test_a_large_batch_leaves_no_large_buffers_behind(steps):
    def trainer_of(network):
        optimizer = nn.SGD(network.trainable_params(), 1e-2)
        return Trainer(network, nn.MSELoss(), optimizer, gradient_accumulation_steps=steps)

    def rows(count):
        return rng.integers(0, 10_000, (count, 3)), rng.random(count).astype(np.float32)

    rng = np.random.default_rng(3)
    large, small, every = rows(4096), rows(64), np.arange(9999).reshape(-1, 3)
    networks = Summed(4), Summed(4)
    found = []
    for network, keeps in zip(networks, (True, False), strict=True):
        trainer = trainer_of(network)
        trainer.fit(large, batch_size=2048, shuffle=False, callbacks=[])
        size = len(network.words.working_set.rows)
        if not keeps:
            trainer = trainer_of(network)  # one that has not seen a large batch
        trainer.fit(small, batch_size=16, shuffle=False, callbacks=[])
        assert len(network.words.working_set.rows) <= 128 < 3000 < size
        trainer.fit(large, batch_size=2048, shuffle=False, callbacks=[])
        assert len(network.words.working_set.rows) == size
        found.append(trainer.predict((every,), batch_size=3333))
        trainer.predict((every,), batch_size=3)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("mode", ["sparse", "dense"])
def test_a_bag_does_not_read_the_padding_of_lists_from_a_shared_table(mode):
    without = Embedding(4, 20, mode=mode, name="without", scale=1.0)
    with pytest.raises(ConfigurationError, match=r"'without' has no padding id.*padding=-1, or give .*padding=None"):
        EmbeddingBag(4, table=without)
    whole = EmbeddingBag(4, table=without, padding=None, combiner="mean")
    ids = Tensor(np.array([[0, 3], [4, 0]]))
    np.testing.assert_allclose(whole(ids).asnumpy(), without(ids).asnumpy().mean(axis=1), rtol=1e-5)
    padded = Embedding(4, 20, mode=mode, name="padded", padding=7)
    assert EmbeddingBag(4, table=padded).padding == 7


class Weighed(nn.Cell):
    """A bag whose weights are learned."""

    def __init__(self, combiner):
        super().__init__()
        self.weigh = nn.Dense(1, 1, weight_init="ones")
        self.bag = EmbeddingBag(2, combiner=combiner, name="bag")

    def construct(self, ids, relevance):
        return self.bag(ids, self.weigh(relevance.expand_dims(-1)).reshape(ids.shape)).sum(axis=1)


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_an_empty_bag_leaves_the_weights_of_others_finite(combiner):
    network = Weighed(combiner)
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    data = {"ids": np.array([[1, 2], [-1, -1]]), "relevance": np.ones((2, 2), np.float32)}
    trainer.fit({**data, "label": np.ones(2, np.float32)}, 1, batch_size=2, callbacks=[])
    assert np.isfinite(network.weigh.weight.asnumpy()).all()


class OfFiles(nn.Cell):
    def __init__(self, paths):
        super().__init__()
        self.tables = nn.CellList([Embedding(2, mode="sparse", name=str(n), path=p) for n, p in enumerate(paths)])

    def construct(self, ids):
        return self.tables[0](ids).sum(axis=1) + self.tables[1](ids).sum(axis=1)


def test_two_tables_do_not_share_a_file(tmp_path):
    network = OfFiles([tmp_path / "rows", tmp_path / "x" / ".." / "rows"])
    trainer = Trainer(network, nn.MSELoss(), RowSGD(0.1))
    with pytest.raises(ConfigurationError, match=r"tables '0' and '1' have the same path=.*give each table its own"):
        trainer.fit((np.arange(4), np.ones(4, np.float32)), 1, batch_size=4, callbacks=[])


def test_a_group_names_a_table_that_is_no_earlier_one():
    with pytest.raises(ConfigurationError, match=r"table of 'seen', an earlier one,.*'itm'.*did you mean 'item'"):
        EmbeddingGroup(4, {"item": {}, "seen": {"table": "itm"}}, mode="sparse")


class History(nn.Cell):
    """An item beside the mean of a user's items, from one table."""

    def __init__(self):
        super().__init__()
        self.items = Embedding(4, mode="sparse", padding=-1, name="items")
        self.bag = EmbeddingBag(4, table=self.items, combiner="mean")
        self.top = nn.Dense(4, 1, weight_init="ones", bias_init="zeros")

    def score(self, history, item):
        return self.top(history * self.items(item))


class FlatHistory(History):
    def construct(self, history, history_offsets, item):
        return self.score(self.bag(history, None, history_offsets), item)


class PaddedHistory(History):
    def construct(self, history, item):
        return self.score(self.bag(history), item)


@pytest.mark.parametrize("sink_size", [1, 2])
def test_a_bag_with_offsets_shares_its_table_with_another_column(sink_size):
    random, found = np.random.default_rng(0), []
    lists = [random.integers(0, 30, size) for size in random.integers(0, 5, 24)]
    padded = np.full((24, 4), -1)
    padded[np.arange(4) < np.array([[len(ids)] for ids in lists])] = np.concatenate(lists)
    items, labels = random.integers(0, 30, 24), random.standard_normal((24, 1)).astype(np.float32)
    for network, history in ((FlatHistory(), Ragged.of(lists)), (PaddedHistory(), padded)):
        trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
        data = {"history": history, "item": items}
        options = {"batch_size": 8, "sink_size": sink_size, "shuffle": False, "callbacks": []}
        trainer.fit({**data, "label": labels}, 1, **options)
        found.append((trainer.read_tables()["items"]["rows"], trainer.predict(data, batch_size=5)))
    assert found[0][0] == found[1][0] == len(np.unique(np.concatenate([*lists, items])))
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5, atol=1e-7)


def test_a_small_table_with_a_row_optimizer_is_trained_by_it():
    """A dense parameter is updated by the Trainer's optimizer, so mode "auto" takes a sparse table."""
    assert not Embedding(4, 100, optimizer=RowSGD(0.1)).is_dense
    with pytest.raises(ConfigurationError, match=r"makes an ordinary parameter.*optimizer=RowSGD"):
        Embedding(4, 100, mode="dense", optimizer=RowSGD(0.1))
    group = EmbeddingGroup(4, {"a": {"mode": "dense", "capacity": 9}, "b": {}}, optimizer=RowSGD(0.1))
    assert [cell.is_dense for cell in group.members] == [True, False]
    options = {"mode": "dense", "capacity": 9, "optimizer": RowSGD(0.1)}
    group = EmbeddingGroup(4, {"a": {}, "b": {"mode": "sparse"}}, **options)
    assert [cell.is_dense for cell in group.members] == [True, False]
    with pytest.raises(ConfigurationError, match=r"makes an ordinary parameter.*optimizer=RowSGD"):
        EmbeddingGroup(4, ["a", "b"], **options)
    columns = [Categorical("a", hash_buckets=9), Categorical("b", options={"mode": "sparse"})]
    layer = FeatureEmbedding(Features(columns), 4, mode="dense", optimizer=RowSGD(0.1))
    assert [cell.is_dense for cell in layer.categories.members] == [True, False]
    with pytest.raises(ConfigurationError, match=r"makes an ordinary parameter.*optimizer=RowSGD"):
        FeatureEmbedding(Features(columns[:1]), 4, mode="dense", optimizer=RowSGD(0.1))


def test_a_small_table_with_a_file_is_kept_in_the_file(tmp_path):
    """A dense parameter has no file, so mode "auto" takes a sparse table."""
    assert not Embedding(4, 100, path=tmp_path / "rows").is_dense
    assert Embedding(4, 100).is_dense
