"""Programs are compiled without a look at everything for garbage, and the collector is then as it was."""

import gc

import numpy as np
import pytest
from mindspore import Tensor, nn

from trainer.graph.graph_call import GraphCall


class Looking(nn.Cell):
    """Notes how many objects the collector leaves alone while it is compiled."""

    def __init__(self):
        super().__init__()
        self.spared = []

    def check_names(self):
        self.spared.append(gc.get_freeze_count())

    def construct(self, x):
        return x + 1


@pytest.fixture(params=[False, True], ids=["", "the program has frozen objects itself"])
def frozen(request):
    gc.unfreeze()  # what the tests themselves spare the collector
    if request.param:
        gc.freeze()
    yield request.param
    gc.collect()
    gc.freeze()


def test_compiling_spares_the_collector_what_was_there_before(frozen):
    cell = Looking()
    call = GraphCall(cell)
    assert call(Tensor(np.ones(2, np.float32))).asnumpy().tolist() == [2, 2]
    assert cell.spared[0] > 10_000, "what importing MindSpore leaves"
    assert (gc.get_freeze_count() > 0) is frozen


def test_the_collector_is_as_it_was_after_a_failure(frozen):
    with pytest.raises(Exception, match="shape"):
        GraphCall(nn.Dense(3, 1))(Tensor(np.ones((2, 2), np.float32)))
    assert (gc.get_freeze_count() > 0) is frozen
