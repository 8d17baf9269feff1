"""A function is compiled as it is, wherever its source is found: each time anew, or remembered."""

import functools
import importlib.util
import inspect
import sys

import numpy as np
import pytest
from mindspore import Tensor, nn

from trainer.graph.graph_call import GraphCall
from trainer.mindspore_internals.compiler_modules import parser

NETWORK = """
from mindspore import nn

class Network(nn.Cell):
    def construct(self, x):
        return x {operation}
"""


@pytest.fixture
def module_of(monkeypatch):
    def module_of(path, operation):
        path.write_text(NETWORK.format(operation=operation))
        spec = importlib.util.spec_from_file_location(f"a_network_of_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return module_of


def result_of(cell):
    return GraphCall(cell)(Tensor(np.full(2, 3, np.float32))).asnumpy().tolist()


def test_functions_that_look_alike_in_two_files_are_distinguished(tmp_path, module_of):
    files = {"a.py": "+ 1", "b.py": "* 5"}
    cells = [module_of(tmp_path / name, operation).Network() for name, operation in files.items()]
    assert [result_of(cell) for cell in cells] == [[4, 4], [15, 15]]


def test_a_function_that_is_defined_again_in_a_file_is_read_again(tmp_path, module_of):
    path = tmp_path / "edited.py"
    assert result_of(module_of(path, "+ 1").Network()) == [4, 4]
    assert result_of(module_of(path, "+ 10").Network()) == [13, 13]


def test_an_error_names_the_line_of_its_own_file(tmp_path, module_of):
    for name in ("one.py", "other.py", "one.py"):
        with pytest.raises(Exception, match=rf"{name}:6\b"):
            result_of(module_of(tmp_path / name, "+ x.reshape(7)").Network())


def add_one(x):
    return x + 1


def add_two(x):
    return x + 2


def logged(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(x)

    return wrapper


class Wrapped(nn.Cell):
    def __init__(self, function):
        super().__init__()
        self.function = logged(function)

    def construct(self, x):
        return self.function(x)


def test_functions_of_one_decorator_are_distinguished():
    assert [result_of(Wrapped(function)) for function in (add_one, add_two)] == [[4, 4], [5, 5]]


@pytest.mark.parametrize("fails", [False, True])
def test_the_parser_is_then_as_it_was(fails):
    before = [dict(vars(each)) for each in (parser, parser.Parser)]
    if fails:
        with pytest.raises(Exception, match="shape"):
            GraphCall(nn.Dense(3, 1))(Tensor(np.ones((2, 2), np.float32)))
    else:
        result_of(Wrapped(add_one))
    assert parser.inspect is inspect
    assert [dict(vars(each)) for each in (parser, parser.Parser)] == before
