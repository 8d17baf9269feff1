"""Protocols of the Trainer's attributes that `run` uses.

Network    what is trained and on which columns             column order and checks
Settings   what has to be alike on all processes            checks of a job
Model      a network with its programs and tables           feeds
Hooked     whose hooks are called                           loop
Evaluated  a model with what scores it                      evaluation and prediction
Owner      all of these, and what belongs to a call         the verbs that train
"""

# ruff: noqa: D102 - `Trainer` describes its attributes

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mindspore import nn

from callbacks import CallbackList, History

from ..checkpoint.content import Content
from ..checkpoint.saver import Saver
from ..distributed.group import Group
from ..graph.boost import Boost
from ..graph.builder import StepBuilder
from ..graph.multi_task import MultiTaskLoss
from ..graph.precision import Precision
from ..graph.program import StepOptions
from ..metrics.predictions import Activation
from ..state import State

if TYPE_CHECKING:
    from ..data.table_feed import TableFeed
    from ..features.features import Features
    from .run import Run


class Network(Protocol):
    """A network with its loss, its optimizer and the columns it takes."""

    network: nn.Cell
    loss_fn: Any
    optimizer: nn.Cell | None
    tasks: MultiTaskLoss | None
    metrics: dict[str, Any]
    features: Features | None
    label_count: int

    @property
    def eval_network(self) -> nn.Cell | None: ...


class Settings(Protocol):
    """What all processes that train together must have alike."""

    group: Group
    network: nn.Cell
    loss_fn: Any
    optimizer: nn.Cell | None
    seed: int
    scaler: Any
    precision: Precision
    step_options: StepOptions
    boost_parts: tuple[str, ...]

    @property
    def learning_rate(self) -> float | None: ...
    @property
    def loss_scale(self) -> float | None: ...


class Model(Network, Protocol):
    """A network with its programs and sparse tables, which feeds are made for."""

    group: Group
    state: State
    seed: int
    accumulate: int
    compiled: bool
    boost: Boost
    builder: StepBuilder
    tables: TableFeed | None
    sink_mode: str

    def use_tables(self, tables: TableFeed) -> None: ...


class Hooked(Protocol):
    """Whose callbacks are called; their hooks are given it."""

    callbacks: CallbackList
    state: State
    group: Group
    builder: StepBuilder


class Evaluated(Model, Hooked, Protocol):
    """A model with what scores its predictions."""

    prediction_activations: dict[str, Activation]
    eval_indexes: tuple[int, int, int] | None


class Owner(Evaluated, Settings, Protocol):
    """A model whose verb is called."""

    history: History | None
    run: Run | None
    run_dir: Path | None
    saver: Saver
    parts: dict[str, Any]

    @property
    def position(self) -> dict[str, Any] | None: ...
    def stop(self, reason: str = "", kind: str = "user") -> None: ...
    def snapshot_content(self) -> Content: ...
