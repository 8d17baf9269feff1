"""The gradient of rows that several cells read is that of MindSpore's own `gather`, to the last bit."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from trainer import Trainer
from trainer.embedding import Embedding
from trainer.embedding.layers.host_rows import ReadRows, RowGradients

ROWS, DIM, FIELDS, BATCH, STEPS = 40, 4, 3, 16, 3


class Net(nn.Cell):
    """Three reads of one array of rows, and a loop of steps that train it."""

    def __init__(self, reader):
        super().__init__()
        rng = np.random.default_rng(0)
        self.rows = Parameter(Tensor(rng.standard_normal((ROWS, DIM)).astype(np.float32)), name="rows")
        self.token = Parameter(Tensor(np.zeros(1, np.float32)), name="token")
        self.weight = Tensor(rng.standard_normal((FIELDS * DIM, 1)).astype(np.float32))
        self.reader = reader
        self.collects = isinstance(reader, ReadRows)
        self.gradient = ops.value_and_grad(self.loss, None, [self.token if self.collects else self.rows])

    def loss(self, ids):
        vectors = ()
        for i in range(FIELDS):
            vectors += (self.reader(self.rows, ids[:, i], self.token),)
        return ops.square(ops.matmul(ops.concat(vectors, 1), self.weight)).mean()

    def construct(self, count, ids, positions):
        step = ops.zeros_like(count)
        found = ops.zeros((ROWS, DIM), ms.float32)
        while step < count:
            _, gradients = self.gradient(ids)
            found = self.reader.collect(gradients[0], positions) if self.collects else gradients[0]
            ops.assign(self.rows, self.rows - 0.1 * found)
            step = step + 1
        return found


class Gather(nn.Cell):
    def construct(self, rows, ids, token):
        return ops.gather(rows, ids, 0)


@pytest.fixture(scope="module")
def sums():
    return RowGradients(DIM)


def test_several_reads_in_several_steps_of_one_call_give_the_gradient_of_gather(sums):
    # each read has rows of its own, as each table has; within a read they repeat
    ids = np.random.default_rng(1).integers(0, 12, (BATCH, FIELDS)) + np.arange(FIELDS) * 13
    arguments = Tensor(STEPS, ms.int32), Tensor(ids.astype(np.int32)), Tensor(np.zeros(ROWS, np.int32))
    found = []
    for reader in (Gather(), ReadRows(sums, DIM)):
        sums.begin(ROWS)
        net = Net(reader)
        found.append((net.compile_and_run(*arguments).asnumpy().copy(), net.rows.asnumpy().copy()))
    for plain, collected in zip(*found, strict=True):
        assert np.array_equal(plain, collected)
    assert found[0][0].any()


def test_what_a_step_that_failed_has_left_is_forgotten(sums):
    sums.begin(5)
    sums.add(np.array([1, 1, 4], np.int32), np.ones((3, DIM), np.float32))
    assert sums.take()[:, 0].tolist() == [0, 2, 0, 0, 1]
    sums.add(np.array([2], np.int32), np.ones((1, DIM), np.float32))
    sums.begin(5)
    assert not sums.take().any()


class Branch(nn.Cell):
    """The second table is read where the values of the first say so."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (Embedding(DIM, mode="sparse", name=name) for name in ("first", "second"))
        self.top = nn.Dense(DIM, 1, weight_init="ones", bias_init="zeros")

    def construct(self, ids):
        vectors = self.first(ids[:, 0])
        if vectors.sum() > -1e9:
            vectors = vectors + self.second(ids[:, 1])
        return self.top(vectors)


def test_a_table_read_in_a_branch_is_trained():
    ids = np.random.default_rng(2).integers(0, 9, (BATCH, 2))
    network = Branch()
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.5))
    trainer.fit((ids, np.ones((BATCH, 1), np.float32)), batch_size=BATCH, epochs=2, callbacks=[])
    rows = [cell(Tensor(ids[:, place])).asnumpy() for place, cell in enumerate((network.first, network.second))]
    assert all(np.abs(found).max() > 0.05 for found in rows), "rows begin near zero"
