"""Tables of float16 in a Trainer: snapshots with deltas, resume, what is refused, declared features."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from callbacks import ModelCheckpoint
from trainer import Trainer, checkpoint
from trainer.checkpoint import capture
from trainer.embedding import Embedding, EmbeddingBag, EmbeddingGroup, Eviction, RowAdam, RowSGD
from trainer.embedding.layers.embedding_cells import embedding_cells
from trainer.errors import CheckpointMismatchError, ConfigurationError
from trainer.features import Categorical, FeatureEmbedding, Features

DIM = 5
RNG = np.random.default_rng(0)
DATA = {
    "user": RNG.integers(0, 300, 1200),
    "item": RNG.integers(0, 400, 1200) * 7919,
    "label": (RNG.random(1200) < 0.5).astype(np.float32),
}


class Net(nn.Cell):
    """Users of float32 beside items of another dtype, of which some are evicted."""

    def __init__(self, dtype="float16"):
        super().__init__()
        rule = RowAdam(row_wise=True)
        self.user = Embedding(DIM, name="user", optimizer=rule)
        self.item = Embedding(
            DIM, 250, eviction=Eviction("lru"), mode="sparse", name="item", dtype=dtype, optimizer=rule
        )
        self.head = nn.Dense(DIM, 1)

    def construct(self, user, item):
        return self.head(self.user(user) * self.item(item)).reshape(-1)


def build(dtype="float16"):
    ms.set_seed(1)
    network = Net(dtype)
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.01), seed=3)


def fit(trainer, **options):
    trainer.fit(DATA, batch_size=50, **{"epochs": 2, "callbacks": [], "sink_size": 4, **options})
    tables = trainer.tables.tables.tables
    ids = {name: np.sort(table.map.items()[0]) for name, table in tables.items()}
    return {name: (ids[name], table.store.stored(table.lookup(ids[name]))) for name, table in tables.items()}


@pytest.fixture(scope="module")
def whole():
    return fit(build())


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    fit(build(), max_steps=28, callbacks=[ModelCheckpoint(root, every=4)])
    return root


def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(whole, snapshots):
    states = capture.part_states(checkpoint.find(snapshots), "tables")
    assert [state["json"]["item"]["full"] for state in states][:2] == [True, False]
    assert {name: array.dtype for name, array in states[0]["arrays"].items() if "values" in name} == {
        "user/values": np.float32,
        "item/values": np.float16,
    }
    resumed = fit(build(), resume=snapshots)
    for name, (ids, rows) in whole.items():
        assert np.array_equal(resumed[name][0], ids)
        assert np.array_equal(resumed[name][1].view(np.uint16), rows.view(np.uint16))
    moved = whole["item"][1][:, :DIM].astype(np.float32)
    assert np.abs(moved).max() > 0.02, "beyond the first values"


class Odd(nn.Cell):
    """Rows without slots: three weights of a user are trained, the one that is known is only read."""

    def __init__(self):
        super().__init__()
        self.user = Embedding(3, name="user", dtype="float16", optimizer=RowSGD(0.5))
        known = np.arange(300.0)[:, None] / 300
        self.known = Embedding.from_pretrained(known, trainable=False, name="known", dtype="float16")
        self.head = nn.Dense(3, 1)

    def construct(self, user, item):
        return self.head(self.user(user) + self.known(user)).reshape(-1)


def build_odd():
    ms.set_seed(1)
    network = Odd()
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.01), seed=3)


def test_rows_of_an_odd_width_without_slots_are_restored(tmp_path):
    whole = fit(build_odd())
    fit(build_odd(), max_steps=28, callbacks=[ModelCheckpoint(tmp_path, every=4)])
    resumed = fit(build_odd(), resume=tmp_path)
    for name, (ids, rows) in whole.items():
        assert np.array_equal(resumed[name][0], ids)
        assert np.array_equal(resumed[name][1].view(np.uint16), rows.view(np.uint16))


def test_another_dtype_is_refused_by_name_and_init_from_converts(snapshots):
    with pytest.raises(
        CheckpointMismatchError, match=r"table 'item' has dtype float32, the saved one float16: .*init_from converts"
    ):
        fit(build("float32"), resume=snapshots)
    trainer, own, ids = build("float32"), build(), Tensor(DATA["item"][-40:])
    trainer.init_from(snapshots)
    fit(own, resume=snapshots, max_steps=28)
    vectors = own.network.item(ids).asnumpy()
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, trainer.network.item(ids).asnumpy())


def test_what_cannot_be_float16_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="dtype takes 'float32', 'float16'; received 'float8'"):
        Embedding(4, dtype="float8")
    with pytest.raises(ConfigurationError, match="dtype='float16' needs mode='sparse' or 'auto'"):
        EmbeddingBag(4, 100, mode="dense", dtype="float16")
    with pytest.raises(
        ConfigurationError, match="dtype must be that of the shared table, 'float32'; received 'float16'"
    ):
        Embedding(4, table=Embedding(4), dtype="float16")
    assert not Embedding(4, 100, dtype="float16").is_dense
    group = EmbeddingGroup(4, {"a": {}, "b": {"table": "a"}}, dtype="float16")
    assert [cell.spec.dtype for cell in group.members] == ["float16", "float16"]


def test_a_declared_feature_chooses_the_dtype_of_its_table():
    cities = Categorical("city", options={"dtype": "float16"})
    embedding = FeatureEmbedding(Features([cities, Categorical("shop")], label="y"), 4)
    dtypes = {cell.spec.name: cell.spec.dtype for cell in embedding_cells(embedding)}
    assert dtypes == {"city": "float16", "shop": "float32"}
