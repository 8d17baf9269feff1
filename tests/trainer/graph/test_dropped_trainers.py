"""A trainer that is dropped takes its network and its compiled programs with it; a network lives on for the next."""

import gc
import weakref

import numpy as np
import pytest
from mindspore import nn, ops

from trainer import Trainer
from trainer.embedding import Embedding

Y = np.ones((8, 1), np.float32)
X = np.arange(32, dtype=np.float32).reshape(8, 4)


class Ids(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table, self.head = Embedding(4, mode="sparse"), nn.Dense(4, 1)

    def construct(self, ids):
        return self.head(ops.squeeze(self.table(ids), 1))


KINDS = [
    (lambda: nn.SequentialCell(nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 1)), X, {}),
    (lambda: nn.Dense(4, 1), X, {"gradient_accumulation_steps": 2, "amp_level": "O2"}),
    (Ids, np.arange(8, dtype=np.int32)[:, None], {}),
]


@pytest.mark.long
@pytest.mark.parametrize(("make", "inputs", "options"), KINDS)
def test_the_network_of_a_dropped_trainer_is_freed(make, inputs, options):
    def use(network):
        trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01), **options)
        trainer.fit((inputs, Y), 2, batch_size=2, callbacks=[])
        trainer.evaluate((inputs, Y))
        trainer.predict(inputs)
        return weakref.ref(network)

    networks = [use(make()) for _ in range(2)]
    gc.collect()
    use(nn.Dense(4, 1) if inputs is X else make())
    gc.collect()
    assert [network() for network in networks] == [None, None]


@pytest.mark.long
def test_a_network_trained_by_one_trainer_after_the_other():
    network = nn.Dense(4, 1)
    for _ in range(3):
        trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 1e-4))
        before = trainer.evaluate((X, Y))["loss"]
        trainer.fit((X, Y), callbacks=[], batch_size=8)
        assert trainer.evaluate((X, Y))["loss"] < before
        del trainer
        gc.collect()
