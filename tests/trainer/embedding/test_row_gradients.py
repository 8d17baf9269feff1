"""The gradient of rows that several cells read is that of MindSpore's own `gather`, to the last bit."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from trainer.embedding.row_gradients import ReadRows, RowGradients

ROWS, DIM, FIELDS, BATCH, STEPS = 40, 4, 3, 16, 3


def scratch(name, shape):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


class Net(nn.Cell):
    """Reads of one array of rows by several cells, and a loop of steps that train it."""

    def __init__(self, reader, cells=tuple(range(FIELDS))):
        super().__init__()
        rng = np.random.default_rng(0)
        self.rows = Parameter(Tensor(rng.standard_normal((ROWS, DIM)).astype(np.float32)), name="rows")
        # one cell more than the network reads by
        self.tokens = [(scratch(f"gradient{i}", (1, DIM)), scratch(f"places{i}", (1,))) for i in range(FIELDS + 1)]
        self.weight = Tensor(rng.standard_normal((FIELDS * DIM, 1)).astype(np.float32))
        self.reader = reader
        self.cells = cells
        self.collects = isinstance(reader, ReadRows)
        self.total = RowGradients(DIM, FIELDS + 1)
        tokens = [token for pair in self.tokens for token in pair]
        self.gradient = ops.value_and_grad(self.loss, None, tokens if self.collects else [self.rows])

    def loss(self, ids):
        vectors = ()
        for i, cell in enumerate(self.cells):
            vectors += (self.reader(self.rows, ids[:, i], *self.tokens[cell]),)
        return ops.square(ops.matmul(ops.concat(vectors, 1), self.weight)).mean()

    def construct(self, count, ids, positions):
        step = ops.zeros_like(count)
        found = ops.zeros((ROWS, DIM), ms.float32)
        while step < count:
            _, gradients = self.gradient(ids)
            found = self.total(positions, gradients) if self.collects else gradients[0]
            ops.assign(self.rows, self.rows - 0.1 * found)
            step = step + 1
        return found


class Gather(nn.Cell):
    def construct(self, rows, ids, gradient_token, places_token):
        return ops.gather(rows, ids, 0)


@pytest.fixture
def arguments():
    # each read has rows of its own, as each table has; within a read they repeat
    ids = np.random.default_rng(1).integers(0, 12, (BATCH, FIELDS)) + np.arange(FIELDS) * 13
    return Tensor(STEPS, ms.int32), Tensor(ids.astype(np.int32)), Tensor(np.zeros(ROWS, np.int32))


def test_several_reads_in_several_steps_of_one_call_give_the_gradient_of_gather(arguments):
    found = []
    for reader in (Gather(), ReadRows(DIM)):
        net = Net(reader)
        found.append((net.compile_and_run(*arguments).asnumpy().copy(), net.rows.asnumpy().copy()))
    for plain, collected in zip(*found, strict=True):
        assert np.array_equal(plain, collected)
    assert found[0][0].any()


def test_a_cell_that_reads_twice_in_a_step_ends_the_run_with_the_cure(arguments):
    with pytest.raises(RuntimeError, match="a cell of its own"):
        Net(ReadRows(DIM), cells=(0, 1, 1)).compile_and_run(*arguments).asnumpy()
