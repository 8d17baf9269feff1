"""Sparse tables inside a training graph: identical to dense training, whatever the number of steps per call."""

from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, experimental, nn, ops, set_seed

from trainer import Trainer
from trainer.embedding import (
    Embedding,
    EmbeddingBag,
    EmbeddingGroup,
    RowAdagrad,
    RowAdam,
    RowFTRL,
    RowSGD,
    SparseTables,
)
from trainer.embedding.tables.hashing import initial_rows
from trainer.errors import ConfigurationError, DataError
from trainer.mindspore_internals import device

BATCH, FIELDS, DIM, STEPS = 32, 4, 3, 12
LR = 0.1


class Step(nn.Cell):
    """The least that a training program does around sparse tables."""

    def __init__(self, network, tables, optimizer, accumulate=1):
        super().__init__(auto_prefix=False)
        self.network = network
        self.tables = tables
        self.optimizer = optimizer
        self.dense = len(optimizer.parameters)
        self.extra = tables.input_count
        self.loss = nn.MSELoss()
        self.gradient = ms.value_and_grad(self.forward, None, list(optimizer.parameters) + tables.params)
        self.accumulate = accumulate
        self.sums = tuple(tables.gradient_sums)

    def forward(self, *columns):
        return self.loss(self.network(*columns[:-1]), columns[-1])

    def construct(self, fill, count, *stacked):
        losses = ops.zeros((stacked[0].shape[0],), ms.float32)
        index = ops.zeros((), ms.int32)
        while index < count:
            columns = ()
            for column in stacked:
                columns += (column[index],)
            work = self.tables.begin(columns[self.extra :] + columns[: self.extra])
            loss, gradients = self.gradient(*columns[self.extra :])
            of_rows = self.tables.gradients(work, gradients[self.dense :])
            losses[index] = loss
            index = index + 1
            if self.accumulate == 1:
                self.optimizer(gradients[: self.dense])
                self.tables.update(work, of_rows, self.optimizer.get_lr())
            else:
                for place, total in enumerate(self.sums):
                    ops.assign_add(total, of_rows[place] / self.accumulate)
                if (fill + index) % self.accumulate == 0:
                    self.tables.update(work, self.sums, self.optimizer.get_lr())
                    for total in self.sums:
                        ops.assign(total, ops.zeros_like(total))
        return losses


class Read(nn.Cell):
    def __init__(self, network, extra):
        super().__init__(auto_prefix=False)
        self.network = network
        self.extra = extra

    def construct(self, *columns):
        return self.network(*columns[self.extra :])


def train(step, tables, columns, per_call):
    losses = []
    for start in range(0, len(columns[0]), per_call):
        part = [column[start : start + per_call] for column in columns]
        count, fill = len(part[0]), start % step.accumulate
        part = [np.concatenate((column, column[: per_call - count])) for column in part]
        changed, plan = tables.planner.plan(part, True, count, fill=fill)
        tables.load(plan)
        inputs = [Tensor.from_numpy(array) for array in (*plan.inputs, *changed)]
        out = step.compile_and_run(Tensor(fill, ms.int32), Tensor(count, ms.int32), *inputs)
        tables.write_back(plan)
        losses.append(out.asnumpy()[:count])
    return np.concatenate(losses)


def read(cell, tables, columns):
    changed, plan = tables.planner.plan(columns, False, 1, train=False)
    tables.load(plan)
    return cell.compile_and_run(*map(Tensor.from_numpy, (*plan.inputs, *changed))).asnumpy()


class Deep(nn.Cell):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding
        self.head = nn.Dense(
            FIELDS * DIM, 1, weight_init=Tensor(np.linspace(-1, 1, FIELDS * DIM, dtype=np.float32)[None])
        )

    def construct(self, ids):
        return self.head(self.embedding(ids).reshape(ids.shape[0], -1)).reshape(-1)


def data(vocabulary=200, seed=0):
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, vocabulary, (STEPS, BATCH, FIELDS))
    labels = rng.standard_normal((STEPS, BATCH)).astype(np.float32)
    return numbers, numbers * 1_000_003 - 5, labels


def trained(embedding, per_call, columns, accumulate=1, make=nn.Adam, build=Deep):
    ms.set_seed(1)
    network = build(embedding)
    optimizer = make(network.trainable_params(), LR)
    inputs = [column[0] for column in columns[:-1]]
    tables = SparseTables(network, inputs, ("ids", "other")[: len(inputs)], optimizer, accumulate)
    step = Step(network, tables, optimizer, accumulate)
    return train(step, tables, columns, per_call), network, tables


@pytest.fixture(scope="module")
def single():
    _, ids, labels = data()
    return trained(Embedding(DIM, name="t"), 1, (ids, labels))


def rows(tables, ids, name="t"):
    table = tables.tables[name]
    return table.store.read(table.lookup(np.unique(ids)))


def test_steps_per_call_do_not_change_a_bit(single):
    losses, _, tables = single
    _, ids, labels = data()
    again, _, others = trained(Embedding(DIM, name="t"), 5, (ids, labels))  # the last call is not full
    assert np.array_equal(losses, again)
    assert np.array_equal(rows(tables, ids), rows(others, ids))
    assert losses[-1] < losses[0]


def test_float16_rows_depend_neither_on_calls_nor_on_what_is_beside_them():
    _, ids, labels = data()
    (_, _, one), (_, _, other) = (
        trained(Embedding(DIM, name="t", dtype="float16"), per_call, (ids, labels), 2) for per_call in (1, 5)
    )
    found = []
    for tables in (one, other):
        table = tables.tables["t"]
        found.append(table.store.stored(table.lookup(np.unique(ids))).view(np.uint16))
    assert np.array_equal(*found)
    assert found[0].shape[1] == 4 + 2 * 2 * DIM  # of halves: three weights and the filling; Adam's moments
    with pytest.raises(
        ConfigurationError, match=r"'t' has dtype='float16', which only CPU kernels train.* received Own"
    ):
        trained(Embedding(DIM, name="t", dtype="float16", optimizer=Own()), 1, (ids, labels))


class Own(RowSGD):
    """Has no kernel: it declares none."""


def test_sgd_equals_an_ordinary_dense_embedding():
    numbers, ids, labels = data()
    losses, _, tables = trained(Embedding(DIM, name="t"), 4, (ids, labels), make=nn.SGD)
    ms.set_seed(1)
    network = Deep(nn.Embedding(200, DIM, embedding_table="zeros"))
    fresh = SparseTables(Deep(embedding := Embedding(DIM, name="t")), [ids[0]], ("ids",))
    fresh.tables["t"].plan(np.arange(200)[None] * 1_000_003 - 5)
    start = fresh.tables["t"].store.read(fresh.tables["t"].map.get(np.arange(200) * 1_000_003 - 5))
    network.embedding.embedding_table.set_data(Tensor(start[:, :DIM]))
    cell = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), nn.SGD(network.trainable_params(), LR))
    dense = [
        float(cell.compile_and_run(Tensor(numbers[i].astype(np.int32)), Tensor(labels[i])).asnumpy())
        for i in range(STEPS)
    ]
    np.testing.assert_allclose(losses, dense, rtol=1e-4)
    final = network.embedding.embedding_table.asnumpy()[np.unique(numbers)]
    np.testing.assert_allclose(rows(tables, ids)[:, :DIM], final, atol=1e-5)
    assert embedding.dim == DIM


@pytest.mark.long(but=["straddling windows"])
@pytest.mark.parametrize("per_call", [6, 4], ids=["whole windows", "straddling windows"])
def test_accumulating_equals_one_big_batch(per_call, big_batches):
    _, ids, labels = data()
    embedding = Embedding(DIM, name="t", optimizer=RowSGD(lr=LR))
    _, _, tables = trained(embedding, per_call, (ids, labels), accumulate=3, make=frozen)
    np.testing.assert_allclose(rows(tables, ids), rows(big_batches, ids), atol=1e-6)


def frozen(parameters, _):
    return nn.SGD(parameters, 0.0)


@pytest.fixture(scope="module")
def big_batches():
    _, ids, labels = data()
    big = (ids.reshape(STEPS // 3, 3 * BATCH, FIELDS), labels.reshape(STEPS // 3, 3 * BATCH))
    return trained(Embedding(DIM, name="t", optimizer=RowSGD(lr=LR)), 1, big, make=frozen)[2]


def test_evaluation_reads_trained_rows_and_knows_no_new_ids(single):
    _, network, tables = single
    _, ids, _ = data()
    cell = Read(network, tables.reading_input_count)
    batch = np.array([[ids[0, 0, 0], ids[0, 0, 1], 1, 2], [ids[0, 0, 0]] * 4])
    size = len(tables.tables["t"])
    output = read(cell, tables, (batch,))
    weights = np.zeros((2, FIELDS, DIM), np.float32)
    known = tables.tables["t"].lookup(batch.reshape(-1))
    weights.reshape(-1, DIM)[:] = tables.tables["t"].store.read(known)[:, :DIM]
    head = network.head
    expected = weights.reshape(2, -1) @ head.weight.asnumpy().T + head.bias.asnumpy()
    np.testing.assert_allclose(output, expected[:, 0], rtol=1e-5)
    assert not weights[0, 2:].any()
    assert len(tables.tables["t"]) == size
    assert np.array_equal(network.embedding(Tensor(batch)).asnumpy(), weights)


OPTIMIZERS = {
    "SGD": RowSGD,
    "Adagrad": RowAdagrad,
    "Adagrad by row": lambda: RowAdagrad(row_wise=True),
    "Adam": RowAdam,
    "Adam by row": lambda: RowAdam(row_wise=True),
    "FTRL": lambda: RowFTRL(l1=1e-3, l2=1e-2),
    "FTRL with another power": lambda: RowFTRL(lr_power=-0.7),
}


class EachOptimizer(nn.Cell):
    """The mean of what a table of each optimizer makes of the same ids."""

    def __init__(self, _):
        super().__init__()
        self.each = nn.CellList(
            [Deep(Embedding(DIM, name=name, optimizer=make())) for name, make in OPTIMIZERS.items()]
        )

    def construct(self, ids):
        total = 0.0
        for deep in self.each:
            total = total + deep(ids)
        return total / len(self.each)


@pytest.mark.long
def test_rows_trained_in_place_equal_those_trained_in_the_graph(monkeypatch):
    _, ids, labels = data()
    found = {}
    for on_host in (True, False):
        monkeypatch.setitem(device.DEVICES, "CPU", replace(device.CPU, runs_python=on_host))
        losses, _, tables = trained(None, 5, (ids, labels), build=EachOptimizer)
        found[on_host] = losses, {name: rows(tables, ids, name) for name in OPTIMIZERS}
    assert found[True][0][-1] < found[True][0][0]
    np.testing.assert_allclose(found[True][0], found[False][0], rtol=1e-4, atol=1e-5)
    for name, values in found[True][1].items():
        np.testing.assert_allclose(values, found[False][1][name], rtol=1e-4, atol=1e-5, err_msg=name)


class Fields(nn.Cell):
    """A table for each field, and for each field one of width 1 on the same ids."""

    def __init__(self, optimizer):
        super().__init__()
        self.deep = nn.CellList([Embedding(DIM, name=f"deep{i}", optimizer=optimizer()) for i in range(FIELDS)])
        self.wide = nn.CellList([Embedding(1, name=f"wide{i}", optimizer=optimizer()) for i in range(FIELDS)])
        self.head = nn.Dense(FIELDS * DIM, 1)

    def construct(self, ids):
        vectors, total = (), 0.0
        for i in range(FIELDS):
            vectors += (self.deep[i](ids[:, i]),)
            total = total + self.wide[i](ids[:, i])
        return self.head(ops.concat(vectors, 1)).reshape(-1) + total.reshape(-1)


class Groups(nn.Cell):
    """The same as `Fields`, as groups."""

    def __init__(self, optimizer):
        super().__init__()
        self.deep = EmbeddingGroup(DIM, [f"deep{i}" for i in range(FIELDS)], optimizer=optimizer())
        self.wide = EmbeddingGroup(1, {f"wide{i}": {"optimizer": optimizer()} for i in range(FIELDS)})
        self.head = nn.Dense(FIELDS * DIM, 1)

    def construct(self, ids):
        columns = (ids[:, 0], ids[:, 1], ids[:, 2], ids[:, 3])
        return self.head(self.deep(ids).reshape(ids.shape[0], -1)).reshape(-1) + self.wide(*columns).sum((1, 2))


class OwnSGD(RowSGD):
    """A user's optimizer: no kernel is known for it, nor that two of them are alike."""


def fields_trained(optimizer, per_call, accumulate=1, build=Fields):
    _, ids, labels = data(40)
    found = trained(None, per_call, (ids, labels), accumulate, frozen, lambda _: build(lambda: optimizer(lr=LR)))
    names = [f"{kind}{i}" for kind in ("deep", "wide") for i in range(FIELDS)]
    return found, {name: rows(found[2], ids[:, :, int(name[-1])], name) for name in names}


@pytest.fixture(scope="module")
def one_by_one():
    return fields_trained(OwnSGD, 6)


@pytest.mark.long
@pytest.mark.parametrize(("per_call", "build"), [(1, Fields), (5, Fields), (5, Groups)])
def test_many_tables_are_read_and_updated_as_one_and_train_as_they_would_alone(per_call, build, one_by_one):
    (alone, _, separate), expected = one_by_one
    (losses, network, together), found = fields_trained(RowSGD, per_call, build=build)
    np.testing.assert_allclose(losses, alone, rtol=1e-5)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-6)
    assert len(separate.programs) == 2 * FIELDS
    assert len(together.programs) == 2
    assert together.input_count == 1
    assert network.deep[0].working_set is network.deep[1].working_set if build is Fields else network.deep.is_shared


@pytest.mark.long
def test_many_tables_accumulate_as_one():
    _, expected = fields_trained(OwnSGD, 6, 3)
    for per_call in (6, 4):  # whole windows, straddling windows
        _, found = fields_trained(RowSGD, per_call, 3)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, atol=1e-6, err_msg=f"{name}, {per_call} steps per call")


@pytest.mark.long
def test_tables_grouped_in_the_graph_train_as_those_on_the_host(monkeypatch, one_by_one):
    monkeypatch.setitem(device.DEVICES, "CPU", replace(device.CPU, runs_python=False))
    (_, network, tables), found = fields_trained(RowSGD, 5)
    for name, values in one_by_one[1].items():
        np.testing.assert_allclose(found[name], values, atol=1e-6)
    _, ids, _ = data(40)
    unknown = np.where(np.arange(FIELDS) == 1, 3, ids[0])
    output = read(Read(network, tables.reading_input_count), tables, (unknown,))
    deep, wide = (
        np.stack([by_hand(tables, f"{kind}{i}", unknown[:, i]) for i in range(FIELDS)], 1) for kind in ("deep", "wide")
    )
    expected = deep.reshape(BATCH, -1) @ network.head.weight.asnumpy().T + network.head.bias.asnumpy()
    np.testing.assert_allclose(output, expected[:, 0] + wide.sum((1, 2)), rtol=1e-4, atol=1e-5)


def by_hand(tables, name, ids):
    table = tables.tables[name]
    return table.store.read(table.lookup(ids))[:, : table.spec.dim]


class Several(nn.Cell):
    """Two tables on the same ids, one of them also on another column, and a bag of strings."""

    def __init__(self, _):
        super().__init__()
        self.deep = Embedding(DIM, name="deep")
        self.wide = Embedding(1, name="wide", padding=7)
        self.again = Embedding(1, table=self.wide)
        self.bag = EmbeddingBag(2, combiner="mean", name="bag")
        self.head = nn.Dense(2 * DIM + 2, 1)

    def construct(self, ids, other):
        first = self.deep(ids[:, :2]).reshape(ids.shape[0], -1)
        wide = self.wide(ids).sum(1) + self.again(other[:, :1]).sum(1)
        return (self.head(ops.concat((first, self.bag(other)), 1)) + wide).reshape(-1)


class Twice(nn.Cell):
    """A table that one cell reads `times` times in a run, once for each of so many columns."""

    def __init__(self, times):
        super().__init__()
        self.embedding = Embedding(DIM, name="t")
        self.times = times

    def construct(self, ids):
        total = 0.0
        for column in range(self.times):
            total = total + self.embedding(ids[:, column]).sum(axis=1)
        return total


def test_gradients_are_added_up_in_place_only_where_no_order_of_reads_can_change_them():
    ids = data()[1]
    for times, in_place in ((1, True), (2, False)):
        network = Twice(times)
        tables = SparseTables(network, [ids[0]], ("ids",), nn.SGD([ms.Parameter(Tensor([1.0]), name="w")], LR))
        # where they are, the network's gradient is of one number that stands for the rows
        assert (tables.params[0].shape == (1,)) is in_place


@pytest.mark.long
def test_tables_may_share_columns_and_columns_tables():
    numbers, ids, labels = data(30)
    other = np.where(numbers[:, :, :3] % 5 == 0, -1, numbers[:, :, :3])
    runs = [trained(None, per_call, (ids, other, labels), build=Several) for per_call in (1, 5)]
    assert np.array_equal(runs[0][0], runs[1][0])
    for name, seen in (("deep", ids[:, :, :2]), ("wide", np.append(ids, other[:, :, 0])), ("bag", other[other >= 0])):
        assert np.array_equal(rows(runs[0][2], seen, name), rows(runs[1][2], seen, name))
        table = runs[0][2].tables[name]
        expected = set(np.unique(seen).tolist()) - ({7} if name == "wide" else set())
        assert set(table.map.items()[0].tolist()) == expected
    assert runs[0][0][-1] < runs[0][0][0]
    _, network, tables = runs[0]
    output = read(Read(network, tables.reading_input_count), tables, (ids[0], other[0]))
    np.testing.assert_allclose(output, several_by_hand(network, tables, ids[0], other[0]), rtol=1e-4, atol=1e-5)


def several_by_hand(network, tables, ids, other):
    def vectors(name, numbers, dim, padding=None):
        table = tables.tables[name]
        values = table.store.read(table.lookup(numbers.reshape(-1)))[:, :dim].reshape(*numbers.shape, dim)
        return values * (numbers != padding)[..., None]

    deep = vectors("deep", ids[:, :2], DIM).reshape(BATCH, -1)
    wide = vectors("wide", ids, 1, 7).sum(1) + vectors("wide", other[:, :1], 1, 7).sum(1)
    count = (other >= 0).sum(1, keepdims=True)
    bag = vectors("bag", other, 2, -1).sum(1) / np.maximum(count, 1)
    both = np.concatenate((deep, bag), 1)
    return (both @ network.head.weight.asnumpy().T + network.head.bias.asnumpy() + wide)[:, 0]


def test_the_network_keeps_its_own_parameters_to_itself(single):
    _, network, _ = single
    assert [parameter.name for parameter in network.get_parameters()] == ["head.weight", "head.bias"]


class Computed(nn.Cell):
    def __init__(self, capacity=None):
        super().__init__()
        self.embedding = Embedding(DIM, capacity, name="computed")

    def construct(self, ids):
        return self.embedding(ids % 10).sum()


def test_ids_that_were_computed_with_are_refused():
    with pytest.raises(ConfigurationError, match=r"'computed' receives do not come unchanged .*columns: user.*column="):
        SparseTables(Computed(), [np.zeros((4, 2), np.int64)], ("user",))


def test_a_dense_table_takes_computed_numbers():
    tables = SparseTables(Computed(10), [np.zeros((4, 2), np.int64)], ("user",))
    assert not tables.tables


def test_a_field_must_exist():
    with pytest.raises(ConfigurationError, match=r"column='usr'\) is not an input column; .*did you mean 'user'"):
        SparseTables(Deep(Embedding(DIM, column="usr")), [np.zeros((4, FIELDS), np.int64)], ("user",))


def test_small_tables_are_dense_parameters_with_checked_ids():
    network = Deep(Embedding(DIM, 100, name="small"))
    assert network.embedding.weight.shape == (100, DIM)
    tables = SparseTables(network, [np.zeros((4, FIELDS), np.int64)], ("user",))
    assert not tables.tables
    with pytest.raises(DataError, match=r"'small' takes ids from 0 to 99; received 100.*mode='sparse'"):
        tables.planner.plan((np.full((4, FIELDS), 100),), False, 1)
    with pytest.raises(DataError, match="received -1"):
        tables.planner.plan((np.full((4, FIELDS), -1),), False, 1)


def test_networks_without_embeddings_have_no_tables():
    trainer = Trainer(nn.Dense(2, 2))
    trainer.predict(np.zeros((4, 2), np.float32))
    assert trainer.tables is None


class Short(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table, self.top = Embedding(2, mode="sparse", name="ids", optimizer=RowSGD()), nn.Dense(2, 1)

    def construct(self, ids):
        return self.top(self.table(ids)).reshape(-1)


def test_rows_follow_the_rate_of_an_experimental_optimizer():
    def moved(rate):
        set_seed(0)
        network = Short()
        trainer = Trainer(network, nn.MSELoss(), experimental.optim.SGD(network.trainable_params(), lr=rate))
        trainer.fit((np.arange(4), np.ones(4, np.float32)), 1, batch_size=4, callbacks=[])
        first = initial_rows(np.arange(4), 2, network.table.host_table().seed)
        return network.table(Tensor(np.arange(4))).asnumpy() - first

    np.testing.assert_allclose(moved(0.2), 2 * moved(0.1), rtol=1e-4)
    assert np.abs(moved(0.1)).max() > 1e-4
