"""Whoever uses no tables and no streams does not wait for them to be imported."""

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import sys
import numpy as np
from mindspore import nn
from trainer import Trainer

network = nn.Dense(4, 1)
trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
trainer.fit((np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)), batch_size=4, callbacks=[])
tables = ("trainer.embedding.layers.embedding", "trainer.embedding.layers.network_tables", "trainer.data.table_feed")
print("imported:", *[name for name in (*tables, "trainer.data.streaming.shared_stream") if name in sys.modules])
"""


def test_fit_of_a_network_without_tables_imports_neither_tables_nor_streams(forks, tmp_path):
    process = forks.start("-c", PROGRAM, cwd=tmp_path)
    assert process.wait() == 0, process.errors.read_text()
    assert "imported:\n" in process.output.read_text()
