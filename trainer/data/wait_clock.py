"""How much of a run's time is spent waiting for data."""

from __future__ import annotations

import time


class WaitClock:
    """Adds up the time between asking for a chunk and having it, and the time between having it and the next asking.

    Whoever hands out chunks adds to it, without a call.

    Attributes:
        waited: seconds between asking and having.
        worked: seconds between having and asking.
        since: `time.perf_counter()` when the one last ended and the other began.
    """

    __slots__ = ("since", "waited", "worked")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin anew."""
        self.waited = self.worked = 0.0
        self.since = time.perf_counter()

    @property
    def share(self) -> float:
        """Share of the time spent waiting, 0 to 1; what has gone by since `since` was work."""
        return self.waited / ((self.waited + self.worked + time.perf_counter() - self.since) or 1.0)
