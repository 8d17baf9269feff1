"""Gradients written by hand are the slopes of the values, which `test_interactions` compares with NumPy."""

import numpy as np
import pytest
from mindspore import ParameterTuple, Tensor, nn, ops

from tests.trainer.models.test_interactions import MASK, draw, perturbed
from trainer.features import Categorical, Features
from trainer.models import InBatchSoftmax, TwoTower
from trainer.models.activations import Dice
from trainer.models.attention import Attention
from trainer.models.din import ActivationUnit
from trainer.models.layers import LayerNorm


class Total(nn.Cell):
    """The sum of a cell's outputs, each times a factor."""

    def __init__(self, cell):
        super().__init__(auto_prefix=False)
        self.cell = cell

    def construct(self, factors, *inputs):
        return (factors * self.cell(*inputs)).sum()


class Gradients(nn.Cell):
    """The total, and its gradients with respect to inputs and parameters."""

    def __init__(self, cell):
        super().__init__(auto_prefix=False)
        self.total = Total(cell)
        self.parameters = ParameterTuple(cell.trainable_params())
        self.derive = ops.GradOperation(get_all=True, get_by_list=True)

    def construct(self, factors, *inputs):
        return self.total(factors, *inputs), self.derive(self.total, self.parameters)(factors, *inputs)


def sides():
    net = TwoTower(Features([Categorical("a"), Categorical("b"), Categorical("c")], label="a"), ["a"], dim=2)
    return net.sides


class Beside(nn.Cell):
    """Both outputs of a cell, side by side."""

    def __init__(self, cell):
        super().__init__(auto_prefix=False)
        self.cell = cell

    def construct(self, x):
        first, second = self.cell(x)
        return ops.concat((2 * first, second), 1)


# Data that need no gradient, as floats: MindSpore cannot add up gradients of booleans.
COUNTED, ALL = np.array([[1, 1, 0, 1, 1]], np.float32), MASK.astype(np.float32)
FIRST = ALL[:2]
CASES = {
    "attention": lambda: (Attention(2), (draw(2, 3, 4), draw(2, 3, 4), draw(2, 3, 4))),
    "scaled": lambda: (Attention(1, 0.5), (draw(2, 3, 4), draw(2, 3, 4), draw(2, 3, 4))),
    "masked": lambda: (Attention(2, 0.7, True), (draw(2, 3, 4), draw(2, 3, 4), draw(2, 3, 4), FIRST)),
    "heads": lambda: (Attention(4, 0.7, True), (draw(2, 3, 8), draw(2, 3, 8), draw(2, 3, 8), FIRST)),
    "causal": lambda: (Attention(2, causal=True), (draw(2, 3, 4), draw(2, 3, 4), draw(2, 3, 4))),
    "norm": lambda: (perturbed(LayerNorm(5)), (3 + 2 * draw(2, 4, 5),)),
    "dice": lambda: (with_alpha(Dice(3)), (2 + draw(5, 3), COUNTED)),
    "interest": lambda: (perturbed(ActivationUnit(2, [4], "dice")), (draw(3, 2), draw(3, 3, 2), ALL)),
    "items": lambda: (InBatchSoftmax(0.5), (draw(4, 6), np.array([7, 3, 7, 5]))),
    "sides": lambda: (Beside(sides()), (draw(3, 3, 2),)),
}


def with_alpha(cell):
    cell.alpha.set_data(Tensor(draw(*cell.alpha.shape)))
    return cell


@pytest.mark.long(but=["attention"])
@pytest.mark.parametrize("case", CASES)
def test_a_gradient_is_the_slope_of_the_value(case):
    cell, inputs = CASES[case]()
    program = Gradients(cell)
    program.set_train(True)
    factors = draw(*cell(*map(Tensor, inputs)).shape)

    def evaluate(*arrays):
        return program.compile_and_run(*(Tensor(array) for array in (factors, *arrays)))

    _, (of_inputs, of_parameters) = evaluate(*inputs)
    of_inputs = [gradient.asnumpy().copy() for gradient in of_inputs[1:]]
    of_parameters = [gradient.asnumpy().copy() for gradient in of_parameters]
    step = 1e-2
    for index, array in enumerate(inputs):
        if array.dtype != np.float32 or any(array is data for data in (COUNTED, ALL, FIRST)):
            continue
        direction = draw(*array.shape)
        up, down = ([*inputs[:index], array + sign * step * direction, *inputs[index + 1 :]] for sign in (1, -1))
        slope = (float(evaluate(*up)[0].asnumpy()) - float(evaluate(*down)[0].asnumpy())) / (2 * step)
        np.testing.assert_allclose((of_inputs[index] * direction).sum(), slope, rtol=0.01, atol=0.01)
    for parameter, gradient in zip(cell.trainable_params(), of_parameters, strict=True):
        value, direction, totals = parameter.asnumpy().copy(), draw(*parameter.shape), []
        for sign in (1, -1):
            parameter.set_data(Tensor(value + sign * step * direction))
            totals.append(float(evaluate(*inputs)[0].asnumpy()))
        parameter.set_data(Tensor(value))
        np.testing.assert_allclose(
            (gradient * direction).sum(), (totals[0] - totals[1]) / (2 * step), rtol=0.01, atol=0.01
        )
