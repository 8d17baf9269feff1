"""Row optimizers do to touched rows exactly what MindSpore's dense optimizers do to them."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, experimental, nn, ops

from trainer.embedding import RowAdagrad, RowAdam, RowFTRL, RowOptimizer, RowSGD
from trainer.embedding.layers import row_optimizers
from trainer.embedding.layers.host_rows import find_kernel
from trainer.embedding.layers.row_optimizers import row_optimizer_like
from trainer.errors import ConfigurationError

DIM, ROWS, STEPS, LR = 5, 12, 6, 0.05


class Apply(nn.Cell):
    def __init__(self, optimizer):
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer

    def construct(self, gradients):
        return self.optimizer((gradients,))


def dense_and_rows(make_dense, row_optimizer, touched_each_step):
    """Train one dense table and the packed rows of the same table; return both weights."""
    rng = np.random.default_rng(3)
    start = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    weight = Parameter(Tensor(start), name="weight")
    dense = Apply(make_dense([weight]))
    slots = np.tile(row_optimizer.first_slots(DIM), (ROWS, 1))
    table = np.concatenate((start, slots), axis=1)
    for step in range(1, STEPS + 1):
        touched = touched_each_step(rng)
        gradients = np.zeros((ROWS, DIM), np.float32)
        gradients[touched] = rng.standard_normal((len(touched), DIM))
        dense.compile_and_run(Tensor(gradients))
        args = (Tensor(table[touched]), Tensor(gradients[touched]), Tensor(LR, ms.float32), Tensor(step, ms.float32))
        table[touched] = row_optimizer.compile_and_run(*args).asnumpy()
    return weight.asnumpy(), table[:, :DIM]


def everywhere(rng):
    return np.arange(ROWS)


def some_rows(rng):
    return np.sort(rng.choice(ROWS, 4, replace=False))


# Dense Adam and FTRL move rows without a gradient too, so they agree where every step touches the row.
@pytest.mark.long(but=["adam", "ftrl"])
@pytest.mark.parametrize(
    ("make_dense", "row_optimizer", "touched"),
    [
        (lambda p: nn.SGD(p, LR), RowSGD(), some_rows),
        (lambda p: nn.Adagrad(p, accum=0.1, learning_rate=LR), RowAdagrad(accum=0.1), some_rows),
        (lambda p: nn.Adam(p, LR), RowAdam(), everywhere),
        (lambda p: nn.Adam(p, LR, beta1=0.8, beta2=0.95, eps=1e-5), RowAdam(None, 0.8, 0.95, 1e-5), everywhere),
        (lambda p: nn.FTRL(p, learning_rate=LR, l2=0.3), RowFTRL(l2=0.3), everywhere),
    ],
    ids=["sgd", "adagrad", "adam", "adam-options", "ftrl"],
)
def test_touched_rows_equal_the_dense_optimizer(make_dense, row_optimizer, touched):
    dense, rows = dense_and_rows(make_dense, row_optimizer, touched)
    np.testing.assert_allclose(rows, dense, rtol=2e-5, atol=2e-6)


OPTIONS = {
    "RowAdagrad": [{}, {"row_wise": True}],
    "RowAdam": [{}, {"row_wise": True}],
    "RowFTRL": [{"l1": 0.02, "l2": 0.3}, {"lr_power": -0.7}],
}
ALL = [
    (kind, options)
    for name, kind in vars(row_optimizers).items()
    if isinstance(kind, type) and issubclass(kind, RowOptimizer) and kind is not RowOptimizer
    for options in OPTIONS.get(name, [{}])
]


@pytest.mark.parametrize(("kind", "options"), ALL, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_kernel_does_what_the_graph_code_does(kind, options):
    optimizer = kind(**options)
    kernel, numbers = find_kernel(optimizer)
    rng = np.random.default_rng(5)
    weights, slots = rng.standard_normal((ROWS, DIM)), np.tile(optimizer.first_slots(DIM), (ROWS, 1))
    by_graph = np.concatenate((weights, slots), axis=1).astype(np.float32)
    in_place = by_graph.copy()
    bases, positions = np.array([in_place.ctypes.data]), np.arange(ROWS, dtype=np.int32)
    for step in range(1, STEPS + 1):
        gradients = rng.standard_normal((ROWS, DIM)).astype(np.float32)
        lr, step = Tensor(LR, ms.float32), Tensor(step, ms.float32)
        by_graph = optimizer.compile_and_run(Tensor(by_graph), Tensor(gradients), lr, step).asnumpy()
        own = np.array([optimizer.rate(lr, step).asnumpy(), *numbers], np.float32)
        width = in_place.shape[1]
        kernel.ready()(bases, np.arange(ROWS), positions, width, gradients, width, own)
    np.testing.assert_allclose(in_place, by_graph, rtol=2e-5, atol=3e-5)


def test_ftrl_shrinks_towards_zero_as_in_the_paper():
    # MindSpore's CPU kernel adds l1 to negative linear terms where the paper, and its own documentation, subtract.
    weight, gradient = np.array([[0.3, 0.3, 0.001]]), np.array([[1.0, -1.0, 0.001]])
    optimizer = RowFTRL(l1=0.02, l2=0.3)
    rows = np.concatenate((weight, optimizer.first_slots(3)[None]), axis=1).astype(np.float32)
    args = (Tensor(gradient, ms.float32), Tensor(LR, ms.float32), Tensor(1.0))
    out = optimizer.compile_and_run(Tensor(rows), *args).asnumpy()
    accum = 0.1 + gradient**2
    linear = gradient - (np.sqrt(accum) - np.sqrt(0.1)) / LR * weight
    expected = (np.sign(linear) * 0.02 - linear) / (np.sqrt(accum) / LR + 2 * 0.3) * (np.abs(linear) > 0.02)
    np.testing.assert_allclose(out[:, :3], expected, rtol=1e-5)
    assert out[0, 2] == 0


def test_row_wise_adagrad_keeps_the_mean_square_of_a_row():
    optimizer = RowAdagrad(accum=0.5, row_wise=True)
    assert optimizer.first_slots(DIM).shape == (1,)
    weight = np.ones((2, DIM), np.float32)
    gradient = np.array([[1, 2, 3, 4, 5], [0, 0, 0, 0, 0]], np.float32)
    rows = np.concatenate((weight, np.full((2, 1), 0.5, np.float32)), axis=1)
    out = optimizer.compile_and_run(Tensor(rows), Tensor(gradient), Tensor(LR, ms.float32), Tensor(1.0)).asnumpy()
    accum = 0.5 + (gradient**2).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(out[:, DIM:], accum, rtol=1e-6)
    np.testing.assert_allclose(out[:, :DIM], weight - LR * gradient / np.sqrt(accum), rtol=1e-5)


def test_row_wise_adam_keeps_one_second_moment_of_a_row():
    """Against its definition in NumPy, over several steps and in float64."""
    optimizer = RowAdam(beta1=0.8, beta2=0.9, eps=1e-3, row_wise=True)
    rows = np.concatenate((np.ones((2, DIM)), np.tile(optimizer.first_slots(DIM), (2, 1))), axis=1).astype(np.float32)
    assert rows.shape == (2, 2 * DIM + 1)
    weight, first, second = np.ones((2, DIM)), np.zeros((2, DIM)), np.zeros((2, 1))
    for step in range(1, STEPS + 1):
        gradient = np.random.default_rng(step).standard_normal((2, DIM)).astype(np.float32)
        args = (Tensor(gradient), Tensor(LR, ms.float32), Tensor(step, ms.float32))
        rows = optimizer.compile_and_run(Tensor(rows), *args).asnumpy()
        first = 0.8 * first + 0.2 * gradient
        second = 0.9 * second + 0.1 * (gradient**2).mean(1, keepdims=True)
        rate = LR * np.sqrt(1 - 0.9**step) / (1 - 0.8**step)
        weight = weight - rate * first / (np.sqrt(second) + 1e-3)
    np.testing.assert_allclose(rows, np.concatenate((weight, first, second), axis=1), rtol=1e-5, atol=1e-6)


def test_the_dense_optimizer_decides_the_default(caplog):
    parameters = [Parameter(ops.zeros((2,), ms.float32), name="p")]
    adam = row_optimizer_like(nn.Adam(parameters, beta1=0.7))
    assert isinstance(adam, RowAdam)
    assert adam.beta1 == pytest.approx(0.7)
    assert isinstance(row_optimizer_like(nn.Adagrad(parameters)), RowAdagrad)
    assert isinstance(row_optimizer_like(nn.Momentum(parameters, 0.1, 0.9)), RowSGD)
    assert row_optimizer_like(nn.FTRL(parameters, l1=0.25)).l1 == pytest.approx(0.25)
    assert isinstance(row_optimizer_like(nn.RMSProp(parameters)), RowAdagrad)
    assert "RMSProp" in caplog.text


def test_impossible_numbers_are_refused():
    with pytest.raises(ConfigurationError, match=r"beta1=\.\.\.\) takes a number in \[0, 1\)"):
        RowAdam(beta1=1.0)
    with pytest.raises(ConfigurationError, match=r"lr=\.\.\.\) takes a number >= 0"):
        RowSGD(lr=-0.1)
    for kind in (RowAdam, RowAdagrad):
        with pytest.raises(TypeError, match=r"row_wise=\.\.\.\).*takes True or False; received 'no'"):
            kind(row_wise="no")


@pytest.mark.parametrize("kind", [experimental.optim.Adam, experimental.optim.AdamW])
def test_rows_follow_the_numbers_of_an_experimental_optimizer(kind):
    like = row_optimizer_like(kind([Parameter(Tensor(np.zeros(2, np.float32)))], betas=(0.5, 0.75), eps=0.125))
    assert like.settings() == RowAdam(beta1=0.5, beta2=0.75, eps=0.125).settings()


@pytest.mark.parametrize(
    ("dense", "expected"),
    [
        (lambda p: nn.Adagrad(p, accum=0.5), RowAdagrad(accum=0.5)),
        (lambda p: nn.Adagrad(p, accum=0.0), RowAdagrad(accum=1e-12)),
        (lambda p: nn.FTRL(p, initial_accum=0.25), RowFTRL(accum=0.25)),
        (lambda p: experimental.optim.Adagrad(p, initial_accumulator_value=2.0), RowAdagrad(accum=2.0)),
    ],
    ids=["Adagrad", "Adagrad from 0", "FTRL", "experimental Adagrad"],
)
def test_rows_start_with_the_accumulators_of_the_dense_optimizer(dense, expected):
    like = row_optimizer_like(dense([Parameter(Tensor(np.zeros(2, np.float32)), name="p")]))
    assert like.settings() == expected.settings()
