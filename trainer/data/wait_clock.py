"""How much of a run's time is spent waiting for data."""

from __future__ import annotations

import time


class WaitClock:
    """Adds up the time between asking for a chunk and having it, and the time between having it and the next asking."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin anew."""
        self.waited = self.worked = 0.0
        self._since = time.perf_counter()

    def asked(self) -> None:
        """Note that a chunk is being asked for."""
        now = time.perf_counter()
        self.worked += now - self._since
        self._since = now

    def got(self) -> None:
        """Note that it is there."""
        now = time.perf_counter()
        self.waited += now - self._since
        self._since = now

    @property
    def share(self) -> float:
        """Share of the time spent waiting, 0 to 1."""
        return self.waited / max(self.waited + self.worked, 1e-9)
