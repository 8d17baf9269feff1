"""A program is run by its name only where MindSpore's own call has been seen to do just that."""

import gc

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from trainer.graph.graph_call import GraphCall
from trainer.mindspore_internals.compiler_modules import api


class Count(nn.Cell):
    def __init__(self):
        super().__init__()
        self.total = Parameter(Tensor(0.0, mindspore.float32), name="total")

    def construct(self, x):
        ops.assign_add(self.total, x.sum())
        return self.total * 1, x + 1


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of `compile_and_run`."""
    made = []
    whole = nn.Cell.compile_and_run
    monkeypatch.setattr(nn.Cell, "compile_and_run", lambda *args: made.append(1) or whole(*args))
    return made


def totals(cell, count):
    run, x = GraphCall(cell), Tensor(np.ones(3, np.float32))
    return [float(run(x)[0]) for _ in range(count)]


def test_the_first_call_compiles_and_later_ones_run_the_program(calls, caplog):
    assert totals(Count(), 6) == [3, 6, 9, 12, 15, 18]
    assert len(calls) == 1
    assert caplog.text == ""


class Several(nn.Cell):
    """Outputs of the kinds that a network with several tasks has."""

    def __init__(self, kind):
        super().__init__()
        self.layer = nn.Dense(3, 2)
        self.kind = kind

    def construct(self, x):
        both = self.layer(x)
        if self.kind == "dict":
            return {"a": both[:, 0], "b": both[:, 1] * 2}
        if self.kind == "nested":
            return both.sum(), (both[:, 0], {"b": both[:, 1] * float("nan")})
        return both[:, 0], both[:, 1]


@pytest.mark.parametrize("kind", ["tuple", "dict", "nested"])
def test_a_network_of_the_same_shapes_may_be_deleted_at_any_time(kind, calls, caplog):
    """MindSpore compiles the other one once more then, under another name."""
    x = Tensor(np.ones((4, 3), np.float32))
    runs = [GraphCall(Several(kind)) for _ in range(4)]
    first = [f"{run(x)}" for run in runs]
    while runs:
        del runs[0]
        gc.collect()
        first = first[1:]
        assert [f"{run(x)}" for run in runs] == first
    assert len(calls) == 4
    assert caplog.text == ""


def test_where_mindspore_does_more_than_run_the_program_it_is_left_to_do_so(calls, caplog, monkeypatch):
    executor = type(api._cell_graph_executor)
    plain = executor.run

    def doubled(self, obj, *args, phase):
        total, x = plain(self, obj, *args, phase=phase)
        return total * 2, x

    monkeypatch.setattr(executor, "run", doubled)
    assert totals(Count(), 5) == [6, 12, 18, 24, 30]
    assert totals(Count(), 3) == [6, 12, 18]
    assert len(calls) == 8
    assert caplog.text.count("a compiled program cannot be run by its name") == 1


def test_where_mindspore_runs_the_program_on_other_arguments_it_is_left_to_do_so(calls, caplog, monkeypatch):
    executor = type(api._cell_graph_executor)
    plain = executor.run
    copied = lambda self, obj, *args, phase: plain(self, obj, *(Tensor(each) for each in args), phase=phase)  # noqa: E731
    monkeypatch.setattr(executor, "run", copied)
    assert totals(Count(), 4) == [3, 6, 9, 12]
    assert len(calls) == 4
    assert "cannot be run by its name" in caplog.text


def test_the_user_can_ask_for_public_functions_alone(calls, monkeypatch, caplog):
    monkeypatch.setenv("TRAINER_PUBLIC_MINDSPORE", "1")
    assert totals(Count(), 4) == [3, 6, 9, 12]
    assert len(calls) == 4
    assert caplog.text == ""
