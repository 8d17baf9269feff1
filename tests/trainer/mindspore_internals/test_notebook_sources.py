"""Networks written in a notebook: their source is where MindSpore looks for it when a compilation fails."""

import linecache
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

from trainer import Trainer
from trainer.errors import GraphError

SOURCE = """
from mindspore import nn, ops
class Wrong(nn.Cell):
    def __init__(self):
        super().__init__()
        self.top = nn.Dense(3, 2)
    def construct(self, x):
        return self.top(x) + ops.ones((7, 5))
"""


@pytest.fixture
def network(monkeypatch):
    """A cell whose source is a notebook's input: known to linecache, in no file."""
    path = Path(tempfile.gettempdir()) / "ipykernel_of_a_test" / "1234.py"
    linecache.cache[str(path)] = (len(SOURCE), None, SOURCE.splitlines(True), str(path))
    module = types.ModuleType("notebook_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(SOURCE, str(path), "exec"), vars(module))
    yield module.Wrong(), path
    del linecache.cache[str(path)]


def test_a_failed_compilation_names_the_line_and_says_nothing_of_paths(network, capfd):
    cell, path = network
    trainer = Trainer(cell, nn.MSELoss(), nn.SGD(cell.trainable_params(), 0.1))
    with pytest.raises(GraphError, match=r"1234\.py:8: return self\.top\(x\) \+ ops\.ones"):
        trainer.fit((np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)), callbacks=[], batch_size=2)
    assert "realpath" not in capfd.readouterr().err
    assert not path.parent.exists()
