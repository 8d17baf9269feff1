"""Declared label and weight with every kind of loss: used as declared in every verb, or refused by name."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn
from sklearn import metrics as sklearn_metrics

from tests.trainer.role_cases import CASES, ITSELF, Case, start
from trainer import Trainer
from trainer.errors import ConfigurationError
from trainer.features import Features, Numeric
from trainer.streams import ReplayStream

RATE, ROWS = 0.1, 48
_random = np.random.default_rng(3)
DATA = {
    "a": _random.normal(size=ROWS).astype(np.float32),
    "b": _random.normal(size=ROWS).astype(np.float32),
    "w": np.round(_random.gamma(1.0, 4.0, ROWS) * (_random.random(ROWS) > 0.2), 1),  # some are 0, most not 0 or 1
    "g": np.repeat(np.arange(8), 6),
    "t": np.arange(ROWS, dtype=np.float64),
    "v": _random.normal(size=ROWS).astype(np.float32),
}
BINARY = {**DATA, "y": (DATA["a"] > 0).astype(np.float32)}  # the weight has nothing to do with a or y
CLASSES = {**DATA, "y": _random.integers(0, 3, ROWS).astype(np.int32)}
X = np.stack([DATA["a"], DATA["b"]], 1).astype(np.float64)


class Linear(nn.Cell):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Dense(2, outputs, weight_init=Tensor(start(outputs)), bias_init="zeros")

    def construct(self, numbers):
        return self.dense(numbers)


def make_trainer(case: Case, **options):
    roles = {"weight": "w", "group": "g", "event_time": "t"}
    dtype = "int32" if case.outputs == 3 else "float32"
    features = Features([Numeric("a"), Numeric("b")], label=case.label, label_dtype=dtype, **roles)
    net = (case.network or Linear)(case.outputs)
    options = {"metrics": set(case.metrics), **case.options, **options}
    return Trainer(net, case.make(), nn.SGD(net.trainable_params(), RATE), features=features, **options)


def rows_of(case: Case):
    return CLASSES if case.outputs == 3 else BINARY


def loss_and_gradient(case: Case, weight, bias, rows):
    """Return the weighted loss of some rows and its gradient in logits, in float64."""
    data, w = rows_of(case), DATA["w"][rows]
    z = X[rows] @ weight.T + bias
    if case.outputs == 2:  # two tasks
        parts = [case.value(z[:, k : k + 1], data[n][rows].astype(np.float64)) for k, n in enumerate(("y", "v"))]
        values, gradient = sum(p[0] for p in parts), np.concatenate([p[1] for p in parts], 1)
        counted = w
    else:
        values, gradient, counts = case.value(z, data["y"][rows].astype(np.float64))
        counted = w * counts
    total = counted.sum() if case.mean else 1.0
    return (values * w).sum() / total, gradient * w[:, None] / total, total


def trained(case: Case, batches):
    """Return weight, bias and loss of each update of gradient descent, in float64."""
    weight, bias, losses = start(case.outputs).astype(np.float64), np.zeros(case.outputs), []
    for rows in batches:
        loss, gradient, _ = loss_and_gradient(case, weight, bias, rows)
        losses.append(loss)
        weight, bias = weight - RATE * gradient.T @ X[rows], bias - RATE * gradient.sum(0)
    return weight, bias, losses


THIRDS = [np.arange(ROWS)[n : n + 16] for n in range(0, ROWS, 16)]
USED = [case for case in CASES if case.used]
REFUSED = [case for case in CASES if not case.used]


@pytest.mark.long(
    but=["BCEWithLogitsLoss, mean", "CrossEntropyLoss, class weights and ignored labels", "MultiTaskLoss"]
)
@pytest.mark.parametrize("case", USED, ids=[case.loss for case in USED])
def test_used_as_declared(case):
    """One pass trains the weights of NumPy; evaluate, validation and windows weigh loss and metrics."""
    trainer = make_trainer(case)
    data = rows_of(case)
    rate = 0.01 if not case.mean else RATE
    trainer.optimizer.learning_rate.set_data(Tensor(rate, mindspore.float32))
    weight, bias, losses = start(case.outputs).astype(np.float64), np.zeros(case.outputs), []
    for rows in THIRDS:
        loss, gradient, total = loss_and_gradient(case, weight, bias, rows)
        losses.append((loss, total))
        weight, bias = weight - rate * gradient.T @ X[rows], bias - rate * gradient.sum(0)
    trainer.fit(data, batch_size=16, shuffle=False, valid_dataset=data, callbacks=[])
    np.testing.assert_allclose(trainer.network.dense.weight.asnumpy(), weight, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(trainer.network.dense.bias.asnumpy(), bias, rtol=1e-4, atol=1e-5)
    by_weight = case.mean and case.result != ITSELF
    means, totals = np.transpose(losses)
    expected = np.average(means, weights=totals if by_weight else None)
    assert trainer.history.history["loss"][-1] == pytest.approx(expected, rel=1e-4)
    evaluated = trainer.evaluate(data, batch_size=16)
    parts = [loss_and_gradient(case, weight, bias, rows) for rows in THIRDS]
    of_all = np.average([p[0] for p in parts], weights=[p[2] for p in parts] if by_weight else None)
    assert evaluated["loss"] == pytest.approx(of_all, rel=1e-4)
    assert trainer.history.history["val_loss"][-1] == pytest.approx(evaluated["loss"], rel=1e-6)
    if case.metrics:
        check_metrics(case, evaluated, trainer.predict(data).astype(np.float64)[:, 0], data)
    if "predict" in case.verbs:
        inputs = {name: data[name] for name in ("a", "b")}
        np.testing.assert_allclose(
            np.squeeze(trainer.predict(inputs)), np.squeeze(X @ weight.T + bias), rtol=1e-3, atol=1e-5
        )
        check_windows(case)


def check_metrics(case: Case, found, z, data):
    y, w = data["y"].astype(np.float64), DATA["w"]
    p = 1 / (1 + np.exp(-z))
    known = {
        "auc": lambda: sklearn_metrics.roc_auc_score(y, z, sample_weight=w),
        "log_loss": lambda: sklearn_metrics.log_loss(y, p, sample_weight=w),
        "accuracy": lambda: sklearn_metrics.accuracy_score(y, z > 0, sample_weight=w),
        "rmse": lambda: sklearn_metrics.mean_squared_error(y, z, sample_weight=w) ** 0.5,
        "mae": lambda: sklearn_metrics.mean_absolute_error(y, z, sample_weight=w),
        "r2": lambda: sklearn_metrics.r2_score(y, z, sample_weight=w),
    }
    for name in case.metrics:
        assert found[name] == pytest.approx(known[name](), rel=1e-5), name


def check_windows(case: Case):
    """A window's loss and metrics are those of the rows before each update, weighted."""
    trainer = make_trainer(case)
    trainer.optimizer.learning_rate.set_data(Tensor(0.0, mindspore.float32))
    trainer.features.is_fitted = True
    data = rows_of(case)
    trainer.online_train(ReplayStream(data), batch_size=16, window=ROWS, callbacks=[])
    window = trainer.state.window
    weight, bias = start(case.outputs).astype(np.float64), np.zeros(case.outputs)
    parts = [loss_and_gradient(case, weight, bias, rows) for rows in THIRDS]
    by_weight = case.mean and case.result != ITSELF
    expected = np.average([p[0] for p in parts], weights=[p[2] for p in parts] if by_weight else None)
    assert window["window_loss"] == pytest.approx(expected, rel=1e-4)
    if case.metrics:
        names = {name: window[f"window_{name}"] for name in case.metrics}
        check_metrics(case, names, (X @ weight.T + bias)[:, 0], data)


@pytest.mark.parametrize("case", REFUSED, ids=[case.loss for case in REFUSED])
def test_refused_before_anything_is_compiled(case):
    with pytest.raises(ConfigurationError, match=case.result):
        make_trainer(case)
