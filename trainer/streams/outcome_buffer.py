"""What a join holds of the outcomes: those that impressions to come may meet.

Like the rows that wait, they are kept so that any moment of the join that a checkpoint may ask for can be written down.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from .pending import Outcome, pack, unpack


class OutcomeBuffer:
    """Outcomes by key, each with the round in which it arrived and the one in which it was let go.

    Those let go stay on record until `forget`, because the position of a checkpoint lies some rounds behind.
    """

    def __init__(self) -> None:
        self._by_key: dict[Any, list[Outcome]] = {}
        # By event time; the number keeps the order of arrival among equals.
        self._queue: list[tuple[float, int, Outcome]] = []
        self._log: list[Outcome] = []
        self._count = 0

    def add(self, outcome: Outcome) -> None:
        """Hold an outcome."""
        self._by_key.setdefault(outcome.key, []).append(outcome)
        self._log.append(outcome)
        self._count += 1
        heapq.heappush(self._queue, (outcome.time, self._count, outcome))

    def meet(self, key: Any, since: float, until: float) -> bool:
        """Note that an impression meets the outcomes of `key` from `since` to `until`; return whether there are any."""
        met = [entry for entry in self._by_key.get(key, ()) if since <= entry.time <= until]
        for entry in met:
            entry.met = True
        return bool(met)

    def let_go(self, before: float, left: int) -> int:
        """Let go, in round `left`, of outcomes with an event time below `before`; return how many met nothing."""
        unmatched = 0
        while self._queue and self._queue[0][0] < before:
            outcome = heapq.heappop(self._queue)[2]
            outcome.left = left
            unmatched += not outcome.met
            held = self._by_key[outcome.key]
            held.remove(outcome)
            if not held:
                del self._by_key[outcome.key]
        return unmatched

    def forget(self, before: int) -> None:
        """Drop from the record the outcomes let go before round `before`."""
        self._log = [o for o in self._log if o.left is None or o.left >= before]

    def pack(self, done: int) -> list[Any]:
        """Return, as JSON, the outcomes held at the end of round `done`; empty when there were none."""
        held = [o for o in self._log if o.arrived <= done and (o.left is None or o.left > done)]
        return [pack(np.array(values)) for values in zip(*[(o.key, o.time, o.met) for o in held], strict=True)]

    def restore(self, packed: list[Any], arrived: int) -> None:
        """Hold what `pack` returned, as if it had arrived in round `arrived`.

        Raises:
            ValueError: it is not what `pack` returned.
        """
        if packed:
            for key, time, met in zip(*(unpack(values).tolist() for values in packed), strict=True):
                self.add(Outcome(key, time, arrived, met))
