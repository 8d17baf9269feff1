"""A program is run by its name only where MindSpore's own call has been seen to do just that."""

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from trainer.graph.graph_call import GraphCall

api = pytest.importorskip("mindspore.graph.api")


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


def test_the_first_call_compiles_the_second_looks_and_later_ones_run_the_program(calls, caplog):
    assert totals(Count(), 6) == [3, 6, 9, 12, 15, 18]
    assert len(calls) == 2
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


def test_where_the_program_has_another_name_mindspore_is_left_to_find_it(calls, caplog, monkeypatch):
    monkeypatch.setattr("trainer.mindspore_internals.execution.program_of", lambda cell: "elsewhere")
    assert totals(Count(), 4) == [3, 6, 9, 12]
    assert len(calls) == 4
    assert "cannot be run by its name" in caplog.text


def test_the_user_can_ask_for_public_functions_alone(calls, monkeypatch, caplog):
    monkeypatch.setenv("TRAINER_PUBLIC_MINDSPORE", "1")
    assert totals(Count(), 4) == [3, 6, 9, 12]
    assert len(calls) == 4
    assert caplog.text == ""
