"""Convolutions on a CPU with AVX-512: a Trainer runs them at full speed, unless the user or an earlier run decided."""

import os
import subprocess
import sys

import pytest

from trainer.mindspore_internals import onednn

pytestmark = pytest.mark.skipif(not onednn.is_affected(), reason="needs a CPU with AVX-512")

PROGRAM = """
import logging
import sys

import numpy as np
from mindspore import Tensor, nn

from trainer import Trainer

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
layer, when = sys.argv[1:]
if when == "late":
    nn.Dense(2, 2)(Tensor(np.ones((1, 2), np.float32))).asnumpy()
layers = {
    "convolution": lambda: nn.Conv2d(2, 3, 3),
    "pointwise": lambda: nn.Conv2d(2, 3, 1),
    "transposed": lambda: nn.Conv2dTranspose(2, 3, 3),
}
for _ in range(2):
    network = layers[layer]()
    trainer = Trainer(network)
trainer.predict(np.ones((4, 2, 8, 8), np.float32))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function: runs a network in a process of its own, returns (log, oneDNN's names of its convolutions)."""
    path = tmp_path_factory.mktemp("onednn") / "program.py"
    path.write_text(PROGRAM)

    def run(layer="convolution", when="early", **variables):
        environment = {name: value for name, value in os.environ.items() if name not in onednn.VARIABLES}
        environment |= {"ONEDNN_VERBOSE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
        command = [sys.executable, path, layer, when]
        done = subprocess.run(command, env=environment, cwd=path.parent, capture_output=True, text=True, check=True)
        kinds = ("convolution", "deconvolution")
        calls = [line.split(",") for line in done.stdout.splitlines() if line.startswith("onednn_verbose")]
        used = {call[6] for call in calls if len(call) > 6 and call[5] in kinds}
        told = [line for line in done.stderr.splitlines() if "convolutions" in line]
        return told, used

    return run


@pytest.mark.parametrize("layer", ["convolution", "transposed"])
def test_convolutions_do_not_run_the_reference_code_and_the_limit_is_told_once(run, layer):
    told, used = run(layer)
    assert len(told) == 1
    assert told[0].startswith("INFO")
    assert "AVX2" in told[0]
    assert used
    assert not any("ref" in name for name in used)


def test_a_network_of_pointwise_convolutions_is_left_alone(run):
    assert run("pointwise")[0] == []


def test_the_users_own_setting_stands(run):
    told, used = run(ONEDNN_MAX_CPU_ISA="AVX512_CORE")
    assert told == []
    assert any("ref" in name for name in used), "MindSpore's convolutions no longer need the limit"


def test_it_is_told_when_it_is_too_late(run):
    told, used = run(when="late")
    assert told[0].startswith("WARNING")
    assert "too late" in told[0]
    assert any("ref" in name for name in used)
