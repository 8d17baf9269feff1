"""A process started by a launcher knows it, and never trains alone by mistake."""

import pytest

from trainer import Trainer
from trainer.distributed.launched import process_count
from trainer.errors import ConfigurationError


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        ({"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "4"}, 4),
        ({"MS_WORKER_NUM": "4"}, 1),
        ({"RANK_SIZE": "8"}, 8),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, 2),
        ({"RANK_SIZE": "1"}, 1),
    ],
)
def test_the_number_of_processes_is_read_from_the_launcher(environment, count):
    assert process_count(environment) == count


def test_processes_that_cannot_meet_are_refused(monkeypatch, linear):
    from mindspore import nn

    monkeypatch.setenv("MS_ROLE", "MS_WORKER")
    monkeypatch.setenv("MS_WORKER_NUM", "2")
    network = linear()
    with pytest.raises(ConfigurationError, match="one of 2 started by a launcher, and they cannot join"):
        Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
