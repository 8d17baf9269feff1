"""What losses divide by: the losses of parts, weighed by it, add up to that of the whole batch."""

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from trainer import Trainer
from trainer.errors import ConfigurationError, DataError
from trainer.graph.denominators import denominator_of
from trainer.graph.multi_task import MultiTaskLoss
from trainer.mindspore_internals.execution import eager_mode

ROWS = 12
RNG = np.random.default_rng(1)
X = RNG.normal(size=(ROWS, 3)).astype(np.float32)
SHARES = RNG.uniform(0.1, 0.9, (ROWS, 3)).astype(np.float32)
SIGNS = np.where(RNG.random((ROWS, 3)) > 0.5, 1, -1).astype(np.float32)
CLASSES = RNG.integers(0, 3, ROWS).astype(np.int32)
IGNORED = np.where(np.arange(ROWS) < 4, -100, CLASSES).astype(np.int32)
PIXELS = RNG.integers(0, 3, (ROWS, 5)).astype(np.int32)
WEIGHTS = Tensor(np.array([0.2, 1.0, 3.0], np.float32))


class Own(nn.Cell):
    """A mean over weights of the user's own, which the label gives."""

    def construct(self, prediction, label):
        return ops.sum((prediction - label) ** 2 * (label + 1)) / ops.sum(label + 1)

    def denominator(self, label):
        return ops.sum(label + 1)


class OwnSum(nn.Cell):
    denominator = 1

    def construct(self, prediction, label):
        return ops.sum((prediction - label) ** 2)


LOSSES = {
    "rows": (nn.MSELoss(), X, SHARES),
    "sum": (nn.MSELoss("sum"), X, SHARES),
    "binary": (nn.BCEWithLogitsLoss(weight=WEIGHTS, pos_weight=WEIGHTS), X, SHARES),
    "binary sum": (nn.BCELoss(reduction="sum"), SHARES, SHARES[::-1]),
    "huber": (nn.HuberLoss(), X, SHARES),
    "hinge": (nn.HingeEmbeddingLoss(), X, SIGNS),
    "poisson": (nn.PoissonNLLLoss(), X, SHARES),
    "divergence": (nn.KLDivLoss(), X, SHARES),
    "divergence by batch": (nn.KLDivLoss("batchmean"), X, SHARES),
    "focal": (nn.FocalLoss(weight=WEIGHTS), X, CLASSES[:, None]),
    "sparse": (nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), X, CLASSES),
    "classes": (nn.CrossEntropyLoss(), X, CLASSES),
    "ignored": (nn.CrossEntropyLoss(), X, IGNORED),
    "ignored by name": (nn.CrossEntropyLoss(ignore_index=1), X, CLASSES),
    "weighted classes": (nn.CrossEntropyLoss(WEIGHTS), X, IGNORED),
    "smoothed": (nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.1), X, IGNORED),
    "summed classes": (nn.CrossEntropyLoss(WEIGHTS, reduction="sum"), X, IGNORED),
    "probabilities": (nn.CrossEntropyLoss(WEIGHTS), X, SHARES),
    "pixels": (nn.CrossEntropyLoss(WEIGHTS, 1), X[:, :, None] * SHARES[0, 0] * np.ones(5, np.float32), PIXELS),
    "log likelihood": (nn.NLLLoss(WEIGHTS), X, IGNORED),
    "own": (Own(), X, SHARES),
    "own sum": (OwnSum(), X, SHARES),
}


@pytest.mark.parametrize("name", LOSSES)
def test_parts_add_up_to_the_whole_batch(name):
    loss, prediction, label = LOSSES[name]
    denominator = denominator_of(loss)
    with eager_mode():

        def value(part):
            labels = Tensor(label[part])
            return float(loss(Tensor(prediction[part]), labels).asnumpy()), float(denominator((labels,)))

        parts = [value(slice(0, 5)), value(slice(5, ROWS))]
        whole, _ = value(slice(0, ROWS))
    divisor = 1.0 if denominator.kind == "one" else sum(count for _, count in parts)
    np.testing.assert_allclose(sum(mean * count for mean, count in parts) / divisor, whole, rtol=2e-6)


MASKED = MultiTaskLoss({"label": nn.BCEWithLogitsLoss(reduction="none")}, ignore_nan=True)
TASKS = {"a": nn.CrossEntropyLoss(), "b": nn.CrossEntropyLoss()}
KNOWN = np.where(np.arange(ROWS) < 4, np.nan, CLASSES > 0).astype(np.float32)[:, None]


class Twice(nn.Dense):
    def construct(self, x):
        made = super().construct(x)
        return made, made * 2


def train(loss, label, parts, kind=nn.Dense):
    """Return the weights after two updates of all rows in `parts` micro-batches each."""
    outputs = 1 if loss is MASKED else 3
    network = kind(3, outputs, weight_init="zeros", bias_init="zeros")
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    trainer = Trainer(network, loss, optimizer, gradient_accumulation_steps=parts)
    labels = label if isinstance(label, dict) else {"label": label}
    trainer.fit({"x": X, **labels}, 2, batch_size=ROWS // parts, shuffle=False, callbacks=[])
    return network.weight.asnumpy().copy()


@pytest.mark.long(but=["ignored", "own"])
@pytest.mark.parametrize("name", ["sum", "ignored", "weighted classes", "own", "masked task"])
def test_micro_batches_equal_one_batch_of_all_their_rows(name):
    loss, _, label = (MASKED, None, KNOWN) if name == "masked task" else LOSSES[name]
    np.testing.assert_allclose(train(loss, label, 3), train(loss, label, 1), rtol=5e-7, atol=6e-8)


def test_tasks_may_ignore_a_class_number_only_in_whole_batches():
    make = lambda label: train(MultiTaskLoss(dict(TASKS)), {"a": label, "b": CLASSES}, 3, Twice)  # noqa: E731
    make(CLASSES)
    with pytest.raises(DataError, match=r"column 'a': class -100 in row 0 of the batch \(rows: 4\)"):
        make(IGNORED)


def mean_of_squares(prediction, label):
    return ops.mean((prediction - label) ** 2)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (mean_of_squares, "the denominator of mean_of_squares is unknown"),
        (nn.RMSELoss(), "the denominator of RMSELoss is unknown"),
        (MultiTaskLoss({"a": nn.MSELoss(), "b": mean_of_squares}), "denominator of _?mean_of_squares is unknown"),
        (
            MultiTaskLoss({"a": nn.MSELoss(), "b": nn.MSELoss("none")}, ignore_nan=["b"]),
            r"divide by different numbers \(of rows",
        ),
        (MultiTaskLoss({"a": nn.MSELoss(), "b": nn.MSELoss("sum")}), r"divide by different numbers \(of rows"),
    ],
)
def test_a_loss_whose_parts_cannot_be_added_up_is_refused_with_what_to_declare(loss, said):
    network = nn.Dense(3, 2)
    make = lambda **options: Trainer(network, loss, nn.SGD(network.trainable_params(), 0.1), **options)  # noqa: E731
    make()
    with pytest.raises(ConfigurationError, match=f"gradient_accumulation_steps=2: .*{said}"):
        make(gradient_accumulation_steps=2)


def test_a_declaration_that_means_nothing_is_refused():
    def loss(prediction, label):
        return ops.mean(prediction - label)

    loss.denominator = "batch"
    with pytest.raises(ConfigurationError, match=r"loss\.denominator = 'batch': expected 'rows'"):
        Trainer(nn.Dense(3, 1), loss)
    loss.denominator = "rows"
    assert denominator_of(loss).kind == "rows"
