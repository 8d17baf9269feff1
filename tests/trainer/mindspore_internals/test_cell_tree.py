"""A user's network may hold a value under the name of a method of `nn.Cell`."""

import ast

import numpy as np
import pytest
from mindspore import nn

from tests.sources import trees
from trainer import Trainer
from trainer.errors import ConfigurationError

METHODS = {"get_parameters", "trainable_params", "untrainable_params", "parameters_dict", "parameters_and_names"}
METHODS |= {"cells_and_names", "name_cells"}
X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


class Shadowed(nn.Cell):
    def __init__(self, *names):
        super().__init__()
        self.head = nn.Dense(3, 1)
        for name in names:
            setattr(self, name, [1])

    def construct(self, x):
        return self.head(x)


def test_a_network_with_values_under_the_names_of_methods_is_trained_and_applied():
    names = ("get_parameters", "trainable_params", "parameters_dict", "parameters_and_names")
    network = Shadowed(*names)
    before = network.head.weight.asnumpy().copy()
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.head.trainable_params(), 0.1))
    trainer.fit((X, X[:, :1]), 1, batch_size=4)
    assert (network.head.weight.asnumpy() != before).any()
    assert trainer.predict((X,)).shape == (8, 1)


@pytest.mark.parametrize("name", ["cells_and_names", "set_train"])
def test_a_name_that_mindspore_itself_calls_is_refused_at_construction(name):
    with pytest.raises(ConfigurationError, match=rf"Shadowed\.{name} is list.* rename the attribute"):
        Trainer(Shadowed(name))


def test_no_method_of_a_cell_is_called_on_the_instance(project_root):
    nodes = [(path, node) for path, tree in trees().items() for node in ast.walk(tree)]
    calls = [
        f"{path.relative_to(project_root)}:{node.lineno}"
        for path, node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
        if ast.unparse(node.func.value) != "nn.Cell"
    ]
    assert calls == [], "a user's cell may hold a value of that name: use trainer.mindspore_internals.cell_structure"
