"""Programs are compiled without a look at all objects for garbage, and MindSpore itself compiles as before."""

import gc

import numpy as np
import pytest
from mindspore import Tensor, nn

from trainer.graph.graph_call import GraphCall

X = Tensor(np.ones((2, 2), np.float32))


@pytest.fixture
def collected():
    """Generations of the garbage collections that are asked for, as a list that grows."""
    generations = []

    def note(phase, info):
        if phase == "start":
            generations.append(info["generation"])

    gc.disable()  # those that nothing asks for
    gc.callbacks.append(note)
    yield generations
    gc.callbacks.remove(note)
    gc.enable()


def test_compiling_collects_no_garbage(collected):
    assert GraphCall(nn.ReLU())(X).asnumpy().tolist() == [[1, 1], [1, 1]]
    assert collected == []


@pytest.mark.parametrize("fails", [False, True])
def test_mindspore_collects_garbage_again_afterwards(collected, fails):
    if fails:
        with pytest.raises(Exception, match="shape"):
            GraphCall(nn.Dense(3, 1))(X)
    else:
        GraphCall(nn.ReLU())(X)
    before = len(collected)
    nn.ReLU().compile_and_run(X)
    assert collected[before:] == [2], "MindSpore compiles without a collection by itself"
