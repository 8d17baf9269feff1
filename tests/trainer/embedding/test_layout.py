"""Tables that are read together in one run and apart in the next."""

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from trainer import Trainer
from trainer.embedding import Embedding, RowSGD, SparseTables

VECTORS = np.random.default_rng(1).standard_normal((50, 4)).astype(np.float32)


class TrainedAndFrozen(nn.Cell):
    def __init__(self):
        super().__init__()
        self.trained = Embedding(4, mode="sparse", name="trained")
        self.frozen = Embedding.from_pretrained(VECTORS, ids=np.arange(50), trainable=False, name="frozen")
        weights = Tensor(np.linspace(-1, 1, 8, dtype=np.float32)[None])
        self.top = nn.Dense(8, 1, weight_init=weights, bias_init="zeros")

    def construct(self, users, films):
        return self.top(ops.concat((self.trained(users).sum(axis=1), self.frozen(films).sum(axis=1)), 1))


@pytest.mark.long
def test_a_table_read_with_a_frozen_one_is_trained_by_itself_afterwards():
    random = np.random.default_rng(0)
    users, films = random.integers(0, 40, (64, 2)), random.integers(0, 50, (64, 3))
    data = {"users": users, "films": films, "y": random.standard_normal((64, 1)).astype(np.float32)}
    predictions = []
    for read_before in (False, True):
        net = TrainedAndFrozen()
        if read_before:
            Trainer(net).predict(users, films)
        trainer = Trainer(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.05))
        trainer.fit(data, 2, callbacks=[], batch_size=16, shuffle=False)
        predictions.append(trainer.predict(users, films))
    np.testing.assert_array_equal(*predictions)


class OnOneColumn(nn.Cell):
    def __init__(self, first, second):
        super().__init__()
        self.first = Embedding(4, optimizer=first, name="first")
        self.second = Embedding(4, optimizer=second, name="second")

    def construct(self, ids):
        return self.first(ids) + self.second(ids)


def test_the_order_of_stacks_is_that_of_the_tables_whatever_objects_the_optimizers_are():
    """All processes number rows alike, and none has another's objects."""

    class Own(RowSGD):
        pass

    own, other = Own(), Own()
    for optimizers in ([own, other], [other, own]):
        tables = SparseTables(OnOneColumn(*optimizers), [np.arange(6).reshape(3, 2)])
        assert [stack.tables for stack in tables.planner.layout.stacks] == [[0], [1]]
