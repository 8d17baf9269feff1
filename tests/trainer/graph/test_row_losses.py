"""A loss over the rows that count is MindSpore's own loss of these rows alone, with its gradient."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn

from trainer.graph.row_losses import row_loss

ROWS, SIZE = 5, 8
ONES = Tensor(np.ones(1, np.float32))


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
    value, of_filled = mindspore.value_and_grad(row_loss(loss))(*map(Tensor, (*filled, weights)))
    np.testing.assert_allclose(value.asnumpy(), expected.asnumpy(), rtol=2e-6)
    np.testing.assert_allclose(of_filled.asnumpy()[:ROWS], gradient.asnumpy(), rtol=2e-5, atol=1e-7)
    assert not of_filled.asnumpy()[ROWS:].any()


class Own(nn.MSELoss):
    """A user's loss."""


@pytest.mark.parametrize(
    "loss",
    [Own(), nn.RMSELoss(), nn.BCEWithLogitsLoss(weight=ONES), nn.BCEWithLogitsLoss(pos_weight=ONES), None, np.square],
    ids=str,
)
def test_nothing_is_guessed_of_other_losses(loss):
    assert row_loss(loss) is None
