"""Labels are converted to what MindSpore's losses take, in its shape too."""

import functools
import logging

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops

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


@pytest.mark.long(but=["CrossEntropyLoss-labels0-numbers"])
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


@pytest.mark.long
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


class Flat(nn.Dense):
    def construct(self, x):
        return super().construct(x).reshape(-1)


class OwnLoss(nn.Cell):
    """Broadcasts; one term is given by weights."""

    def construct(self, prediction, label, weight):
        return (weight * (prediction - label) ** 2).mean()


def own_bce(prediction, label):
    return ops.binary_cross_entropy(ops.sigmoid(prediction), label, ops.ones_like(label))  # fails rather than broadcast


def squeezing(prediction, label):
    return ((prediction.reshape(-1) - label.reshape(-1)) ** 2).mean()


def squared(prediction, label):
    return ((prediction - label) ** 2).mean()


@functools.cache
def of_shapes(loss, flat, column, online=False, several=False, batch_size=5):
    """Return the loss of a training, and the results of an evaluation, for predictions and labels of such shapes.

    With a `batch_size` of 5 the last batch of the evaluation is smaller and may be filled up; with 4 it is not.
    """
    kind = Flat if flat else nn.Dense
    network = kind(3, 1, weight_init=mindspore.Tensor(np.ones((1, 3), np.float32)), bias_init="zeros")
    trainer = Trainer(network, loss(), nn.SGD(network.trainable_params(), 0.1), metrics=["mae", "rmse", "mse"])
    label = LIKED[:, :1] if column else LIKED[:, 0]
    data = {"x": X, "label": label} | ({"weight": np.ones_like(label)} if several else {})
    if online:
        trainer.online_train(ReplayStream(data), [], batch_size=4, window=12)
        results = {name: trainer.state.window[f"window_{name}"] for name in ("loss", "mae", "rmse", "mse")}
        results = {f"window_{name}": value for name, value in results.items()}
    else:
        trainer.fit(data, 2, callbacks=[], batch_size=4, shuffle=False, sink_size=1)
        results = {"trained": trainer.history.history["loss"][-1]}
    return results | trainer.evaluate(data, batch_size=batch_size)


@pytest.mark.long(but=["MSELoss-False-5-True"])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    ("loss", "online", "batch_size"),
    [
        (nn.MSELoss, False, 5),
        (nn.MSELoss, True, 4),
        (nn.BCEWithLogitsLoss, False, 4),
        (lambda: squared, True, 4),
        (lambda: own_bce, False, 5),
        (lambda: squeezing, False, 5),
    ],
)
def test_a_label_gets_the_shape_of_the_prediction_in_every_verb(loss, flat, online, batch_size):
    same = of_shapes(loss, flat, not flat, online, batch_size=batch_size)
    assert of_shapes(loss, flat, flat, online, batch_size=batch_size) == pytest.approx(same, rel=1e-5)


def test_the_label_and_the_weight_of_a_users_loss_get_the_shape_of_the_prediction():
    same = of_shapes(OwnLoss, False, True, several=True)
    assert of_shapes(OwnLoss, False, False, several=True) == pytest.approx(same, rel=1e-5)


@pytest.mark.long
def test_a_changed_shape_is_logged_once_and_right_ones_are_not(caplog):
    caplog.set_level(logging.INFO)
    trained(nn.MSELoss(), LIKED[:, 0], outputs=1)
    (said,) = [record.message for record in caplog.records if "labels get the shape" in record.message]
    assert "[4, 1] of the predictions instead of [4]: MSELoss" in said
    caplog.clear()
    trained(nn.MSELoss(), LIKED[:, :1], outputs=1)
    trained(squeezing, LIKED[:, 0], outputs=1)
    assert "labels get the shape" not in caplog.text


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


@pytest.mark.parametrize("column", [True, False])
def test_a_last_batch_of_one_row_gets_the_shape_of_the_prediction_too(column):
    kind, labels = (Flat, LIKED[:, :1]) if column else (nn.Dense, LIKED[:, 0])
    network = kind(3, 1, weight_init=mindspore.Tensor(np.ones((1, 3), np.float32)), bias_init="zeros")
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.0))
    trainer.fit((X[:5], labels[:5]), 1, callbacks=[], batch_size=4, shuffle=False)
    logits, wanted = X[:5].sum(axis=1), LIKED[:5, 0]
    assert trainer.state.train_loss == pytest.approx(np.mean(np.log1p(np.exp(logits)) - wanted * logits), rel=1e-5)


@pytest.mark.parametrize(
    ("network", "loss", "labels"),
    [
        (Flat, nn.CrossEntropyLoss, STARS.astype(np.int32)),
        (Flat, nn.NLLLoss, STARS.astype(np.int32)),
        (nn.Dense, nn.CrossEntropyLoss, LIKED[:, :1]),
    ],
)
def test_one_value_per_row_is_no_class(network, loss, labels):
    """MindSpore would take the values of all rows for the classes of one, or learn nothing of one class."""
    network = network(3, 1)
    trainer = Trainer(network, loss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(GraphError, match=rf"{loss.__name__} compares the classes .* take nn.BCEWithLogitsLoss"):
        trainer.fit((X, labels), callbacks=[], batch_size=4)
