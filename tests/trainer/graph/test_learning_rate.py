"""The learning rate of any optimizer, read and set from the host, seen by steps that are already compiled."""

import itertools

import numpy as np
import pytest
from mindspore import experimental, nn

from trainer import Callback, Trainer
from trainer.errors import ConfigurationError
from trainer.graph.learning_rate import get_learning_rate, set_learning_rate


def groups(network):
    return [{"params": [network[0].weight], "lr": 0.3}, {"params": [network[0].bias], "lr": 0.1}]


@pytest.mark.parametrize(
    ("make", "rate"),
    [
        (lambda network: nn.SGD(network.trainable_params(), 0.25), 0.25),
        (lambda network: nn.Adam(network.trainable_params(), 0.25), 0.25),
        (lambda network: nn.Momentum(groups(network), 0.5, 0.9), 0.3),
        (lambda network: experimental.optim.Adam(network.trainable_params(), 0.25), 0.25),
        (lambda network: nn.SGD(network.trainable_params(), [0.5, 0.4, 0.3]), 0.5),
        (lambda network: nn.SGD(network.trainable_params(), nn.ExponentialDecayLR(0.5, 0.9, 1)), 0.5),
    ],
    ids=["SGD", "Adam", "groups", "experimental", "list", "schedule"],
)
def test_reads_any(make, rate, linear):
    assert get_learning_rate(make(linear())) == pytest.approx(rate)
    assert get_learning_rate(None) is None


def test_sets_constants_of_every_group(linear):
    network = linear()
    optimizer = nn.Momentum(groups(network), 0.5, 0.9)
    set_learning_rate(optimizer, 0.125)
    assert [float(rate.asnumpy()) for rate in optimizer.learning_rate] == [0.125, 0.125]


@pytest.mark.parametrize("optimizer", ["schedule", None])
def test_a_schedule_cannot_be_set(optimizer, linear):
    made = nn.SGD(linear().trainable_params(), nn.ExponentialDecayLR(0.5, 0.9, 1)) if optimizer else None
    with pytest.raises(ConfigurationError, match="has no constant learning rate to set"):
        set_learning_rate(made, 0.1)


@pytest.mark.parametrize("options", [{}, {"loss_scale": 8}], ids=["plain", "with a branch in the step"])
def test_a_new_rate_counts_from_the_next_step(options, linear, batches, values):
    network = linear()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.5), **options)
    weights = [values(network)["0.0.weight"]]

    class Stop(Callback):
        def on_train_step_end(self, trainer):
            weights.append(values(network)["0.0.weight"])
            trainer.learning_rate = {1: 0.5, 2: 0.0, 3: 0.5}.get(trainer.state.progress.global_step, 0.5)

    trainer.fit(batches(64, 4), callbacks=Stop(), sink_size=1)
    moved = [not (before == after).all() for before, after in itertools.pairwise(weights)]
    assert moved == [True, True, False, True]
    assert trainer.learning_rate == 0.5
    assert np.isfinite(weights[-1]).all()
