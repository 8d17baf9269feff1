"""Finite data that the user has divided among the processes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from ...distributed.agreement import StopHooks
from ...distributed.group import Group
from ...errors import ConfigurationError
from ..as_columns import Columns
from ..lockstep import LockstepSource
from ..position import Position
from ..source import Item, Source
from ..waiting import DATA_WAIT

_RANKS = "@ranks"  # key of a position's state: the states of all processes, by rank


class DividedSource(LockstepSource):
    """This process's part of finite data; parts may differ in length.

    Step k takes batch k of every process that has one. An epoch ends with the last batch of any process.

    All processes create it together.

    Raises:
        ConfigurationError: other processes have not divided their data.
    """

    def __init__(self, rows_of: Source, group: Group, hooks: StopHooks) -> None:
        super().__init__(rows_of, group, hooks)
        self._meets = True
        parts = group.gather_json({"data: a part for each process": True, "data: size": rows_of.size})
        whole = [rank for rank, part in enumerate(parts) if "data: a part for each process" not in part]
        if whole:
            raise ConfigurationError(
                f"rank {group.rank} has rows of its own (sharded=True or num_shards), and ranks {whole} are given the "
                "whole dataset; divide it for all processes or for none"
            )
        sizes = [part["data: size"] for part in parts]
        self.size = None if None in sizes else max(sizes)

    @property
    def ahead(self) -> int:  # type: ignore[override]
        """Batches agreed on at once; 1 if the next epoch continues where one ends.

        What was read ahead of the end would be lost.
        """
        return 1 if self.continues_epochs else self._ahead

    @ahead.setter
    def ahead(self, value: int) -> None:
        self._ahead = value

    def describe(self) -> dict[str, Any]:
        """Return what all processes know; each has rows of its own."""
        return {"kind": "separate"}

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        steps = start
        for item in super().batches(epoch, start, state):
            steps += 1
            yield item
        if self.size is None and not self.continues_epochs:
            self.size = steps

    def of_all(self, position: Position) -> Position:
        states = self.group.gather_json(self._own(self.rows_of.resolve(position).state))
        return position.with_state(None if all(state is None for state in states) else {_RANKS: states})

    def commit(self, position: Position) -> None:
        """Acknowledge this process's rows before `position`, that of all processes."""
        super().commit(position.with_state(self._own(position.state)))

    def _own(self, state: Any) -> Any:
        """Return this process's state; None in a snapshot of another number of them."""
        if not isinstance(state, dict) or _RANKS not in state:
            return state
        states = state[_RANKS]
        return states[self.group.rank] if len(states) == self.group.size else None

    def _try_peek(self) -> tuple[Columns | None, bool]:
        self.group.wait_for_all()  # connects the processes before one of them is late
        with DATA_WAIT:
            columns = self.rows_of.peek()
        return columns, columns is None

    def _reads_inline(self) -> bool:
        return self.rows_of.thread_bound or self.continues_epochs

    def _open(self, epoch: int, start: int, state: Any) -> Generator[Item]:
        self._state = state = self._own(state)
        return self._items(epoch, start, state)

    def _items(self, epoch: int, start: int, state: Any) -> Generator[Item]:
        rows = self.rows_of
        if rows.size is not None and start >= rows.size:
            return  # other processes have more batches
        for item in rows.batches(epoch, start, state):
            if item is not None:
                if rows.reuses_buffers:
                    item.columns = tuple([column.copy() for column in item.columns])
                yield item
