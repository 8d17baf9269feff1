"""Schedules against their formulas in NumPy, in the graph of a training step."""

import math

import numpy as np
import pytest
from mindspore import nn

from callbacks import History, LambdaCallback
from trainer import Schedule, Trainer
from trainer.errors import ConfigurationError
from trainer.experiment.configuration.loader import load_config

STEPS = 40


def expected(kind, step, peak=0.1, total=STEPS, warmup=10, floor=0.01):
    share = (step - warmup) / (total - warmup)
    if kind == "one_cycle":
        if step < warmup:
            return peak / 25 + (peak - peak / 25) * (1 - math.cos(math.pi * step / warmup)) / 2
        return peak / 1e4 + (peak - peak / 1e4) * (1 + math.cos(math.pi * share)) / 2
    if step < warmup:
        return peak * (step + 1) / warmup
    return {
        "constant": peak,
        "linear": peak + (floor - peak) * share,
        "cosine": floor + (peak - floor) * (1 + math.cos(math.pi * share)) / 2,
        "inverse_sqrt": max(floor, peak * math.sqrt(warmup / step)),
    }[kind]


@pytest.mark.long(but=["linear"])
@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "inverse_sqrt", "one_cycle"])
def test_the_weights_move_by_the_rate_of_each_step(kind):
    """The gradient of sum(w x) is x = 1, so plain gradient descent moves the weight by the rate itself."""
    network = nn.Dense(1, 1, weight_init="zeros", has_bias=False)
    schedule = Schedule(kind, peak=0.1, total_steps=STEPS, warmup_steps=10, floor=0.01)
    weights, rates = [0.0], []

    def note(trainer):
        weights.append(float(network.weight.asnumpy()[0, 0]))
        rates.append(trainer.learning_rate)

    optimizer = nn.SGD(network.trainable_params(), schedule)
    trainer = Trainer(network, Mean(), optimizer)
    x = np.ones((STEPS, 1), np.float32)
    trainer.fit((x,), 1, batch_size=1, sink_size=1, callbacks=[LambdaCallback(on_train_step_end=note), History()])
    wanted = [expected(kind, step) for step in range(STEPS)]
    np.testing.assert_allclose(-np.diff(weights), wanted, rtol=1e-3)
    np.testing.assert_allclose(rates[:-1], wanted[1:], rtol=1e-5)


class Mean(nn.Cell):
    def construct(self, outputs):
        return outputs.mean()


def test_epochs_count_where_the_steps_of_an_epoch_are_given():
    by_epochs = Schedule("cosine", 0.1, total_steps=4, warmup_steps=1, steps_per_epoch=10)
    by_steps = Schedule("cosine", 0.1, total_steps=40, warmup_steps=10)
    assert (by_epochs.total, by_epochs.warmup) == (by_steps.total, by_steps.warmup)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "cosin", "peak": 0.1}, r"did you mean 'cosine'"),
        ({"kind": "cosine", "peak": 0.1}, r"total_steps"),
        ({"kind": "linear", "peak": 0.1, "total_steps": 10, "warmup_steps": 10}, r"less than the 10 steps"),
        ({"kind": "linear", "peak": -1, "total_steps": 10}, r"peak"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        Schedule(**arguments)


def test_a_schedule_by_name_in_an_experiment(project_root):
    given = "{class_path: trainer.Schedule, init_args: {kind: cosine, peak: 3e-3, total_steps: 900}}"
    overrides = [f"optimizer.init_args.learning_rate={given}"]
    config = load_config(project_root / "configs" / "wide_deep_movielens.yaml", overrides)
    assert config.optimizer.init_args["learning_rate"].init_args["kind"] == "cosine"


def test_the_warm_up_of_one_cycle_is_three_tenths_of_the_steps_of_all_epochs():
    shares = [Schedule("one_cycle", 0.1, epochs, steps_per_epoch=100).warmup for epochs in (1, 2, 5)]
    assert shares == [30, 60, 150]
