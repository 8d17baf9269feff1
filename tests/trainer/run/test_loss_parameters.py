"""A loss with parameters of its own: the best weights, averages and snapshots are also those of the loss."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from callbacks import EMA, EarlyStopping, ModelCheckpoint
from trainer import Trainer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 4)).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)


class Tempered(nn.Cell):
    """A loss that learns a temperature."""

    def __init__(self):
        super().__init__()
        self.temperature = ms.Parameter(Tensor(np.float32(1)), name="temperature")
        self.loss = nn.BCEWithLogitsLoss()

    def construct(self, prediction, label):
        return self.loss(prediction * self.temperature, label)


def make(trained=True):
    network, loss = nn.Dense(4, 1, weight_init="ones", bias_init="zeros"), Tempered()
    parameters = [*network.trainable_params(), *loss.trainable_params()]
    return Trainer(network, loss, nn.SGD(parameters, 3.0) if trained else None, metrics=["loss"], seed=0)


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
def test_the_best_weights_are_also_those_of_the_loss(kind, averages, tmp_path):
    trainer, worse = make(), (X, 1 - Y)
    best = {
        EarlyStopping: lambda: EarlyStopping("val_loss", patience=9, restore_best=True),
        ModelCheckpoint: lambda: ModelCheckpoint(tmp_path, monitor="val_loss", restore_best=True),
    }[kind]()
    callbacks = [best, *([EMA(0.5)] if averages else [])]
    history = trainer.fit((X, Y), 3, valid_dataset=worse, batch_size=32, callbacks=callbacks)
    values = history.history["val_loss"]
    assert min(values) < values[-1], "the best is not the last"
    assert trainer.evaluate(worse)["loss"] == pytest.approx(min(values), rel=1e-5)


@pytest.mark.parametrize("trained", [False, True])
def test_weights_of_a_snapshot_are_evaluated_with_the_loss_that_was_trained(trained, tmp_path):
    first, second = make(), make(trained)
    first.fit((X, Y), 2, batch_size=32, callbacks=[ModelCheckpoint(tmp_path)])
    second.load(tmp_path, weights_only=True)
    assert second.evaluate((X, Y))["loss"] == first.evaluate((X, Y))["loss"]
