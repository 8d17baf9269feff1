"""`Position`: how far training has come in the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import whole


@dataclass(frozen=True, slots=True)
class Position:
    """The location right after the last row trained on; part of every snapshot."""

    epoch: int = 0  # completed epochs
    batch: int = 0  # batches trained in the current epoch; for a stream, in total
    micro_batches: int = 0  # micro-batches in the accumulation that is still open
    state: Any = None  # JSON state of the source (a stream's offsets, an iterable's `state_dict`), or None
    dealt: tuple[tuple[str, ...], ...] | None = None  # the partitions of each rank, if the stream is divided

    def next(self, batches: int, micro_batches: int, state: Any, *, ends_epoch: bool) -> Position:
        """Return the position `batches` later; a `state` of None keeps the current one."""
        state = self.state if state is None else state
        if ends_epoch:
            return Position(self.epoch + 1, 0, micro_batches, state)
        return Position(self.epoch, self.batch + batches, micro_batches, state)

    def with_state(self, state: Any) -> Position:
        """Return the position with another state of the source."""
        return dataclasses.replace(self, state=state)

    def merge(self, states: Sequence[Mapping[str, Any]], join: Callable[[Sequence[Any]], Any]) -> Position:
        """Return the joint position, given the sources' states in rank order."""
        dealt = tuple(tuple(sorted(name for name in state if not name.startswith("@"))) for state in states)
        return dataclasses.replace(self, state=join(states), dealt=dealt)

    def part(self, rank: int) -> Position:
        """Return the part of a merged position that process `rank` reads."""
        assert self.dealt is not None
        return self.with_state({name: self.state[name] for name in self.dealt[rank]})

    def to_json(self) -> dict[str, Any]:
        """Return the position as plain values; `from_json` reads them."""
        optional = {"fill": self.micro_batches or None, "state": self.state, "dealt": self.dealt}
        return {"epoch": self.epoch, "batch": self.batch} | {k: v for k, v in optional.items() if v is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Position:
        """Return the position that `to_json` wrote.

        Raises:
            ConfigurationError: a count is not a whole number >= 0.
        """
        epoch, batch, fill = (whole(f"position {name}", value.get(name, 0), 0) for name in ("epoch", "batch", "fill"))
        dealt = value.get("dealt")
        return cls(epoch, batch, fill, value.get("state"), None if dealt is None else tuple(map(tuple, dealt)))
