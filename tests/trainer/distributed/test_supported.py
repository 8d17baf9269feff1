"""What several processes cannot do together is refused before anything is compiled."""

import mindspore
import numpy as np
import pytest
from mindspore import nn

from trainer import Trainer
from trainer.data.datasets import make_source
from trainer.distributed.group import Group
from trainer.distributed.supported import check_stream, check_training
from trainer.errors import ConfigurationError
from trainer.streams import IterableStream, ReplayStream


class TwoProcesses(Group):
    """The first of two processes, as far as decisions go that need no word from the other."""

    size = 2


@pytest.fixture
def make(linear):
    def make(optimizer=nn.SGD, **options):
        network = linear()
        if optimizer is None:
            network = nn.TrainOneStepCell(
                nn.WithLossCell(network, nn.MSELoss()), nn.SGD(network.trainable_params(), 0.1)
            )
            trainer = Trainer(network, **options)
        else:
            trainer = Trainer(network, nn.MSELoss(), optimizer(network.trainable_params(), 0.1), **options)
        trainer.group = TwoProcesses()
        return trainer

    return make


@pytest.fixture
def source():
    return make_source({"x": np.zeros((8, 30), np.float32), "y": np.zeros((8, 1), np.float32)}, batch_size=4)


def test_a_plain_training_is_accepted(make, source):
    check_training(make(), source)


def test_a_whole_training_step_is_refused(make, source):
    with pytest.raises(ConfigurationError, match="give network, loss_fn and optimizer instead"):
        check_training(make(optimizer=None), source)


def test_a_stream_that_nobody_can_divide_is_refused(make):
    table = {"x": np.zeros((8, 30), np.float32), "label": np.zeros((8, 1), np.float32)}
    check_stream(make(), ReplayStream(table), None)
    check_stream(make(), IterableStream(lambda: iter([table])), None)
    with pytest.raises(ConfigurationError, match="IterableStream cannot be divided among 2 processes"):
        check_stream(make(), IterableStream(iter([table])), None)


def test_accumulation_over_parts_of_unknown_size_is_refused(make, source):
    source.separate = True
    check_training(make(), source)
    with pytest.raises(ConfigurationError, match="gradient_accumulation_steps does not go with data"):
        check_training(make(gradient_accumulation_steps=2), source)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"parallel_mode": "semi_auto_parallel"}, "parallel_mode='semi_auto_parallel' is set"),
        ({"parallel_mode": "data_parallel", "enable_parallel_optimizer": True}, "enable_parallel_optimizer=True"),
    ],
)
def test_a_context_that_divides_network_or_optimizer_is_refused(make, source, context, message):
    trainer = make()  # MindSpore itself refuses an optimizer built afterwards on CPU
    mindspore.set_auto_parallel_context(**context)
    try:
        with pytest.raises(ConfigurationError, match=message):
            check_training(trainer, source)
    finally:
        mindspore.reset_auto_parallel_context()


def test_one_process_is_asked_nothing(make, source):
    trainer = make(gradient_accumulation_steps=2)
    trainer.group = Group()
    source.separate = True
    check_training(trainer, source)
