"""Convolutions on a CPU with AVX-512: a Trainer runs them at full speed, unless the user or an earlier run decided."""

import os
import subprocess
import sys

import pytest

from trainer.mindspore_internals import cpu_kernels

pytestmark = [pytest.mark.process, pytest.mark.skipif(not cpu_kernels.is_affected(), reason="needs a CPU with AVX-512")]

PROGRAM = """
import logging
import sys

import numpy as np
from mindspore import Tensor, nn

from trainer import Trainer

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
when, *names = sys.argv[1:]
if when == "late":
    nn.Dense(2, 2)(Tensor(np.ones((1, 2), np.float32))).asnumpy()
layers = {
    "pointwise": lambda: nn.Conv2d(2, 3, 1),
    "transposed": lambda: nn.Conv2dTranspose(2, 3, 3),
    "convolution": lambda: nn.Conv2d(2, 3, 3),
}
trainers = {}
for name in names:
    trainers[name] = Trainer(layers[name]())
    logging.info("made %s", name)
for name, trainer in trainers.items():
    print("predicts", name, flush=True)
    trainer.predict(np.ones((4, 2, 8, 8), np.float32))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function: makes Trainers, then predicts, in a process of its own; returns what was logged and oneDNN's
    names of the convolutions of each network.
    """
    path = tmp_path_factory.mktemp("onednn") / "program.py"
    path.write_text(PROGRAM)

    def run(when, *names, **variables):
        environment = {name: value for name, value in os.environ.items() if name not in cpu_kernels.VARIABLES}
        environment |= {"ONEDNN_VERBOSE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
        command = [sys.executable, path, when, *names]
        done = subprocess.run(command, env=environment, cwd=path.parent, capture_output=True, text=True, check=True)
        used = {}
        for part in done.stdout.split("predicts ")[1:]:
            name, *lines = part.splitlines()
            calls = [line.split(",") for line in lines if line.startswith("onednn_verbose")]
            used[name] = {call[6] for call in calls if len(call) > 6 and call[5] in ("convolution", "deconvolution")}
        logged = [line for line in done.stderr.splitlines() if "convolutions" in line or line.startswith("INFO made")]
        return logged, used

    return run


def test_convolutions_do_not_run_the_reference_code_and_the_limit_is_reported_once(run):
    logged, used = run("early", "pointwise", "transposed", "convolution")
    assert logged[0] == "INFO made pointwise", "which is left alone"
    assert logged[1].startswith("INFO")
    assert "AVX2" in logged[1]
    assert logged[2:] == ["INFO made transposed", "INFO made convolution"]
    for name in ("transposed", "convolution"):
        assert used[name]
        assert not any("ref" in implementation for implementation in used[name])


def test_the_users_own_setting_stands(run):
    logged, used = run("early", "convolution", ONEDNN_MAX_CPU_ISA="AVX512_CORE")
    assert logged == ["INFO made convolution"]
    assert any("ref" in name for name in used["convolution"]), "MindSpore's convolutions no longer need the limit"


def test_a_limit_that_comes_too_late_is_reported(run):
    logged, used = run("late", "convolution")
    assert logged[0].startswith("WARNING")
    assert "too late" in logged[0]
    assert any("ref" in name for name in used["convolution"])
