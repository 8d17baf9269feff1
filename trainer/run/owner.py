"""What outlives a call, as far as `run` uses it. `trainer.trainer.Trainer` satisfies these protocols.

`Model` is read by what makes feeds, programs and evaluations; `Owner` adds what belongs to the call of a verb.
"""

# ruff: noqa: D102 - `Trainer` describes its attributes

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mindspore import nn

from callbacks import CallbackList, History

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


class Model(Protocol):
    """A network with what trains and evaluates it."""

    network: nn.Cell
    loss_fn: Any
    optimizer: nn.Cell | None
    tasks: MultiTaskLoss | None
    metrics: dict[str, Any]
    prediction_activations: dict[str, Activation]
    eval_indexes: tuple[int, int, int] | None
    features: Features | None
    label_count: int
    accumulate: int
    seed: int
    compiled: bool
    scaler: Any
    precision: Precision
    step_options: StepOptions
    boost: Boost
    boost_parts: tuple[str, ...]
    builder: StepBuilder
    tables: TableFeed | None
    group: Group
    state: State
    sink_mode: str

    @property
    def eval_network(self) -> nn.Cell | None: ...
    @property
    def learning_rate(self) -> float | None: ...
    @property
    def loss_scale(self) -> float | None: ...
    def use_tables(self, tables: TableFeed) -> None: ...


class Owner(Model, Protocol):
    """A `Model` whose verb is called; hooks of callbacks are given it."""

    callbacks: CallbackList
    history: History | None
    run: Run | None
    run_dir: Path | None
    saver: Saver
    parts: dict[str, Any]

    @property
    def position(self) -> dict[str, Any] | None: ...
    def stop(self, reason: str = "", kind: str = "user") -> None: ...
