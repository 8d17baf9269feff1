"""Define `Content`, the objects that a snapshot saves and restores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindspore import nn

from callbacks import CallbackList

from ..state import State, Stateful

AVERAGES = "trainer.average."  # prefix of weight averages, which are a separate part

# Packages that import this one create these objects, so their types cannot be imported here.
Accumulation = Any  # `trainer.graph.accumulation.OpenAccumulation`: accumulated gradients
Tables = Any  # `trainer.data.table_feed.TableFeed`: sparse tables, saved as deltas
Cursor = Any  # `trainer.run.cursor.Cursor`: position of a run in its data
Owner = Any  # `trainer.run.trainer_base.TrainerBase`: the trainer that a `Saver` saves and restores


@dataclass(frozen=True, slots=True)
class Content:
    """The objects that a snapshot saves and restores."""

    network: nn.Cell  # the parameters of network, optimizer and step are saved
    loss_fn: Any  # its parameters are among those of optimizer and step
    optimizer: nn.Cell | None
    step: nn.Cell | None  # None before it is built
    scaler: Any  # loss scaler whose parameters are saved, or None
    accumulation: Accumulation  # gradients of an unfinished accumulation
    state: State  # counters and metrics of the run
    callbacks: CallbackList  # callbacks of the current or the last run
    parts: Mapping[str, Stateful]  # name -> object with its own state
    tables: Tables | None  # the part that is saved as deltas, or None
    cursor: Cursor | None  # position of the current run in its data, or None
