"""What a user sees of a first run, at MindSpore's own level of logging."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

SCRIPT = """
import mindspore
import numpy as np
from mindspore import nn
from mindspore.train import LossMonitor

# the context of static-graph parallelism, whose end MindSpore has announced
for name in ("get_auto_parallel_context", "set_auto_parallel_context", "reset_auto_parallel_context"):
    delattr(mindspore, name)

from trainer import Trainer
from callbacks import SkipNonFinite

network = nn.Dense(3, 1)
adam = nn.Adam(network.trainable_params(), 0.01)
data = np.ones((32, 3), np.float32), np.ones((32, 1), np.float32)
trainer = Trainer(network, nn.MSELoss(), adam, metrics=["mae"])
trainer.fit(data, 2, batch_size=4, callbacks=[SkipNonFinite(), LossMonitor()])
trainer.evaluate(data)
trainer.predict(data[0])
assert "steps" in trainer.sink_mode, trainer.sink_mode
assert trainer.optimizer.global_step.asnumpy() == trainer.state.progress.global_step == 16, "no update is eliminated"
"""

# Lines of MindSpore 2.7 and 2.8 in each process; GLOG_v=3, set before the start, hides them.
ALWAYS = ("Kernel callback function Tft", "`MS_ENABLE_TFT`")


def test_nothing_of_mindspore_is_on_the_terminal(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GLOG")}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=os.getcwd(), capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    assert [line for line in ended.stderr.splitlines() if not any(text in line for text in ALWAYS)] == []
