"""The cases of `test_roles`: losses and declared roles, and what becomes of them.

`scripts/reliability_tables.py` writes them into docs/reliability.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from trainer.graph.multi_task import MultiTaskLoss
from trainer.models import InBatchSoftmax

USED, ITSELF = "used", "taken by the loss"
TRIED_VERBS = ("fit", "validation", "evaluate", "predict", "online_train")


class PerRow(nn.Cell):
    """A loss of the user's: a value per row."""

    def construct(self, prediction, label):
        return ((prediction - label.reshape(prediction.shape)) ** 2).sum(axis=1)


def squares_of_rows(prediction, label):
    """A loss of the user's that is a function."""
    return ops.square(prediction[:, 0] - label)


class OneNumber(nn.Cell):
    """A loss of the user's that reduces its rows."""

    def construct(self, prediction, label):
        return ((prediction - label.reshape(prediction.shape)) ** 2).mean()


class TakesWeight(nn.Cell):
    """A loss of the user's that weighs its rows."""

    def construct(self, prediction, label, weight):
        squares = ((prediction - label.reshape(prediction.shape)) ** 2).sum(axis=1)
        return (squares * weight).sum() / weight.sum()


class ReturnsItsLoss(nn.Cell):
    """A network that takes label and weight by name and returns its loss."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.dense = nn.Dense(2, outputs, weight_init=Tensor(start(outputs)), bias_init="zeros")

    def construct(self, numbers, y, w):
        return (((self.dense(numbers)[:, 0] - y) ** 2) * w).sum() / w.sum()


def start(outputs: int) -> np.ndarray:
    """Return the first weights, float32 [outputs, 2]."""
    return np.linspace(-0.3, 0.4, 2 * outputs, dtype=np.float32).reshape(outputs, 2)


# NumPy: (logits [N, K], label [N]) -> value of each row, its gradient [N, K], and what a row counts besides its weight.


def _bce(z, y):
    p = 1 / (1 + np.exp(-z[:, 0]))
    return -(y * np.log(p) + (1 - y) * np.log(1 - p)), (p - y)[:, None], np.ones(len(y))


def _squares(z, y):
    return (z[:, 0] - y) ** 2, 2 * (z - y[:, None]), np.ones(len(y))


def _absolute(z, y):
    return np.abs(z[:, 0] - y), np.sign(z - y[:, None]), np.ones(len(y))


def _huber(z, y):
    e = z[:, 0] - y
    small = np.abs(e) < 0.5
    return (
        np.where(small, e**2 / 2, 0.5 * (np.abs(e) - 0.25)),
        np.where(small, e, 0.5 * np.sign(e))[:, None],
        np.ones(len(y)),
    )


def _classes(z, y):
    p = np.exp(z - z.max(1, keepdims=True))
    p, y = p / p.sum(1, keepdims=True), y.astype(int)
    weight = np.array([0.5, 2.0, 1.0])[y] * (y != 2)  # class 2 is ignored
    rows = np.arange(len(y))
    gradient = p.copy()
    gradient[rows, y] -= 1
    return -np.log(p[rows, y]) * weight, gradient * weight[:, None], weight


def _classes_loss() -> nn.Cell:
    return nn.CrossEntropyLoss(Tensor(np.array([0.5, 2.0, 1.0], np.float32)), ignore_index=2)


@dataclass(frozen=True)
class Case:
    """A loss with a declared label and weight."""

    loss: str  # in the table
    make: Callable[[], Any]
    result: str  # USED, ITSELF, or a pattern of the ConfigurationError
    value: Callable[..., Any] = _squares
    mean: bool = True
    outputs: int = 1
    label: str | tuple[str, ...] = "y"
    metrics: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)  # of the Trainer
    network: Any = None

    @property
    def verbs(self) -> tuple[str, ...]:
        """The verbs that the test tries; a refusal comes before any of them."""
        return TRIED_VERBS if self.network is None else TRIED_VERBS[:3]

    @property
    def used(self) -> bool:
        """Whether the roles are used as declared."""
        return self.result in (USED, ITSELF)


_SCALAR = "returns one number for a batch, so the weights of its rows cannot be applied; let it return"
CASES = (
    Case("BCEWithLogitsLoss, mean", nn.BCEWithLogitsLoss, USED, _bce, metrics=("auc", "log_loss", "accuracy")),
    Case("BCEWithLogitsLoss, none", lambda: nn.BCEWithLogitsLoss("none"), USED, _bce),
    Case("BCEWithLogitsLoss, sum", lambda: nn.BCEWithLogitsLoss("sum"), USED, _bce, mean=False),
    Case("MSELoss, mean", nn.MSELoss, USED, metrics=("rmse", "mae", "r2")),
    Case("L1Loss, none", lambda: nn.L1Loss("none"), USED, _absolute),
    Case("HuberLoss, mean", lambda: nn.HuberLoss(delta=0.5), USED, _huber),
    Case("CrossEntropyLoss, class weights and ignored labels", _classes_loss, USED, _classes, outputs=3),
    Case("a value per row, of your own", PerRow, USED),
    Case("a function of your own, a value per row", lambda: squares_of_rows, USED),
    Case("of your own, takes the weight", TakesWeight, ITSELF),
    Case("of your own, one number", OneNumber, _SCALAR),
    Case("RMSELoss", nn.RMSELoss, _SCALAR),
    Case("InBatchSoftmax", InBatchSoftmax, _SCALAR),
    Case(
        "MultiTaskLoss",
        lambda: MultiTaskLoss({"y": nn.MSELoss(), "v": nn.MSELoss("none")}),
        USED,
        outputs=2,
        label=("y", "v"),
    ),
    Case(
        "MultiTaskLoss, a task of one number",
        lambda: MultiTaskLoss({"y": nn.MSELoss(), "v": OneNumber()}),
        f"task 'v': OneNumber {_SCALAR}",
        label=("y", "v"),
    ),
    Case(
        "MultiTaskLoss, a sum",
        lambda: MultiTaskLoss({"y": nn.MSELoss(), "v": nn.MSELoss("sum")}),
        "the loss of task 'v' is a sum",
        label=("y", "v"),
    ),
    Case(
        "MultiTaskLoss with masks, accumulated",
        lambda: MultiTaskLoss({"y": nn.MSELoss(), "v": nn.MSELoss("none")}, masks={"v": "y"}),
        "the tasks of MultiTaskLoss divide by different numbers",
        label=("y", "v"),
        options={"gradient_accumulation_steps": 2},
    ),
    Case("none: the network names label and weight", lambda: None, ITSELF, network=ReturnsItsLoss),
    Case("none: the network names neither", lambda: None, "returns its loss, so its construct has to take 'y'"),
    Case(
        "two labels for BCEWithLogitsLoss",
        nn.BCEWithLogitsLoss,
        "declares 2 .'y', 'v'.; BCEWithLogitsLoss takes 1",
        label=("y", "v"),
    ),
    Case(
        "one label for two tasks",
        lambda: MultiTaskLoss({"y": nn.MSELoss(), "v": nn.MSELoss()}),
        "'v' is no declared label",
    ),
    Case("a metric without weights", nn.MSELoss, "counts every row alike", metrics=("mse",)),
)
