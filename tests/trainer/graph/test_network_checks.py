"""Mistakes in a trainer's arguments are reported by its constructor, not by its first step."""

from functools import partial

import numpy as np
import pytest
from mindspore import mint, nn
from mindspore.train import MAE

from trainer import MultiTaskLoss, Trainer
from trainer.errors import ConfigurationError
from trainer.features import Features, Numeric
from trainer.graph.network_checks import is_training_step
from trainer.models import ESMM


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": nn.Dense}, "network takes a mindspore.nn.Cell; received the class Dense; pass an instance"),
        ({"loss_fn": nn.MSELoss}, r"received the class MSELoss; pass an instance, MSELoss\(...\)"),
        ({"loss_fn": 3}, "loss_fn takes a Cell, a function or None; received int"),
        ({"optimizer": "adamm"}, "optimizer, by name, takes .*'adam'.*; received 'adamm'; did you mean 'adam'"),
        ({"eval_network": "net"}, "eval_network takes a Cell or None; received str"),
        ({"eval_indexes": [0, 1, 2]}, r"eval_indexes=\[0, 1, 2\] needs eval_network"),
        ({"eval_network": nn.Dense(2, 2), "eval_indexes": [0, 1]}, r"takes three whole numbers.*received \[0, 1\]"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps takes a whole number >= 1; received 0"),
        ({"gradient_accumulation_steps": 2.0}, "a whole number >= 1; received 2.0"),
        ({"clip_norm": -1.0}, "clip_norm takes a number > 0 or None; received -1.0"),
        ({"clip_value": 0}, "clip_value takes a number > 0 or None; received 0"),
        ({"seed": -1}, "seed takes a whole number from 0"),
        ({"seed": 2**32}, "seed takes a whole number from 0"),
        ({"metrics": ["acu"]}, "unknown metric 'acu'; did you mean 'auc'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refused(change, message, linear):
    network = linear()
    arguments = {
        "network": network,
        "loss_fn": nn.BCEWithLogitsLoss(),
        "optimizer": nn.SGD(network.trainable_params(), 0.1),
        **change,
    }
    with pytest.raises(ConfigurationError, match=message):
        Trainer(**arguments)


def test_an_optimizer_that_would_train_nothing_is_refused(linear):
    network = linear()
    with pytest.raises(
        ConfigurationError, match=r"mint.optim.Adam does not update the weights on CPU.*experimental.optim.Adam"
    ):
        Trainer(network, nn.BCEWithLogitsLoss(), mint.optim.Adam(network.trainable_params()))


def test_an_optimizer_of_another_network_is_refused(linear):
    other = nn.SGD(linear().trainable_params(), 0.1)
    with pytest.raises(ConfigurationError, match="has none of the network's parameters"):
        Trainer(linear(), nn.BCEWithLogitsLoss(), other)


def test_a_whole_step_does_everything_itself(linear):
    network = linear()
    step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(
        ConfigurationError, match=r"amp_level='O2', clip_norm=1.0: without an optimizer, the network is"
    ):
        Trainer(step, amp_level="O2", clip_norm=1.0)
    with pytest.raises(ConfigurationError, match="TrainOneStepCell already holds an optimizer"):
        Trainer(step, None, nn.SGD(network.trainable_params(), 0.1))


def test_what_counts_as_a_training_step(linear):
    network = linear()
    assert not is_training_step(network)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    assert is_training_step(nn.TrainOneStepCell(network, optimizer))
    holder = nn.CellList([network, optimizer])
    assert is_training_step(holder)


@pytest.mark.parametrize("sink_size", [0, -2, True, 2.0])
def test_a_sink_size_is_minus_one_or_a_count(sink_size, linear, batches):
    network = linear()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(
        ConfigurationError, match="sink_size takes a whole number >= 1, or -1 to let the trainer choose; received"
    ):
        trainer.fit(batches(64, 1), callbacks=[], sink_size=sink_size)


@pytest.mark.parametrize("epochs", [0, -1, 1.5])
def test_epochs_are_counted(epochs, linear, batches):
    network = linear()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(ConfigurationError, match="epochs takes a whole number >= 1; received"):
        trainer.fit(batches(64, 1), epochs, callbacks=[])


def test_labels_are_part_of_the_dataset(linear, cancer):
    network = linear()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(ConfigurationError, match=r"epochs received data; .* fit\(\(x, y\), epochs, batch_size=...\)"):
        trainer.fit(cancer["x"], cancer["y"], batch_size=64)


def test_an_evaluation_cell_of_mindspore_needs_positions_where_a_metric_would_read_its_loss():
    network, loss = nn.Dense(2, 1), nn.MSELoss()
    cell = nn.WithEvalCell(network, loss)
    make = partial(Trainer, network, loss, nn.SGD(network.trainable_params(), 0.1), eval_network=cell)
    with pytest.raises(ConfigurationError, match=r"Mae would read .* add eval_indexes=\[0, 1, 2\]"):
        make({"mae"})
    rows = {"x": np.ones((4, 2), np.float32), "y": np.ones((4, 1), np.float32)}
    chosen = MAE().set_indexes([1, 2])
    for trainer in (make({"mae"}, eval_indexes=[0, 1, 2]), make({"mae": chosen}), make({"loss"}), make()):
        assert set(trainer.evaluate(rows, batch_size=4)) <= {"loss", "mae"}


def test_tasks_in_another_order_than_the_networks_are_refused():
    features = Features([Numeric("x")], label=["click", "buy"])
    network = ESMM(features, dim=2, hidden=(2,))
    losses = {task: nn.BCEWithLogitsLoss() for task in ("buy", "click")}
    with pytest.raises(ConfigurationError, match=r"ESMM returns its tasks in the order click, buy.*order buy, click"):
        Trainer(network, MultiTaskLoss(losses), "adam", features=features)
