"""The seams between programs, on each device: what one training does must not change another.

A process has one device, the CPU unless TRAINER_TEST_DEVICE names another; the cases of the others are skipped. The
reference is computed by NumPy, or by the same training alone.
"""

import gc
import os

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from callbacks import Every, ModelCheckpoint
from trainer import Trainer
from trainer.embedding import Embedding, RowAdagrad
from trainer.mindspore_internals import device as devices
from trainer.serving import Publish, ServedModel

HERE = os.environ.get("TRAINER_TEST_DEVICE", "cpu")
ROWS, BATCH = 512, 16
rng = np.random.default_rng(5)
IDS = rng.integers(0, 40, (ROWS, 3)).astype(np.int32)
X = rng.normal(size=(ROWS, 4)).astype(np.float32)
Y = (X.sum(1) + np.sin(IDS).sum(1) > 0).astype(np.float32)[:, None]
OPTIMIZERS = {  # `nn.Lamb` has no kernel on CPU
    "sgd": lambda parameters: nn.SGD(parameters, 0.05),
    "momentum": lambda parameters: nn.Momentum(parameters, 0.05, 0.9),
    "adam": lambda parameters: nn.Adam(parameters, 0.01),
    "adagrad": lambda parameters: nn.Adagrad(parameters, 0.05),
    "rmsprop": lambda parameters: nn.RMSProp(parameters, 0.01),
    "adamw": lambda parameters: nn.AdamWeightDecay(parameters, 0.01),
    "adamax": lambda parameters: nn.AdaMax(parameters, 0.01),
    "adadelta": lambda parameters: nn.Adadelta(parameters, 0.5),
    "ftrl": lambda parameters: nn.FTRL(parameters, learning_rate=0.05),
    "asgd": lambda parameters: nn.ASGD(parameters, 0.05),
    "rprop": lambda parameters: nn.Rprop(parameters, 0.01),
    "proximal adagrad": lambda parameters: nn.ProximalAdagrad(parameters, learning_rate=0.05),
    "lazy adam": lambda parameters: nn.LazyAdam(parameters, 0.01),
}
pytestmark = [
    pytest.mark.device,
    pytest.mark.parametrize(
        "device",
        [
            pytest.param(
                name,
                marks=pytest.mark.skipif(
                    name != HERE, reason=f"this process computes on {HERE}; TRAINER_TEST_DEVICE={name} runs the case"
                ),
            )
            for name in ("cpu", "gpu", "ascend")
        ],
    ),
]


class Scores(nn.Cell):
    """A table and a dense layer."""

    def __init__(self, mode="dense"):
        super().__init__()
        self.table = Embedding(4, 40, mode=mode, name="ids", optimizer=RowAdagrad(0.1) if mode == "sparse" else None)
        for parameter in self.table.get_parameters():
            parameter.set_data(Tensor(np.random.default_rng(7).normal(size=parameter.shape).astype(np.float32)))
        self.head = nn.Dense(
            16, 1, weight_init=Tensor(np.linspace(-0.3, 0.3, 16, dtype=np.float32)[None]), bias_init="zeros"
        )

    def construct(self, ids, x):
        """Return the scores [batch, 1]."""
        deep = self.table(ids).reshape(ids.shape[0], -1)
        return self.head(ops.concat((deep, x), 1))


def make(device, optimizer="adam", mode="dense", **options):
    network = Scores(mode)
    return Trainer(
        network,
        nn.BCEWithLogitsLoss(),
        OPTIMIZERS[optimizer](network.trainable_params()),
        device=device,
        seed=3,
        **options,
    )


def fit(trainer, epochs=2, **options):
    """Train; return the losses of the epochs."""
    options = {"batch_size": BATCH, "callbacks": []} | options
    return trainer.fit({"ids": IDS, "x": X, "y": Y}, epochs, **options).history["loss"]


def weights(trainer):
    return {name: parameter.asnumpy().copy() for name, parameter in trainer.network.parameters_dict().items()}


def equal(one, other):
    """Compare to the bit, or to 1e-5 where operators add in an order of their own."""
    assert one.keys() == other.keys()
    least = {} if devices.current().repeats_sums else {"rtol": 1e-5, "atol": 1e-6}
    for name, value in one.items():
        if least:
            np.testing.assert_allclose(value, other[name], err_msg=name, **least)
        else:
            np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.fixture(autouse=True)
def _no_other_trainer():
    gc.collect()


def reference(optimizer):
    """Return the loss of the first epoch of the dense network, by NumPy in float64, in the order of the rows."""
    assert optimizer == "sgd"
    trainer = make(None)
    (table,), head = trainer.network.table.get_parameters(), trainer.network.head
    table, weight, bias = (np.array(value.asnumpy(), np.float64) for value in (table, head.weight, head.bias))
    total = 0.0
    for first in range(0, ROWS, BATCH):
        part = slice(first, first + BATCH)
        ids, y = IDS[part], Y[part]
        inputs = np.concatenate((table[ids].reshape(BATCH, -1), X[part]), 1)
        scores = inputs @ weight.T + bias
        total += float(np.mean(np.logaddexp(0, scores) - y * scores)) * BATCH / ROWS
        slope = (1 / (1 + np.exp(-scores)) - y) / BATCH
        np.add.at(table, ids, -0.05 * (slope @ weight[:, :12]).reshape(BATCH, 3, 4))
        weight, bias = weight - 0.05 * slope.T @ inputs, bias - 0.05 * slope.sum(0)
    return total


@pytest.mark.long(but=["8-cpu"])
@pytest.mark.parametrize("sink_size", [1, 8, 32, -1])
def test_a_training_gives_numpys_losses_with_any_number_of_steps_per_call(device, sink_size):
    trainer = make(device, "sgd")
    losses = fit(trainer, 1, sink_size=sink_size, shuffle=False)
    assert losses[0] == pytest.approx(reference("sgd"), rel=1e-5)
    assert trainer.device is devices.current()


@pytest.mark.long(but=["adam-cpu"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_training_beside_a_living_trainer_equals_one_alone(device, optimizer, monkeypatch):
    monkeypatch.setenv(devices.UNSAFE, "1")  # the fault is what is looked for
    first, second = make(device, optimizer), make(device, optimizer)
    before = weights(first)
    losses = fit(first, 1, sink_size=1)
    equal({"loss": np.array(fit(second, 1, sink_size=1))}, {"loss": np.array(losses)})
    equal(weights(first), weights(second))
    assert all((value != before[name]).any() for name, value in weights(first).items())


@pytest.mark.long
def test_evaluation_between_epochs_and_a_snapshot_leave_the_training_alone(device, tmp_path):
    whole = make(device)
    valid = {"ids": IDS[:100], "x": X[:100], "y": Y[:100]}
    fit(whole, 4, valid_dataset=valid)
    expected = weights(whole)
    del whole
    gc.collect()
    one = make(device)
    fit(one, 2, callbacks=[ModelCheckpoint(tmp_path)])
    del one
    gc.collect()
    other = make(device)
    fit(other, 4, resume=tmp_path)
    equal(weights(other), expected)


@pytest.mark.long(but=["sparse-cpu"])
@pytest.mark.parametrize("mode", ["dense", "sparse"])
def test_a_published_version_answers_as_the_trainer_predicts(device, mode, tmp_path, monkeypatch):
    monkeypatch.setenv(devices.UNSAFE, "1")
    trainer = make(device, mode=mode)
    fit(trainer, callbacks=[Publish(tmp_path, every=Every(epochs=1))])
    rows = {"ids": IDS[:BATCH], "x": X[:BATCH]}
    with ServedModel(tmp_path) as served:
        answers = served.predict(rows)
    np.testing.assert_allclose(np.reshape(answers, -1), np.reshape(trainer.predict(rows), -1), rtol=1e-5, atol=1e-6)
