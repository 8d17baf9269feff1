"""Define `Content`, the objects that a snapshot saves and restores."""

# ruff: noqa: D102 - the classes named in the docstrings document the methods

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mindspore import Parameter, nn

from callbacks import CallbackList

from ..state import State, Stateful

AVERAGES = "trainer.average."  # prefix of weight averages, which are a separate part


class Accumulation(Protocol):
    """Accumulated gradients (`trainer.graph.accumulation.OpenAccumulation`)."""

    @property
    def is_open(self) -> bool: ...
    @property
    def count(self) -> Parameter | None: ...
    @property
    def gradient_sums(self) -> Sequence[Parameter]: ...
    def parameters(self) -> Mapping[str, Parameter]: ...
    def clear(self, *, keep_count: bool = False) -> None: ...


class Chain(Protocol):
    """Choice of the base snapshot of the next table delta (`DeltaPolicy`)."""

    def base_of(self, path: Path) -> str | None: ...
    def written(self, path: Path) -> None: ...
    def broken(self) -> None: ...


class Tables(Protocol):
    """Sparse tables, saved as deltas (`trainer.data.table_feed.TableFeed`)."""

    @property
    def delta_policy(self) -> Chain: ...
    @property
    def is_divided(self) -> bool: ...
    def state_dict(self, *, own_rows: bool = False) -> dict[str, Any]: ...
    def check_states(self, states: Sequence[Mapping[str, Any]]) -> None: ...
    def rewind(self, states: Sequence[Mapping[str, Any]]) -> None: ...


class Cursor(Protocol):
    """Position of a run in its data (`trainer.run.cursor.Cursor`)."""

    source: Any

    def shared_position(self) -> dict[str, Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Content:
    """The objects that a snapshot saves and restores."""

    network: nn.Cell  # its parameters are saved, as are those of optimizer and step
    optimizer: nn.Cell | None
    step: nn.Cell | None  # None before it is built
    scaler: Any  # loss scaler whose parameters are saved, or None
    accumulation: Accumulation  # gradients of an unfinished accumulation
    state: State  # holder of the saved counters and metrics
    callbacks: CallbackList  # of the current or the last run
    parts: Mapping[str, Stateful]  # name -> object with a state of its own
    tables: Tables | None  # the part that is saved as deltas, or None
    cursor: Cursor | None  # position of the current run in its data, or None


class Owner(Protocol):
    """Object whose snapshots a `Saver` takes (`trainer.run.trainer_base.TrainerBase`)."""

    def snapshot_content(self) -> Content: ...
    def report_snapshot(self, path: Path) -> None: ...
    def commit(self, position: Mapping[str, Any] | None) -> None: ...
    def load_tables(self, states: list[dict[str, Any]]) -> None: ...
