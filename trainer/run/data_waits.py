"""The share of time that processes wait for data, and warnings about it."""

from __future__ import annotations

import logging

import numpy as np

from ..data.feed import Feed
from ..distributed.group import Group

LONG_WAIT = 1 / 3  # share of the time
LEAST_WAIT_SECONDS = 2.0

logger = logging.getLogger(__name__)


class DataWaits:
    """Measures the share of time spent waiting for data; warns once if it is high."""

    def __init__(self, feed: Feed, group: Group) -> None:
        self.feed, self.group = feed, group
        self._warned = self._warned_of_rank = False

    def warn(self) -> None:
        """Warn with the source's advice if this process waits a third of its time."""
        clock = self.feed.clock
        if not self._warned and _is_long(clock.share, clock.waited) and (hint := self.feed.source.when_slow()):
            self._warned = True
            logger.warning("%.0f %% of the time is spent waiting for data: %s", 100 * clock.share, hint)

    def gather(self) -> tuple[float, ...] | None:
        """Return each process's share of waiting, by rank; None for one process.

        A collective call. Rank 0 warns about a process that the others wait for.
        """
        if self.group.size == 1:
            return None
        clock = self.feed.clock
        shares, waited = self.group.gather(np.array([clock.share, clock.waited])).T
        slowest = int(np.argmax(shares))
        others = np.delete(shares, slowest).max()
        uneven = shares[slowest] - others > LONG_WAIT
        if uneven and _is_long(shares[slowest], waited[slowest]) and not self._warned_of_rank:
            self._warned_of_rank = True
            if self.group.is_main:
                logger.warning(
                    "rank %d spends %.0f %% of its time waiting for data, the others at most %.0f %%: every step waits "
                    "for that process; look at its share of the data, its disk and its processor",
                    slowest,
                    100 * shares[slowest],
                    100 * others,
                )
        return tuple(shares.tolist())


def _is_long(share: float, waited: float) -> bool:
    return share > LONG_WAIT and waited >= LEAST_WAIT_SECONDS
