"""A Trainer that was used and dropped leaves nothing of the package behind; see also benchmarks/trainers.py."""

from __future__ import annotations

import gc

import numpy as np
from mindspore import nn

from trainer import Trainer


def use_and_drop():
    network = nn.SequentialCell(nn.Dense(2, 1))
    rows = {"x": np.ones((8, 2), np.float32), "label": np.ones((8, 1), np.float32)}
    made = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    made.fit(rows, 1, callbacks=[], batch_size=4, sink_size=1)
    del network, made
    gc.collect()


def own_objects():
    """Return how many objects of the package's classes there are."""
    gc.collect()
    return sum(str(type(each).__module__).startswith(("trainer.", "callbacks.")) for each in gc.get_objects())


def test_a_dropped_trainer_leaves_no_object_of_the_package():
    use_and_drop()  # the program of the one before goes when the next one is compiled
    use_and_drop()
    before = own_objects()
    for _ in range(3):
        use_and_drop()
    assert own_objects() <= before
