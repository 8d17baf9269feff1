"""Merges ordered partitions into one order that depends only on their contents."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from time import monotonic
from typing import Any


class RoundRobinMerger:
    """Buffers the messages of numbered partitions and returns them in turns.

    A turn of a partition ends where its offset crosses a multiple of `quota`. The partition with the fewest completed
    turns is next; ties go to the lowest number. Completed turns are computed from the next and the first offset of the
    partition, so a position determines whose turn it is, even within a turn, and gaps in the offsets are harmless.

    Args:
        starts: partition -> offset to read next.
        bases: partition -> its first offset.
        quota: offsets in a turn.
        timeout: seconds to wait for an empty partition; then it is skipped until it has caught up with the others.
            None: wait forever.
        in_turns: False: return all messages buffered.
    """

    def __init__(
        self,
        starts: Mapping[int, int],
        bases: Mapping[int, int],
        quota: int,
        timeout: float | None,
        in_turns: bool = True,
    ) -> None:
        self.next = dict(starts)
        self.bases = dict(bases)
        self.quota, self.timeout, self.in_turns = quota, timeout, in_turns
        self._buffers: dict[int, deque[Any]] = {number: deque() for number in starts}
        self._passed: set[int] = set()
        self._waits: dict[int, float] = {}

    def add(self, partition: int, message: Any) -> None:
        """Buffer a message; ``offset()`` must increase within the partition."""
        self._buffers[partition].append(message)

    def held(self, partition: int) -> int:
        """Return the number of buffered messages of a partition."""
        return len(self._buffers[partition])

    def fetched(self, partition: int) -> int:
        """Return the offset after the last buffered or taken message."""
        buffer = self._buffers[partition]
        return buffer[-1].offset() + 1 if buffer else self.next[partition]

    @property
    def ready(self) -> bool:
        """Whether `take` returns messages."""
        if not self.in_turns:
            return any(self._buffers.values())
        chosen = self._choose()
        return chosen is not None and bool(self._buffers[chosen])

    def take(self) -> list[Any]:
        """Return the next messages of the partition whose turn it is; none if empty."""
        if not self.in_turns:
            return self._take_all()
        chosen = self._choose()
        if chosen is None:
            return []
        buffer = self._buffers[chosen]
        if not buffer:
            self._wait_for(chosen)
            return []
        self._waits.pop(chosen, None)
        turn = buffer[0].offset() // self.quota
        taken = []
        while buffer and buffer[0].offset() // self.quota == turn:
            taken.append(buffer.popleft())
        self.next[chosen] = taken[-1].offset() + 1
        return taken

    def _take_all(self) -> list[Any]:
        taken: list[Any] = []
        for partition, buffer in self._buffers.items():
            self.next[partition] = self.fetched(partition)
            taken += buffer
            buffer.clear()
        return taken

    def _done(self, partition: int) -> int:
        buffer = self._buffers[partition]
        # With gaps in the offsets, the next message may belong to a later turn than the next offset.
        following = buffer[0].offset() if buffer else self.next[partition]
        return following // self.quota - self.bases[partition] // self.quota

    def _order(self, partition: int) -> tuple[int, int]:
        return self._done(partition), partition

    def _choose(self) -> int | None:
        if not self._buffers:
            return None
        waited_for = [self._order(number) for number in self._buffers if number not in self._passed]
        front = min(waited_for) if waited_for else max(map(self._order, self._buffers))
        # Not before the front: a partition skipped in a round is not awaited again in that round.
        self._passed -= {number for number in self._passed if self._order(number) >= front}
        eligible = [number for number in self._buffers if number not in self._passed or self._buffers[number]]
        return min(eligible, key=self._order, default=None)

    def _wait_for(self, partition: int) -> None:
        now = monotonic()
        since = self._waits.setdefault(partition, now)
        if self.timeout is not None and now - since >= self.timeout:
            del self._waits[partition]
            self._passed.add(partition)
