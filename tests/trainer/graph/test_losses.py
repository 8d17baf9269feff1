"""The leaner form of a loss has the value and the gradient of MindSpore's own."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn

from trainer import MultiTaskLoss, Trainer
from trainer.errors import ConfigurationError
from trainer.graph.losses import FusedBCEWithLogits, FusedCrossEntropy, fused_loss
from trainer.graph.row_losses import row_loss


class Scaled(nn.Cell):
    """A loss times a factor, as a loss scale makes it."""

    def __init__(self, loss, factor):
        super().__init__()
        self.loss, self.factor = loss, factor

    def construct(self, logits, labels):
        return self.loss(logits, labels) * self.factor


class Gradient(nn.Cell):
    """Value and gradient with respect to the logits."""

    def __init__(self, cell):
        super().__init__()
        self.both = mindspore.value_and_grad(cell, 0)

    def construct(self, logits, labels):
        return self.both(logits, labels)


@pytest.mark.long(but=["1.0-shape1", "1024.0-shape2"])
@pytest.mark.parametrize("shape", [(7,), (5, 1), (4, 3)])
@pytest.mark.parametrize("factor", [1.0, 1024.0])
def test_value_and_gradient_are_those_of_mindspore(shape, factor):
    rng = np.random.default_rng(0)
    logits = Tensor((rng.standard_normal(shape) * 8).astype(np.float32))
    labels = Tensor(rng.random(shape, np.float32))
    value, gradient = Gradient(Scaled(FusedBCEWithLogits(), factor)).compile_and_run(logits, labels)
    expected, theirs = Gradient(Scaled(nn.BCEWithLogitsLoss(), factor)).compile_and_run(logits, labels)
    assert value.asnumpy() == expected.asnumpy()
    np.testing.assert_allclose(gradient.asnumpy(), theirs.asnumpy(), rtol=2e-6, atol=1e-9 * factor)


def class_numbers():
    labels = np.random.default_rng(1).integers(0, 5, 9).astype(np.int32)
    labels[[2, 7]] = 4, -100  # the last is left out
    return labels


@pytest.mark.long(but=["class numbers", "a class left out"])
@pytest.mark.parametrize(
    ("labels", "ignored"),
    [
        (class_numbers(), -100),
        (class_numbers() % 5, 4),
        (np.eye(5, dtype=np.float32)[class_numbers() % 5], -100),
        (np.full(9, -100, np.int32), -100),
        (class_numbers() % 5 - 1, 4),
    ],
    ids=["class numbers", "a class left out", "probabilities", "all left out", "numbers from the last"],
)
def test_value_and_gradient_of_classes_are_those_of_mindspore(labels, ignored):
    logits = Tensor((np.random.default_rng(0).standard_normal((9, 5)) * 8).astype(np.float32))
    loss = nn.CrossEntropyLoss(ignore_index=ignored)
    value, gradient = Gradient(Scaled(fused_loss(loss), 1024.0)).compile_and_run(logits, Tensor(labels))
    expected, theirs = Gradient(Scaled(loss, 1024.0)).compile_and_run(logits, Tensor(labels))
    np.testing.assert_allclose(value.asnumpy(), expected.asnumpy(), rtol=1e-6)
    np.testing.assert_allclose(gradient.asnumpy(), theirs.asnumpy(), rtol=2e-6, atol=1e-4)


class Own(nn.BCEWithLogitsLoss):
    """A user's loss."""


def test_only_the_plain_loss_is_replaced():
    assert isinstance(fused_loss(nn.BCEWithLogitsLoss()), FusedBCEWithLogits)
    assert isinstance(fused_loss(nn.CrossEntropyLoss()), FusedCrossEntropy)
    ones = Tensor(np.ones(1, np.float32))
    others = [
        nn.BCEWithLogitsLoss("sum"),
        nn.BCEWithLogitsLoss(weight=ones),
        nn.BCEWithLogitsLoss(pos_weight=ones),
        Own(),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(weight=ones),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.MSELoss(),
        None,
    ]
    assert [fused_loss(loss) for loss in others] == others


def test_shapes_that_do_not_fit_are_refused_as_by_mindspore():
    network = nn.Dense(3, 1)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    data = {"x": np.ones((8, 3), np.float32), "label": np.ones((8, 2), np.float32)}
    with pytest.raises(Exception, match="shape"):
        trainer.fit(data, batch_size=4, callbacks=[], sink_size=1)


class Summed(nn.Cell):
    """The sum of each of several losses."""

    def __init__(self, losses):
        super().__init__()
        self.losses = nn.CellList(losses)

    def construct(self, prediction, labels):
        found = ()
        for loss in self.losses:
            found += (loss(prediction, labels).sum(),)
        return found


def test_a_weight_of_bce_counts_as_it_broadcasts():
    """MindSpore's own kernel reads past the end of a weight that is smaller than the prediction."""
    random = np.random.default_rng(5)
    p, y = random.uniform(0.1, 0.9, (4, 3)), random.integers(0, 2, (4, 3))
    weights = [np.float32(0.5), *(random.random(shape) for shape in [(1,), (3,), (1, 3), (4, 1), (4, 3)])]
    weights = [np.asarray(weight, np.float32) for weight in weights]
    cases = [(weight, reduction) for weight in weights for reduction in ("mean", "sum", "none")]
    losses = [fused_loss(nn.BCELoss(Tensor(weight), reduction)) for weight, reduction in cases]
    each = [row_loss(nn.BCELoss(Tensor(weight))).each for weight in weights]
    found = Summed([*losses, *each]).compile_and_run(Tensor(p.astype(np.float32)), Tensor(y.astype(np.float32)))
    rows = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    expected = [np.mean(w * rows) if reduction == "mean" else np.sum(w * rows) for w, reduction in cases]
    expected += [np.sum(w * rows) for w in weights]
    np.testing.assert_allclose([value.asnumpy() for value in found], expected, rtol=1e-5)


class Scores(nn.Cell):
    """Probabilities of one task."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, 1, weight_init="zeros", bias_init="zeros")

    def construct(self, x):
        return nn.Sigmoid()(self.dense(x))


def test_a_weight_of_bce_counts_in_training_and_in_a_task():
    data = {"x": np.ones((8, 3), np.float32), "y": np.ones((8, 1), np.float32)}
    loss = nn.BCELoss(Tensor(np.array([0.5], np.float32)))
    for given in (loss, MultiTaskLoss({"y": loss})):
        trainer = Trainer(Scores(), given, "sgd")
        assert trainer.evaluate(data, batch_size=8)["loss"] == pytest.approx(0.5 * np.log(2))
    with pytest.raises(ConfigurationError, match=r"WithLossCell._loss_fn: nn.BCELoss reads a weight of shape \[1\]"):
        Trainer(nn.WithLossCell(Scores(), loss), None, "sgd")


ROWS, SIZE = 5, 8
ONES = Tensor(np.ones(1, np.float32))
CLASS_WEIGHTS = Tensor(np.array([0.5, 1.0, 3.0], np.float32))


def values(shape):
    rng = np.random.default_rng(0)
    return rng.standard_normal((ROWS, *shape)).astype(np.float32), rng.random((ROWS, *shape)).astype(np.float32)


def classes(*shape, ignored=None):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (ROWS, *shape)).astype(np.int32)
    if ignored is not None:
        labels[1] = ignored
    return rng.standard_normal((ROWS, 3, *shape)).astype(np.float32), labels


def probabilities():
    prediction, label = values((4,))
    return 1 / (1 + np.exp(-prediction)), label


def shares():
    logits, label = values((3,))
    return logits, label / label.sum(axis=1, keepdims=True)


CASES = {
    "BCE with logits": (nn.BCEWithLogitsLoss(), values(())),
    "BCE with logits of two targets, added up": (nn.BCEWithLogitsLoss("sum"), values((2,))),
    "BCE with logits, weights of elements": (nn.BCEWithLogitsLoss(weight=ONES, pos_weight=2 * ONES), values(())),
    "BCE": (nn.BCELoss(), probabilities()),
    "MSE": (nn.MSELoss(), values((1,))),
    "MSE of a matrix, added up": (nn.MSELoss("sum"), values((2, 3))),
    "MAE": (nn.MAELoss(), values((2,))),
    "L1": (nn.L1Loss(), values((2,))),
    "Huber": (nn.HuberLoss(delta=0.3), values((1,))),
    "smooth L1": (nn.SmoothL1Loss(0.4, "mean"), values((1,))),
    "cross entropy": (nn.CrossEntropyLoss(), classes()),
    "cross entropy, smoothed": (nn.CrossEntropyLoss(label_smoothing=0.2), classes()),
    "cross entropy, ignored labels": (nn.CrossEntropyLoss(ignore_index=7), classes(ignored=7)),
    "cross entropy, weights of classes": (nn.CrossEntropyLoss(CLASS_WEIGHTS, 7), classes(ignored=7)),
    "negative log likelihood": (nn.NLLLoss(CLASS_WEIGHTS), classes()),
    "cross entropy of places": (nn.CrossEntropyLoss(ignore_index=7), classes(2, 2, ignored=7)),
    "cross entropy of probabilities": (nn.CrossEntropyLoss(), shares()),
    "softmax cross entropy": (nn.SoftmaxCrossEntropyWithLogits(reduction="mean"), shares()),
    "softmax cross entropy, sparse": (nn.SoftmaxCrossEntropyWithLogits(True, "mean"), classes()),
}


@pytest.mark.parametrize("name", CASES)
def test_made_up_rows_weigh_nothing(name):
    loss, (prediction, label) = CASES[name]
    expected, gradient = mindspore.value_and_grad(loss)(Tensor(prediction), Tensor(label))
    missing = SIZE - ROWS
    filled = [np.concatenate([column, np.repeat(column[-1:], missing, axis=0)]) for column in (prediction, label)]
    weights = (np.arange(SIZE) < ROWS).astype(np.float32)
    prediction, label, weights = map(Tensor, (*filled, weights))
    value, of_filled = mindspore.value_and_grad(row_loss(loss))(prediction, (label,), weights)
    np.testing.assert_allclose(value.asnumpy(), expected.asnumpy(), rtol=2e-6)
    np.testing.assert_allclose(of_filled.asnumpy()[:ROWS], gradient.asnumpy(), rtol=2e-5, atol=1e-7)
    assert not of_filled.asnumpy()[ROWS:].any()


class OwnLoss(nn.MSELoss):
    """A user's loss."""


@pytest.mark.parametrize(
    "loss",
    [
        OwnLoss(),
        nn.RMSELoss(),
        None,
        np.square,
    ],
    ids=str,
)
def test_nothing_is_guessed_of_other_losses(loss):
    assert row_loss(loss) is None
