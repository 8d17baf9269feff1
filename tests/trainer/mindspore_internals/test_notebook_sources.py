"""Networks written in a notebook: their source is where MindSpore looks for it when a compilation fails."""

import linecache
import os
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


NAMES = {
    "notebook": str(Path(tempfile.gettempdir()) / "ipykernel_of_a_test" / "1234.py"),
    "terminal": "<ipython-input-12-0123456789ab>",
}


@pytest.fixture(params=NAMES)
def network(request, monkeypatch):
    """A cell whose source is an input of a notebook or of IPython's terminal: known to linecache, in no file."""
    name = NAMES[request.param]
    linecache.cache[name] = (len(SOURCE), None, SOURCE.splitlines(True), name)
    module = types.ModuleType("notebook_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(SOURCE, name, "exec"), vars(module))
    yield module.Wrong()
    del linecache.cache[name]


def test_a_failed_compilation_names_the_line_and_says_nothing_of_paths(network, capfd):
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(GraphError, match=r"(1234|-0123456789ab)\.py:8: return self\.top\(x\) \+ ops\.ones"):
        trainer.fit((np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)), callbacks=[], batch_size=2)
    assert "realpath" not in capfd.readouterr().err
    folders = (Path(NAMES["notebook"]).parent, Path(tempfile.gettempdir()) / f"mindspore-trainer-{os.getpid()}")
    assert not any(folder.exists() for folder in folders)
