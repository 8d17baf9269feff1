"""The cases of `test_roles`: losses and declared roles, and what becomes of them.

`scripts/reliability_tables.py` writes them into docs/reliability.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from trainer import Trainer
from trainer.features import Features, Numeric
from trainer.graph.multi_task import MultiTaskLoss
from trainer.models import InBatchSoftmax

USED, ITSELF = "used", "taken by the loss"
VERBS = ("fit", "validation", "evaluate", "predict", "online_train")
PARTS = ("fit, accumulated at O2", "fit, 2 processes")
FILES = ("trainer check", "trainer fit")  # of an experiment in YAML

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
DATA["w"][-ROWS // 4 :] = 0  # a micro-batch, and a part of a process, without any weight
BINARY = {**DATA, "y": (DATA["a"] > 0).astype(np.float32)}  # the weight has nothing to do with a or y
CLASSES = {**DATA, "y": _random.integers(0, 3, ROWS).astype(np.int32)}


class PerRow(nn.Cell):
    """A loss of the user's: a value per row."""

    def construct(self, prediction, label):
        return ((prediction - label.reshape(prediction.shape)) ** 2).sum(axis=1)


def squares_of_rows(prediction, label):
    """A loss of the user's that is a function."""
    return ops.square(prediction[:, 0] - label)


class CountsLabels(PerRow):
    """A loss of the user's that says what divides it."""

    def denominator(self, label):
        return ops.sum(label)


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


class Linear(nn.Cell):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Dense(2, outputs, weight_init=Tensor(start(outputs)), bias_init="zeros")

    def construct(self, numbers):
        return self.dense(numbers)


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
    parts: bool = False  # tried with micro-batches, at O2 and on two processes
    yaml: str = ""  # the loss of an experiment
    runs: bool = False  # whether that experiment is run
    from_zero: bool = False  # whether training begins with weights of 0

    @property
    def roles(self) -> str:
        """The declared roles, in the table."""
        return "label, weight" if isinstance(self.label, str) else "two labels, weight"

    @property
    def verbs(self) -> tuple[str, ...]:
        """What is tried; a refusal comes before any verb of a Trainer."""
        files = FILES[: 1 + (self.runs or not self.used)] if self.yaml else ()
        if not self.used:
            return (*VERBS, *PARTS, *files)
        return (*(VERBS if self.network is None else VERBS[:3]), *(PARTS if self.parts else ()), *files)

    @property
    def used(self) -> bool:
        """Whether the roles are used as declared."""
        return self.result in (USED, ITSELF)


def make_trainer(case: Case, **options: Any) -> Trainer:
    """Return a Trainer of the case, whose features declare all roles."""
    dtype = "int32" if case.outputs == 3 else "float32"
    roles: dict[str, Any] = {"label": case.label, "label_dtype": dtype, "weight": "w", "group": "g", "event_time": "t"}
    features = Features([Numeric("a"), Numeric("b")], keep=["g"], **roles)
    net = (case.network or Linear)(case.outputs)
    rate = RATE if case.mean else RATE / 10
    options = {"metrics": set(case.metrics), **case.options, **options}
    return Trainer(net, case.make(), nn.SGD(net.trainable_params(), rate), features=features, **options)


def rows_of(case: Case) -> dict[str, np.ndarray]:
    """Return the raw rows of a case."""
    return CLASSES if case.outputs == 3 else BINARY


_SCALAR = "returns one number for a batch, so the weights of its rows cannot be applied; let it return"
_TASKS = (
    "{{class_path: trainer.MultiTaskLoss, init_args: {{losses: {{y: {{class_path: mindspore.nn.MSELoss}}, "
    "v: {{class_path: mindspore.nn.MSELoss, init_args: {{reduction: {}}}}}}}}}}}"
)
CASES = (
    Case(
        "BCEWithLogitsLoss, mean",
        nn.BCEWithLogitsLoss,
        USED,
        _bce,
        metrics=("auc", "log_loss", "accuracy"),
        yaml="mindspore.nn.BCEWithLogitsLoss",
        parts=True,
        runs=True,
    ),
    Case(
        "BCEWithLogitsLoss, none",
        lambda: nn.BCEWithLogitsLoss("none"),
        USED,
        _bce,
        yaml="{class_path: mindspore.nn.BCEWithLogitsLoss, init_args: {reduction: none}}",
    ),
    Case(
        "BCEWithLogitsLoss, sum",
        lambda: nn.BCEWithLogitsLoss("sum"),
        USED,
        _bce,
        mean=False,
        yaml="{class_path: mindspore.nn.BCEWithLogitsLoss, init_args: {reduction: sum}}",
        parts=True,
    ),
    Case("MSELoss, mean", nn.MSELoss, USED, metrics=("rmse", "mae", "r2"), yaml="mindspore.nn.MSELoss"),
    Case("L1Loss, none", lambda: nn.L1Loss("none"), USED, _absolute),
    Case("HuberLoss, mean", lambda: nn.HuberLoss(delta=0.5), USED, _huber),
    Case("CrossEntropyLoss, class weights and ignored labels", _classes_loss, USED, _classes, outputs=3, parts=True),
    Case("a value per row, of your own", PerRow, USED, parts=True),
    Case("a function of your own, a value per row", lambda: squares_of_rows, USED),
    Case("of your own, takes the weight", TakesWeight, ITSELF),
    Case("of your own, one number", OneNumber, _SCALAR),
    Case("RMSELoss", nn.RMSELoss, _SCALAR, yaml="mindspore.nn.RMSELoss"),
    Case("InBatchSoftmax", InBatchSoftmax, _SCALAR, yaml="trainer.models.InBatchSoftmax"),
    Case(
        "MultiTaskLoss",
        lambda: MultiTaskLoss({"y": nn.MSELoss(), "v": nn.MSELoss("none")}),
        USED,
        outputs=2,
        label=("y", "v"),
        parts=True,
        yaml=_TASKS.format("none"),
        runs=True,
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
        yaml=_TASKS.format("sum"),
    ),
    Case(
        "MultiTaskLoss with masks, accumulated",
        lambda: MultiTaskLoss({"y": nn.MSELoss(), "v": nn.MSELoss("none")}, masks={"v": "y"}),
        "the tasks of MultiTaskLoss divide by different numbers",
        label=("y", "v"),
        options={"gradient_accumulation_steps": 2},
    ),
    Case(
        "of your own, with a denominator of its labels",
        CountsLabels,
        "CountsLabels.denominator knows the labels of a batch and not the weights of its rows",
    ),
    Case("none: the network names label and weight", lambda: None, ITSELF, network=ReturnsItsLoss),
    Case("none: the network names neither", lambda: None, "returns its loss, so its construct has to take 'y'"),
    Case(
        "two labels for BCEWithLogitsLoss",
        nn.BCEWithLogitsLoss,
        "declares 2 .'y', 'v'., but BCEWithLogitsLoss takes 1",
        label=("y", "v"),
        yaml="mindspore.nn.BCEWithLogitsLoss",
    ),
    Case(
        "one label for two tasks",
        lambda: MultiTaskLoss({"y": nn.MSELoss(), "v": nn.MSELoss()}),
        "'v' is no declared label",
        yaml=_TASKS.format("mean"),
    ),
    Case(
        "a metric without weights", nn.MSELoss, "counts every row alike", metrics=("mse",), yaml="mindspore.nn.MSELoss"
    ),
)

# Other roles with the first loss, in the table: roles, what becomes of them, verbs. Each has a test of its own.
OTHER_ROLES = (
    ("label, weight, group (metrics by it)", USED, ("validation", "evaluate", "online_train")),
    ("label, weight, kept columns", USED, ("predict",)),
    ("none", "refused", ("fit", "evaluate", "online_train", *FILES)),
)
