"""What several processes cannot do together is refused before anything is compiled."""

import mindspore
import numpy as np
import pytest
from mindspore import nn

from trainer.distributed.group import SINGLE, Group
from trainer.errors import ConfigurationError
from trainer.run.job_checks import check_stream, check_training, warn_of_own_statistics
from trainer.streams import IterableStream, ReplayStream


def sgd(network):
    return nn.SGD(network.trainable_params(), 0.1)


def test_a_plain_training_is_accepted(linear):
    network = linear()
    check_training(2, network, sgd(network))


class Step(nn.Cell):
    """A training cell without a reducer, or with one of MindSpore's or of the user's own."""

    def __init__(self, network, optimizer, reducer=None):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer = network, optimizer
        if reducer is not None:
            self.inner = nn.SequentialCell(reducer)

    def construct(self, x):
        return self.network(x)


class OwnReducer(nn.DistributedGradReducer):
    def construct(self, grads):
        return grads


def test_a_whole_training_step_needs_a_reducer(linear):
    network = linear()
    rule = nn.SGD(network.trainable_params(), 0.1)
    reducer, own = (kind(rule.parameters, True, 2) for kind in (nn.DistributedGradReducer, OwnReducer))
    check_training(2, Step(network, rule, reducer), None)
    inside = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), rule)
    check_training(2, Step(inside, rule), None)
    for step in (Step(network, rule), Step(network, rule, own)):
        with pytest.raises(ConfigurationError, match=r"Step is a whole .* gradients = self\.grad_reducer\(gradients"):
            check_training(2, step, None)


def test_an_indivisible_stream_is_refused():
    table = {"x": np.zeros((8, 30), np.float32), "label": np.zeros((8, 1), np.float32)}
    check_stream(2, ReplayStream(table))
    check_stream(2, IterableStream(lambda: iter([table])))
    with pytest.raises(ConfigurationError, match="IterableStream cannot be divided among 2 processes"):
        check_stream(2, IterableStream(iter([table])))


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"parallel_mode": "semi_auto_parallel"}, "parallel_mode='semi_auto_parallel' is set"),
        ({"parallel_mode": "data_parallel", "enable_parallel_optimizer": True}, "enable_parallel_optimizer=True"),
    ],
)
def test_a_context_that_divides_network_or_optimizer_is_refused(linear, context, message):
    network = linear()
    optimizer = sgd(network)  # MindSpore refuses to build one afterwards on CPU
    mindspore.set_auto_parallel_context(**context)
    try:
        with pytest.raises(ConfigurationError, match=message):
            check_training(2, network, optimizer)
    finally:
        mindspore.reset_auto_parallel_context()


def test_a_mindspore_without_that_context_has_nothing_to_refuse(linear, monkeypatch):
    monkeypatch.delattr(mindspore, "get_auto_parallel_context")
    network = linear()
    check_training(2, network, sgd(network))


def test_one_process_is_asked_nothing(linear):
    check_training(1, linear(), None)


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
