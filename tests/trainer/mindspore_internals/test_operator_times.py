"""MindSpore's profiler writes what `operator_times` relies on."""

import os
import time

import numpy as np
from mindspore import Tensor, nn

from trainer.mindspore_internals.operator_times import TIMES, OperatorProfile, OperatorTimes, _read


def test_every_run_of_an_operator_is_timed_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU())
    x = Tensor(np.ones((8, 4), np.float32))
    network.compile_and_run(x).asnumpy()
    profile = OperatorProfile.begin()
    assert OperatorProfile.begin() is None  # one at a time
    began = time.time()
    for _ in range(3):
        network.compile_and_run(x).asnumpy()
    ended = time.time()
    times = {operator.kind: operator for operator in profile.end()}
    assert {"MatMul", "BiasAdd", "ReLU"} <= set(times)
    for start, seconds in times["MatMul"].runs:
        assert began - 0.01 <= start <= start + seconds <= ended + 0.01
    assert len(times["MatMul"].runs) == 3
    assert times["MatMul"].layer == "0"
    assert not os.listdir(tmp_path)
    OperatorProfile.begin().end()  # and again


def test_kind_layer_and_direction_are_in_an_operators_name(tmp_path):
    path = (
        "Gradients/Default/step-TrainStep/forward-Forward/network-SequentialCell/0-Dense/Grad_BiasAdd/BiasAddGrad-op1"
    )
    operator = OperatorTimes(path, ())
    assert (operator.kind, operator.layer, operator.is_backward) == ("BiasAddGrad", "network.0", True)
    assert OperatorTimes("Default/Add-op3", ()).layer == "step"
    (tmp_path / TIMES).write_text(f"{path};HostCpuOps;1700000000000000000,2.5,0 x,1,0 \nsomething else\n\n")
    (read,) = _read(tmp_path / TIMES)
    assert read.runs == ((1.7e9, 0.0025),)
