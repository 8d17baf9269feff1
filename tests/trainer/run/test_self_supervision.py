"""Training without a label column: a loss of the network's outputs alone."""

import numpy as np
import pytest
from mindspore import nn, ops

from trainer import Trainer
from trainer.errors import DataError

X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)


class AutoEncoder(nn.Cell):
    """Returns the reconstruction, and the input it is compared with."""

    def __init__(self, both=True):
        super().__init__()
        self.both = both
        self.inner, self.outer = nn.Dense(4, 2), nn.Dense(2, 4)

    def construct(self, x):
        restored = self.outer(self.inner(x))
        return (restored, x) if self.both else restored


class Difference(nn.Cell):
    def construct(self, outputs):
        return ops.square(outputs[0] - outputs[1]).mean()


def trainer_of(loss, both=True):
    network = AutoEncoder(both)
    for number, parameter in enumerate(network.trainable_params()):
        parameter.asnumpy()[...] = np.random.default_rng(number).normal(0, 0.3, parameter.shape)
    return Trainer(network, loss, nn.SGD(network.trainable_params(), 0.1))


def difference(outputs):
    return ops.square(outputs[0] - outputs[1]).mean()


@pytest.mark.long(but=["dict-cell"])
@pytest.mark.parametrize("loss", [Difference(), difference], ids=["cell", "function"])
@pytest.mark.parametrize("data", [{"x": X}, X], ids=["dict", "array"])
def test_a_loss_of_the_outputs_alone_trains_as_one_that_is_given_the_input_twice(loss, data):
    alone, twice = trainer_of(loss), trainer_of(nn.MSELoss(), both=False)
    alone.fit(data, 2, batch_size=8, shuffle=False)
    twice.fit((X, X), 2, batch_size=8, shuffle=False)
    assert alone.evaluate(data) == twice.evaluate((X, X))
    assert alone.predict(X)[0].tolist() == twice.predict(X).tolist()


@pytest.mark.long
def test_a_stream_of_inputs_alone():
    trainer = trainer_of(difference)
    before = trainer.evaluate({"x": X})["loss"]
    trainer.online_train([{"x": X[:8]}, {"x": X[8:]}])
    assert trainer.evaluate({"x": X})["loss"] < before


def test_inputs_alone_with_a_loss_of_labels_name_what_an_autoencoder_gives():
    with pytest.raises(DataError, match=r"as in an autoencoder, pass \(x, x\) or use a loss_fn\(outputs\)"):
        trainer_of(nn.MSELoss(), both=False).fit({"x": X}, 1, batch_size=8)
