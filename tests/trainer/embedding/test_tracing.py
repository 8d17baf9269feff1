"""Which input columns feed which table: found by one run of the network on marked ids, whatever else it reads."""

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from trainer import LambdaCallback, Trainer
from trainer.embedding import Embedding
from trainer.embedding.layers import tracing
from trainer.embedding.layers.tracing import find_fields
from trainer.errors import ConfigurationError, DataError

NAMES = ("user", "age")
COLUMNS = (np.array([7, 9], np.int64), np.array([1, 2], np.int32))


class BesideMindSporesEmbedding(nn.Cell):
    """Raw ids beside a column that indexes an ordinary nn.Embedding of seven rows."""

    def __init__(self) -> None:
        super().__init__()
        self.user = Embedding(4)
        self.age = nn.Embedding(7, 4)

    def construct(self, user, age):
        return self.age(age) + self.user(user)


class BesidePlainGather(nn.Cell):
    """Raw ids beside a column that indexes a parameter of seven rows, read first."""

    def __init__(self) -> None:
        super().__init__()
        self.ages = Parameter(Tensor(np.ones((7, 4), np.float32)), name="ages")
        self.user = Embedding(4)

    def construct(self, user, age):
        ages = ops.gather(self.ages, age, 0)
        return self.user(user) + ages


class ComputedIds(nn.Cell):
    """Ids that are no input's."""

    def __init__(self) -> None:
        super().__init__()
        self.ages = Parameter(Tensor(np.ones((7, 4), np.float32)), name="ages")
        self.user = Embedding(4)

    def construct(self, user, age):
        return self.user(user * 3) + ops.gather(self.ages, age, 0)


@pytest.fixture(params=[mindspore.GRAPH_MODE, mindspore.PYNATIVE_MODE], ids=["graph", "pynative"])
def mode(request):
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=request.param)
    yield request.param
    mindspore.set_context(mode=before)


@pytest.mark.parametrize("network", [BesideMindSporesEmbedding, BesidePlainGather])
def test_raw_ids_are_found_beside_columns_that_index_small_tables_in_either_mode(network, mode):
    component = find_fields(network(), COLUMNS, NAMES).components[0]
    assert [part.column for part in component.parts] == [0]
    assert mindspore.get_context("mode") == mode


def test_ids_are_found_when_a_failure_of_the_first_run_surfaces_in_every_later_one(monkeypatch):
    # Eager operators fail late: how late depends on the machine. Here no run but the first comes through.
    run, runs = tracing.run_traced, []

    def late(network, cells, columns):
        runs.append(columns)
        received, failure = run(network, cells, columns)
        return (received, failure) if len(runs) == 1 else ([], RuntimeError("left over"))

    monkeypatch.setattr(tracing, "run_traced", late)

    class ReadFirst(BesidePlainGather):
        def construct(self, user, age):
            return self.user(user) + ops.gather(self.ages, age, 0)

    component = find_fields(ReadFirst(), COLUMNS, NAMES).components[0]
    assert len(runs) == 3
    assert [part.column for part in component.parts] == [0]


def test_mindspores_embeddings_take_any_id_in_the_trial_only():
    network = BesideMindSporesEmbedding()
    received, failure = tracing.run_traced(
        network, tracing.embedding_cells(network), [c + 1_000_000_007 for c in COLUMNS]
    )
    assert failure is None
    assert len(received) == 1
    rows = network.age(Tensor(np.array([3], np.int32))).asnumpy()
    np.testing.assert_array_equal(rows[0], network.age.embedding_table.asnumpy()[3])


def test_nothing_that_failed_late_is_left_for_the_next_operator():
    class Unused(BesidePlainGather):
        def construct(self, user, age):
            for _ in range(20):
                ops.gather(self.ages, age, 0)
            return self.user(user)

    tracing.run_traced(Unused(), [], [np.array([7, 9], np.int32), np.array([10**9, 10**9], np.int32)])
    np.testing.assert_array_equal((Tensor([1.0]) + 1).asnumpy(), [2.0])


def test_computed_ids_are_refused_without_mindspores_stack():
    with pytest.raises(ConfigurationError, match="do not come unchanged from an input column") as caught:
        find_fields(ComputedIds(), COLUMNS, NAMES)
    assert "input_indices" in str(caught.value)
    assert "Call Stack" not in str(caught.value)


class BehindBatchNorm(nn.Cell):
    """Tables read after cells that compute in low precision and beside numbers in it."""

    def __init__(self, *tables) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.dense = nn.Dense(2, 4)
        self.tables = nn.CellList(list(tables))
        self.head = nn.Dense(4 + 4 * len(tables), 1)

    def construct(self, numbers, *ids):
        found, low, weight = (self.dense(self.norm(numbers)),), 0.0, 1.0
        for place, table in enumerate(self.tables):
            vectors = table(ids[place])
            found += (vectors,)
            if vectors.dtype == mstype.float16:
                low += weight
            weight *= 2
        # known when the graph is compiled, and to be seen from outside
        return self.head(ops.concat(found, 1)).reshape(-1) + 1000 * low


@pytest.mark.long(but=["O2"])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_vectors_have_the_dtype_that_mindspores_embedding_gives_at_each_amp_level(level):
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 100, 32).astype(np.int32) for _ in range(3)]
    columns = (rng.standard_normal((32, 2), np.float32), *ids)
    network = BehindBatchNorm(Embedding(4, mode="sparse"), Embedding(4, 100), nn.Embedding(100, 4))
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.0), amp_level=level)
    losses = []
    note = LambdaCallback(on_train_step_end=lambda trainer: losses.extend(trainer.state.outputs.losses))
    trainer.fit((*columns, np.zeros(32, np.float32)), batch_size=16, callbacks=[note])
    # of labels 0 the loss is the logit where that is large
    found = losses[0] / 1000, trainer.predict(*columns).mean() / 1000
    assert tuple(map(round, found)) in ((0, 0), (7, 7))


class TwoDense(nn.Cell):
    """Two dense tables that read one column; only the first has padding."""

    def __init__(self) -> None:
        super().__init__()
        self.padded, self.plain = Embedding(2, 9, name="padded", padding=-1), Embedding(2, 10, name="plain")

    def construct(self, ids):
        return self.padded(ids) + self.plain(ids)


def test_each_dense_table_checks_its_own_ids():
    fields = find_fields(TwoDense(), (np.array([1, 2], np.int32),), ("ids",))
    assert [(field.name, field.capacity, field.padding) for field in fields.dense] == [
        ("padded", 9, -1),
        ("plain", 10, None),
    ]
    network = TwoDense()
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(DataError, match="dense table 'plain' takes ids from 0 to 9; received -1"):
        trainer.fit((np.array([1, -1]), np.ones((2, 2), np.float32)), 1, batch_size=2, callbacks=[])
