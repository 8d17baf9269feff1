"""A compiled cell called directly: the same results, and compiled anew only when it has to be."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from trainer.graph.graph_call import GraphCall


class Scaled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor([2.0, 3.0]), name="weight")
        self.inner = nn.Dropout(p=0.5)

    def construct(self, x):
        ops.assign_add(self.weight, ops.ones_like(self.weight))
        return (self.inner(x) if self.training else x) * self.weight, x.sum()


@pytest.fixture(scope="module")
def cell():
    return Scaled().set_train(False)


def test_later_calls_give_what_compile_and_run_gives_and_follow_the_parameters(cell):
    run = GraphCall(cell)
    x = Tensor(np.ones((4, 2), np.float32))
    for step in range(1, 4):
        product, total = run(x)
        assert type(product) is type(x)
        np.testing.assert_array_equal(product.asnumpy()[0], [2.0 + step, 3.0 + step])
        assert float(total) == 8.0
    ops.assign(cell.weight, Tensor([0.0, 0.0]))
    np.testing.assert_array_equal(run(x)[0].asnumpy()[0], [1.0, 1.0])


def test_new_shapes_dtypes_and_modes_are_compiled(cell):
    run = GraphCall(cell)
    ops.assign(cell.weight, Tensor([0.0, 0.0]))
    assert run(Tensor(np.ones((4, 2), np.float32)))[0].shape == (4, 2)
    assert run(Tensor(np.ones((6, 2), np.float32)))[0].shape == (6, 2)
    assert run(Tensor(np.ones((4, 2), np.float32)))[0].shape == (4, 2)
    cell.set_train(True)
    try:
        dropped = run(Tensor(np.ones((64, 2), np.float32)))[0].asnumpy()
        again = run(Tensor(np.ones((64, 2), np.float32)))[0].asnumpy()
    finally:
        cell.set_train(False)
    assert (dropped == 0).any()
    assert (again == 0).any()
    assert not (run(Tensor(np.ones((64, 2), np.float32)))[0].asnumpy() == 0).any()


def test_a_caller_may_say_which_arguments_are_alike(cell):
    run = GraphCall(cell)
    small, large = (Tensor(np.ones((rows, 2), np.float32)) for rows in (4, 6))
    for tensor, rows in ((small, 4), (large, 6), (small, 4), (large, 6)):
        product, total = run(tensor, like=rows)
        assert product.shape == (rows, 2)
        assert float(total) == 2 * rows


def test_a_later_call_costs_a_fraction_of_the_python_calls(cell):
    x = Tensor(np.ones((4, 2), np.float32))
    run = GraphCall(cell)
    for _ in range(2):
        run(x)

    def python_calls(function):
        count = 0

        def profile(frame, event, argument):
            nonlocal count
            count += event == "call"

        sys.setprofile(profile)
        try:
            function(x)
        finally:
            sys.setprofile(None)
        return count

    assert python_calls(run) * 3 < python_calls(cell.compile_and_run)
