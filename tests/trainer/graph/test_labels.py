"""Labels are converted to what MindSpore's losses take, and a broadcast that nobody meant is named."""

import functools
import logging

import mindspore
import numpy as np
import pytest
from mindspore import nn

from trainer import MultiTaskLoss, Trainer
from trainer.errors import DataError, GraphError
from trainer.streams import ReplayStream

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
STARS = np.arange(12) % 3
LIKED = (X > 0).astype(np.float32)


def trained(loss, labels, outputs=3, online=False):
    network = nn.Dense(3, outputs, weight_init=mindspore.Tensor(np.ones((outputs, 3), np.float32)), bias_init="zeros")
    trainer = Trainer(network, loss, nn.SGD(network.trainable_params(), 0.1))
    if online:
        trainer.online_train(ReplayStream({"x": X, "label": labels}), [], batch_size=4)
        return trainer.state.window["window_loss"], trainer
    trainer.fit((X, labels), 2, callbacks=[], batch_size=4, shuffle=False, sink_size=1)
    return trainer.history.history["loss"], trainer


@functools.cache
def of_classes(made):
    """Return the losses of a training on the class of each row, as numbers or as probabilities of the right dtype."""
    labels = np.eye(3, dtype=np.float32)[STARS] if made == "probabilities" else STARS.astype(np.int32)
    return trained(nn.CrossEntropyLoss(), labels)[0]


@pytest.mark.parametrize(
    ("loss", "labels", "right"),
    [
        (nn.CrossEntropyLoss, STARS.astype(np.int64), "numbers"),
        (nn.CrossEntropyLoss, np.eye(3)[STARS].astype(np.int64), "probabilities"),
        (nn.BCEWithLogitsLoss, LIKED.astype(bool), LIKED),
        (nn.HuberLoss, LIKED.astype(np.int32), LIKED),
    ],
)
def test_labels_of_another_dtype_give_the_same_training(loss, labels, right, caplog):
    with caplog.at_level(logging.INFO):
        converted, _ = trained(loss(), labels)
    told = [record.message for record in caplog.records if "labels are converted" in record.message]
    assert len(told) == 1
    assert loss.__name__ in told[0]
    assert converted == (of_classes(right) if isinstance(right, str) else trained(loss(), right)[0])


def test_evaluations_streams_and_tasks_convert_too():
    _, trainer = trained(nn.BCEWithLogitsLoss(), LIKED.astype(bool))
    converted = trainer.evaluate((X, LIKED.astype(bool)), batch_size=4)
    assert converted == trainer.evaluate((X, LIKED), batch_size=4)
    assert trained(nn.BCEWithLogitsLoss(), LIKED.astype(np.int64), online=True)[0] > 0
    network = nn.Dense(3, 3)
    loss = MultiTaskLoss({"stars": nn.CrossEntropyLoss()})

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.top = network

        def construct(self, x):
            return (self.top(x),)

    trainer = Trainer(Net(), loss, nn.SGD(network.trainable_params(), 0.1))
    trainer.fit({"x": X, "stars": STARS.astype(np.int64)}, callbacks=[], batch_size=4, sink_size=1)
    assert trainer.state.task_losses["stars_loss"] > 0


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("wrong", [0.6, np.nan, 0.0])
def test_class_numbers_that_are_floats_are_refused_before_anything_is_compiled(wrong, online):
    labels = STARS.astype(np.float32)
    labels[5] += wrong
    with pytest.raises(DataError, match=r"CrossEntropyLoss takes the class of each row as an integer .* float32"):
        trained(nn.CrossEntropyLoss(), labels, online=online)


def test_probabilities_and_classes_of_bool_are_taken():
    assert of_classes("probabilities") == pytest.approx(of_classes("numbers"), rel=1e-5)
    assert (
        trained(nn.CrossEntropyLoss(), STARS > 0)[0] == trained(nn.CrossEntropyLoss(), (STARS > 0).astype(np.int32))[0]
    )


def test_a_grid_of_class_numbers_that_are_floats_is_not_cut_to_integers():
    class Grid(nn.Cell):
        def __init__(self):
            super().__init__()
            self.top = nn.Dense(3, 6)

        def construct(self, x):
            return self.top(x).reshape(-1, 3, 2)

    network = Grid()
    trainer = Trainer(network, nn.CrossEntropyLoss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(GraphError, match="Int32"):
        trainer.fit((X, np.full((12, 2), 0.6, np.float32)), callbacks=[], batch_size=4)


def test_labels_that_would_be_broadcast_are_named_once(caplog):
    trained(nn.MSELoss(), LIKED[:, 0], outputs=1)
    (told,) = [record for record in caplog.records if "each prediction with each label" in record.message]
    assert told.levelno == logging.WARNING
    assert "labels have the shape [4] and predictions [4, 1]: MSELoss" in told.message
    caplog.clear()
    trained(nn.MSELoss(), LIKED[:, :1], outputs=1)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class TwoOutputs(nn.Dense):
    def construct(self, x):
        out = super().construct(x)
        return out, out


@pytest.mark.parametrize("loss", [nn.MSELoss, nn.CrossEntropyLoss])
def test_a_loss_of_one_prediction_says_so_to_a_network_of_several_outputs(loss):
    network = TwoOutputs(3, 3)
    trainer = Trainer(network, loss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(GraphError, match=f"{loss.__name__} takes one prediction, and the network returns several"):
        trainer.fit((X, X if loss is nn.MSELoss else STARS), callbacks=[], batch_size=4)
