"""A compiled cell called directly: the same results, and compiled anew only when it has to be."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from trainer import Callback, Trainer
from trainer.errors import GraphError
from trainer.graph.graph_call import GraphCall
from trainer.mindspore_internals.messages import main_message


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
        product, total = run(tensor, signature=rows)
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


class Wrong(nn.Cell):
    """Multiplies two matrices that do not fit."""

    def construct(self, x):
        return ops.matmul(x, x)


def test_the_users_line_is_named_and_no_stack_is_shown():
    with pytest.raises(GraphError) as raised:
        Trainer(Wrong()).predict(np.ones((4, 8), np.float32))
    message = str(raised.value)
    assert "(column_0: float32[4, 8]): For 'MatMul" in message
    assert f"[{__file__}:" in message
    assert "return ops.matmul(x, x)]" in message
    assert "C++" not in message


class NoSuchMethod(nn.Cell):
    """Fails while it is being compiled, of which MindSpore leaves a report in a file."""

    def construct(self, x):
        return x.no_such_method()


def test_neither_a_run_nor_one_that_fails_leaves_a_folder(tmp_path, monkeypatch):
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    seen = []

    class Look(Callback):
        def on_train_step_end(self, trainer):
            seen.append(list(temporary.iterdir()))

    network = nn.Dense(8, 1)
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    trainer.fit((np.ones((8, 8), np.float32), np.ones((8, 1), np.float32)), batch_size=4, callbacks=[Look()])
    assert seen
    assert not any(seen), "a run that is killed here leaves a folder"
    with pytest.raises(GraphError, match="no_such_method"):
        Trainer(NoSuchMethod()).predict(np.ones((4, 8), np.float32))
    assert list(here.iterdir()) == list(temporary.iterdir()) == []


class Applied(nn.Cell):
    """Applies a function that it was given."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def construct(self, *columns):
        return self.function(*columns)


in_a_line = Applied(lambda x: x * 2)
# fmt: off
in_a_line_that_is_no_expression = Applied(
    lambda x: x * 2)
# fmt: on


@pytest.mark.parametrize("network", [in_a_line, in_a_line_that_is_no_expression])
def test_a_lambda_inside_a_call_is_named_as_what_cannot_be_compiled(network):
    with pytest.raises(GraphError, match=r"cannot compile a lambda .* inside a call .* use a method or a Cell"):
        Trainer(network).predict(np.ones((4, 8), np.float32))


def test_a_lambda_for_a_loss_is_named_as_what_cannot_be_compiled(linear, batches):
    network = linear()
    loss = Applied(lambda prediction, label: ops.square(prediction - label).mean())
    trainer = Trainer(network, loss, nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(
        GraphError, match=r"use a method or a Cell in its place \[.*return self.function\(\*columns\)\]"
    ):
        trainer.fit(batches(32, 2), callbacks=[], sink_size=1)


double = lambda x: x * 2  # noqa: E731


def test_a_lambda_that_has_a_line_of_its_own_works():
    x = np.ones((4, 8), np.float32)
    np.testing.assert_array_equal(Trainer(Applied(double)).predict(x), 2 * x)


def test_the_shapes_are_those_of_one_batch(linear, batches):
    network = linear()
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    narrow = [(x[:, :7], y) for x, y in batches(32, 4)]
    with pytest.raises(GraphError, match=r"column_0: float32\[32, 7\], column_1: float32\[32, 1\]"):
        trainer.fit(narrow, callbacks=[], sink_size=2)


def test_a_message_that_begins_with_a_heading_is_not_lost():
    rule = "-" * 52
    message = (
        f"\n{rule}\n- Kernel select failed:\n{rule}\nUnsupported op [X] on CPU\nnode: y\n\n{rule}\n- C++ Call Stack:\n"
    )
    assert main_message(message) == "Unsupported op [X] on CPU\nnode: y"
    assert main_message(f"plain\n\n{rule}\n- C++ Call Stack:\n{rule}\nfile.cc") == "plain"
