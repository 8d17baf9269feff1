"""Row optimizers: every update rule as a CPU kernel and as graph code.

`tests/trainer/embedding/test_row_optimizers.py` compares the two forms of every class. Import this module only for a
network with tables: unlike `row_optimizer`, it imports Numba.
"""

from __future__ import annotations

import logging

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from ...checks import boolean, number
from ...mindspore_internals.decorated_functions import constructor_arguments
from ...native.compiled import inlined
from ..tables.kernels import RowKernel, update_rows
from .row_optimizer import RowOptimizer

__all__ = ["RowAdagrad", "RowAdam", "RowFTRL", "RowSGD"]

_logger = logging.getLogger(__name__)
_MIN_ACCUM = 1e-12


@inlined
def _sgd(row, gradient, dim, hyperparameters):
    rate = hyperparameters[0]
    for k in range(dim):
        row[k] = row[k] - rate * gradient[k]


@RowKernel
def _update_sgd(block):
    return update_rows(_sgd, block)


class RowSGD(RowOptimizer):
    """Gradient descent without momentum: ``w -= lr * g``. It has no slots."""

    def first_slots(self, dim: int) -> np.ndarray:
        """Return no slots."""
        return np.zeros(0, np.float32)

    def kernel(self):
        """Return the compiled rule and its hyperparameters; see `RowOptimizer.kernel`."""
        return _update_sgd, ()

    def construct(self, rows, gradients, lr, step):
        """Return the updated rows; see `RowOptimizer.construct`."""
        return rows - lr * gradients


@inlined
def _adagrad(row, gradient, dim, hyperparameters):
    rate, one = hyperparameters[0], np.float32(1)
    for k in range(dim):
        accumulated = row[dim + k] + gradient[k] * gradient[k]
        row[dim + k] = accumulated
        row[k] = row[k] - rate * gradient[k] * (one / np.sqrt(accumulated))


@RowKernel
def _update_adagrad(block):
    return update_rows(_adagrad, block)


@inlined
def _adagrad_row_wise(row, gradient, dim, hyperparameters):
    rate, squares = hyperparameters[0], np.float32(0)
    for k in range(dim):
        squares += gradient[k] * gradient[k]
    accumulated = row[dim] + squares / np.float32(dim)
    row[dim] = accumulated
    root = np.float32(1) / np.sqrt(accumulated)
    for k in range(dim):
        row[k] = row[k] - rate * gradient[k] * root


@RowKernel
def _update_adagrad_row_wise(block):
    return update_rows(_adagrad_row_wise, block)


class RowAdagrad(RowOptimizer):
    """Adagrad, as in `nn.Adagrad`: ``a += g*g; w -= lr * g / sqrt(a)``.

    Source: J. Duchi, E. Hazan, Y. Singer, JMLR 2011. The row-wise form accumulates the mean of g*g over a row, which
    takes 4 bytes per row instead of 4 * dim. Source: D. Mudigere et al., ISCA 2022, section 4.1.4.

    Args:
        lr: see `RowOptimizer`.
        accum: initial value of the accumulator, > 0.
        row_wise: keep one accumulator per row instead of one per weight.
    """

    hyperparameters = ("lr", "accum", "row_wise")

    def __init__(self, lr: float | None = None, accum: float = 0.1, row_wise: bool = False) -> None:
        super().__init__(lr)
        self.accum = number("RowAdagrad(accum=...)", accum, minimum=_MIN_ACCUM)
        self.row_wise = boolean("RowAdagrad(row_wise=...)", row_wise)

    def first_slots(self, dim: int) -> np.ndarray:
        """Return the accumulators, [dim], or [1] if row-wise."""
        return np.full(1 if self.row_wise else dim, self.accum, np.float32)

    def kernel(self):
        """Return the compiled rule and its hyperparameters; see `RowOptimizer.kernel`."""
        return (_update_adagrad_row_wise if self.row_wise else _update_adagrad), ()

    def construct(self, rows, gradients, lr, step):
        """Return the updated rows; see `RowOptimizer.construct`."""
        dim = gradients.shape[1]
        squares = ops.square(gradients)
        if self.row_wise:
            squares = ops.mean(squares, 1, True)
        accum = rows[:, dim:] + squares
        weight = rows[:, :dim] - lr * gradients * ops.rsqrt(accum)
        return ops.concat((weight, accum), 1)


@inlined
def _adam(row, gradient, dim, hyperparameters):
    rate, eps = hyperparameters[0], hyperparameters[3]
    one_minus_beta1, one_minus_beta2 = hyperparameters[1], hyperparameters[2]
    for k in range(dim):
        first = row[dim + k] + one_minus_beta1 * (gradient[k] - row[dim + k])
        second = row[2 * dim + k] + one_minus_beta2 * (gradient[k] * gradient[k] - row[2 * dim + k])
        row[dim + k] = first
        row[2 * dim + k] = second
        row[k] = row[k] - rate * first / (np.sqrt(second) + eps)


@RowKernel
def _update_adam(block):
    return update_rows(_adam, block)


@inlined
def _adam_row_wise(row, gradient, dim, hyperparameters):
    rate, eps = hyperparameters[0], hyperparameters[3]
    one_minus_beta1, one_minus_beta2 = hyperparameters[1], hyperparameters[2]
    squares = np.float32(0)
    for k in range(dim):
        squares += gradient[k] * gradient[k]
    second = row[2 * dim] + one_minus_beta2 * (squares / np.float32(dim) - row[2 * dim])
    row[2 * dim] = second
    root = np.sqrt(second) + eps
    for k in range(dim):
        first = row[dim + k] + one_minus_beta1 * (gradient[k] - row[dim + k])
        row[dim + k] = first
        row[k] = row[k] - rate * first / root


@RowKernel
def _update_adam_row_wise(block):
    return update_rows(_adam_row_wise, block)


class RowAdam(RowOptimizer):
    """Lazy Adam: `nn.Adam`, applied only to rows with a gradient.

    The bias correction uses the number of all updates of the model, not that of the row. Source: D. Kingma, J. Ba, ICLR
    2015, in the more efficient form at the end of section 2, as in `nn.Adam`. The row-wise form keeps one second moment
    per row, that of the mean of g*g, like FBGEMM's `PARTIAL_ROWWISE_ADAM`. Its slots take 4 * (dim + 1) bytes per row
    instead of 8 * dim.

    Args:
        lr: see `RowOptimizer`.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        row_wise: keep one second moment per row instead of one per weight.
    """

    hyperparameters = ("lr", "beta1", "beta2", "eps", "row_wise")

    def __init__(
        self,
        lr: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        row_wise: bool = False,
    ) -> None:
        super().__init__(lr)
        self.beta1 = number("RowAdam(beta1=...)", beta1, minimum=0, below=1)
        self.beta2 = number("RowAdam(beta2=...)", beta2, minimum=0, below=1)
        self.eps = number("RowAdam(eps=...)", eps, minimum=0)
        self.row_wise = boolean("RowAdam(row_wise=...)", row_wise)

    def first_slots(self, dim: int) -> np.ndarray:
        """Return both moments, [2 * dim], or [dim + 1] if row-wise."""
        return np.zeros(dim + 1 if self.row_wise else 2 * dim, np.float32)

    def rate(self, lr, step):
        """Return the learning rate with the bias corrections of both moments; graph code."""
        one = Tensor(1.0, mstype.float32)
        return lr * ops.sqrt(one - ops.pow(self.beta2, step)) / (one - ops.pow(self.beta1, step))

    def kernel(self):
        """Return the compiled rule and its hyperparameters; see `RowOptimizer.kernel`."""
        return _update_adam_row_wise if self.row_wise else _update_adam, (1.0 - self.beta1, 1.0 - self.beta2, self.eps)

    def construct(self, rows, gradients, lr, step):
        """Return the updated rows; see `RowOptimizer.construct`."""
        # One split is cheaper than three slices.
        weight, first, second = ops.split(rows, gradients.shape[1], 1)
        squares = ops.square(gradients)
        if self.row_wise:
            squares = ops.mean(squares, 1, True)
        first = first + (1.0 - self.beta1) * (gradients - first)
        second = second + (1.0 - self.beta2) * (squares - second)
        weight = weight - self.rate(lr, step) * first / (ops.sqrt(second) + self.eps)
        return ops.concat((weight, first, second), 1)


@inlined
def _ftrl(row, gradient, dim, hyperparameters):
    rate, power, l1, l2_twice = hyperparameters[0], hyperparameters[1], hyperparameters[2], hyperparameters[3]
    for k in range(dim):
        old = row[dim + k]
        accumulated = old + gradient[k] * gradient[k]
        if power == np.float32(0.5):
            new_power, old_power = np.sqrt(accumulated), np.sqrt(old)
        else:
            new_power, old_power = accumulated**power, old**power
        linear = row[2 * dim + k] + gradient[k] - (new_power - old_power) / rate * row[k]
        row[dim + k] = accumulated
        row[2 * dim + k] = linear
        if linear > l1:
            row[k] = (l1 - linear) / (new_power / rate + l2_twice)
        elif linear < -l1:
            row[k] = (-l1 - linear) / (new_power / rate + l2_twice)
        else:
            row[k] = np.float32(0)


@RowKernel
def _update_ftrl(block):
    return update_rows(_ftrl, block)


class RowFTRL(RowOptimizer):
    """FTRL-Proximal, as in `nn.FTRL`; a weight depends on its two slots only.

    Source: H. B. McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013, algorithm 1.

    Args:
        lr: see `RowOptimizer`.
        accum: initial value of the sum of squared gradients, > 0.
        lr_power: power of that sum in the learning rate, <= 0.
        l1: strength of the L1 regularization.
        l2: strength of the L2 regularization.
    """

    hyperparameters = ("lr", "accum", "lr_power", "l1", "l2")

    def __init__(
        self, lr: float | None = None, accum: float = 0.1, lr_power: float = -0.5, l1: float = 0.0, l2: float = 0.0
    ) -> None:
        super().__init__(lr)
        self.accum = number("RowFTRL(accum=...)", accum, minimum=_MIN_ACCUM)
        self.lr_power = number("RowFTRL(lr_power=...)", lr_power, maximum=0)
        self.l1, self.l2 = number("RowFTRL(l1=...)", l1, minimum=0), number("RowFTRL(l2=...)", l2, minimum=0)

    def first_slots(self, dim: int) -> np.ndarray:
        """Return accumulators and linear terms, [2 * dim]."""
        return np.concatenate((np.full(dim, self.accum), np.zeros(dim))).astype(np.float32)

    def kernel(self):
        """Return the compiled rule and its hyperparameters; see `RowOptimizer.kernel`."""
        return _update_ftrl, (-self.lr_power, self.l1, 2.0 * self.l2)

    def construct(self, rows, gradients, lr, step):
        """Return the updated rows; see `RowOptimizer.construct`."""
        weight, old, linear = ops.split(rows, gradients.shape[1], 1)
        accum = old + ops.square(gradients)
        new_power = ops.pow(accum, -self.lr_power)
        linear = linear + gradients - (new_power - ops.pow(old, -self.lr_power)) / lr * weight
        shrunk = ops.sign(linear) * self.l1 - linear
        weight = ops.select(
            ops.abs(linear) > self.l1, shrunk / (new_power / lr + 2.0 * self.l2), ops.zeros_like(linear)
        )
        return ops.concat((weight, accum, linear), 1)


def _hyperparameter(optimizer: nn.Cell, name: str, default: float) -> float:
    value = getattr(optimizer, name, default)
    if groups := getattr(optimizer, "param_groups", None):  # of `mindspore.experimental.optim`
        first = groups[0]
        betas = first.get("betas", (default, default))
        value = {"beta1": betas[0], "beta2": betas[1]}.get(name, first.get(name, value))
    if isinstance(value, Tensor):
        value = float(value.asnumpy().ravel()[0])
    return float(value) if isinstance(value, int | float) else default


def _first_accumulator(optimizer: nn.Cell) -> float:
    arguments = constructor_arguments(optimizer)
    first = arguments.get("accum", arguments.get("initial_accum", 0.1))
    return max(_hyperparameter(optimizer, "initial_accumulator_value", first), _MIN_ACCUM)


def row_optimizer_like(dense: nn.Cell | None) -> RowOptimizer:
    """Return the row optimizer that corresponds to a dense optimizer.

    Adam and its variants give `RowAdam`, Adagrad `RowAdagrad`, FTRL `RowFTRL`, SGD and Momentum `RowSGD`; anything
    else gives `RowAdagrad` with a warning. The result keeps Adam's decays, the first accumulators of Adagrad and FTRL,
    and FTRL's powers, but no weight decay, which would change every row in every step.
    """
    chosen = getattr(dense, "row_optimizer", None)
    if isinstance(chosen, RowOptimizer):  # passed to the Trainer directly, for a network without dense parameters
        return chosen
    name = type(dense).__name__ if dense is not None else "none"
    lowercase = name.lower()
    if "adam" in lowercase or "lamb" in lowercase:
        beta1, beta2 = _hyperparameter(dense, "beta1", 0.9), _hyperparameter(dense, "beta2", 0.999)
        return RowAdam(beta1=beta1, beta2=beta2, eps=_hyperparameter(dense, "eps", 1e-8))
    if "adagrad" in lowercase:
        return RowAdagrad(accum=_first_accumulator(dense))
    if "ftrl" in lowercase:
        power, accum = _hyperparameter(dense, "lr_power", -0.5), _first_accumulator(dense)
        l1, l2 = _hyperparameter(dense, "l1", 0.0), _hyperparameter(dense, "l2", 0.0)
        return RowFTRL(accum=accum, lr_power=power, l1=l1, l2=l2)
    if lowercase in ("sgd", "momentum"):
        return RowSGD()
    _logger.warning(
        "embedding tables are updated by RowAdagrad, because no row optimizer corresponds to the dense optimizer %s; "
        "Embedding(..., optimizer=RowAdam()) chooses another",
        name,
    )
    return RowAdagrad()
