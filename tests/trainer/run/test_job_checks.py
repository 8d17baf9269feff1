"""What several processes cannot do together is refused before anything is compiled."""

import mindspore
import numpy as np
import pytest
from mindspore import nn

from trainer.distributed.group import SINGLE, Group
from trainer.errors import ConfigurationError
from trainer.run.job_checks import check_stream, check_training, warn_of_own_statistics
from trainer.streams import IterableStream, ReplayStream


@pytest.fixture
def check(linear):
    """Check the training of a small network by two processes."""

    def check(network=None, *, processes=2, optimizer=True, accumulate=1, has_tables=False, separate=False):
        network = network or linear()
        rule = nn.SGD(network.trainable_params(), 0.1) if optimizer else None
        check_training(processes, network, rule, accumulate=accumulate, has_tables=has_tables, separate=separate)

    return check


def test_a_plain_training_is_accepted(check):
    check()


def test_a_whole_training_step_is_refused(check, linear):
    network = linear()
    step = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(ConfigurationError, match="give network, loss_fn and optimizer instead"):
        check(step, optimizer=False)


def test_an_indivisible_stream_is_refused():
    table = {"x": np.zeros((8, 30), np.float32), "label": np.zeros((8, 1), np.float32)}
    check_stream(2, ReplayStream(table))
    check_stream(2, IterableStream(lambda: iter([table])))
    with pytest.raises(ConfigurationError, match="IterableStream cannot be divided among 2 processes"):
        check_stream(2, IterableStream(iter([table])))


def test_accumulation_over_parts_of_unknown_size_is_refused(check):
    check(separate=True)
    with pytest.raises(ConfigurationError, match="gradient_accumulation_steps does not go with data"):
        check(separate=True, accumulate=2)


def test_tables_with_divided_data_are_refused(check):
    check(has_tables=True)
    with pytest.raises(ConfigurationError, match="give all of them the whole dataset"):
        check(separate=True, has_tables=True)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"parallel_mode": "semi_auto_parallel"}, "parallel_mode='semi_auto_parallel' is set"),
        ({"parallel_mode": "data_parallel", "enable_parallel_optimizer": True}, "enable_parallel_optimizer=True"),
    ],
)
def test_a_context_that_divides_network_or_optimizer_is_refused(linear, context, message):
    network = linear()
    optimizer = nn.SGD(network.trainable_params(), 0.1)  # MindSpore refuses to build one afterwards on CPU
    mindspore.set_auto_parallel_context(**context)
    try:
        with pytest.raises(ConfigurationError, match=message):
            check_training(2, network, optimizer, accumulate=1, has_tables=False, separate=False)
    finally:
        mindspore.reset_auto_parallel_context()


def test_one_process_is_asked_nothing(check):
    check(processes=1, separate=True, accumulate=2)


def test_batch_normalization_over_the_rows_of_one_process_is_warned_of_on_rank_0(caplog):
    class Two(Group):
        size = 2

    other = Two()
    other.rank = 1
    network = nn.SequentialCell(nn.Dense(2, 2), nn.BatchNorm1d(2), nn.LayerNorm((2,)))
    for group, member in ((SINGLE, network), (other, network), (Two(), nn.Dense(2, 2))):
        warn_of_own_statistics(member, group)
    assert not caplog.records
    warn_of_own_statistics(network, Two())
    (record,) = caplog.records
    assert "BatchNorm (1) normalizes with the mean and variance of the rows of each process" in record.getMessage()
