"""`Content`: what a snapshot is taken of and restored into, as far as this package uses it."""

# ruff: noqa: D102 - the classes that are named describe the methods

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mindspore import Parameter, nn

from callbacks import CallbackList

from ..state import State, Stateful

AVERAGES = "trainer.average."  # begins the names of averages of weights; they are a part of their own
NORMS = "trainer.norms."  # of parameters that hold norms, which are no state of a run


class Accumulation(Protocol):
    """Gradients gathered for an optimizer update to come (`trainer.graph.accumulation.OpenAccumulation`)."""

    @property
    def is_open(self) -> bool: ...
    @property
    def count(self) -> Parameter | None: ...
    @property
    def gradient_sums(self) -> Sequence[Parameter]: ...
    def parameters(self) -> Mapping[str, Parameter]: ...
    def clear(self, *, keep_count: bool = False) -> None: ...


class Chain(Protocol):
    """Which snapshot the next one of the tables builds on (`DeltaPolicy`)."""

    def base_of(self, path: Path) -> str | None: ...
    def written(self, path: Path) -> None: ...
    def broken(self) -> None: ...


class Tables(Protocol):
    """Sparse tables, whose states build on each other (`trainer.data.table_feed.TableFeed`)."""

    @property
    def delta_policy(self) -> Chain: ...
    @property
    def is_divided(self) -> bool: ...
    def state_dict(self, *, own_rows: bool = False) -> dict[str, Any]: ...
    def check_states(self, states: Sequence[Mapping[str, Any]]) -> None: ...
    def rewind(self, states: Sequence[Mapping[str, Any]]) -> None: ...


class Cursor(Protocol):
    """Where a training is in its data (`trainer.run.cursor.Cursor`)."""

    source: Any

    def shared_position(self) -> dict[str, Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Content:
    """What a snapshot is taken of and restored into.

    Attributes:
        network, optimizer, step: cells whose parameters are saved; the step is None before it is built.
        scaler: loss scaler whose parameters are saved, or None.
        accumulation: the gradients of an unfinished accumulation.
        state: its counters and metrics are saved.
        callbacks: those of the run under way, or of the last one.
        parts: name -> object with a state of its own.
        tables: the part whose states build on each other, or None.
        cursor: position in the data of the run under way, or None.
    """

    network: nn.Cell
    optimizer: nn.Cell | None
    step: nn.Cell | None
    scaler: Any
    accumulation: Accumulation
    state: State
    callbacks: CallbackList
    parts: Mapping[str, Stateful]
    tables: Tables | None
    cursor: Cursor | None
