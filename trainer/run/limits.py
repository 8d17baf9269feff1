"""When a run ends (`Limits`) and when something that repeats is due (`Every`)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from .. import checks
from ..cadence import Every
from ..state import Progress

__all__ = ["Every", "Limits"]


@dataclass
class Limits:
    """The bounds of a run; None means unbounded. The first bound reached ends the run.

    Args:
        epochs: total number of epochs, counted from the very first, so a resumed run ends where it would have.
        steps: total number of optimizer steps (`Progress.global_step`).
        seconds: wall time of this call.
    """

    epochs: int | None = None
    steps: int | None = None
    seconds: float | None = None
    _started: float = field(default_factory=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        checks.whole("epochs", self.epochs, 0, optional=True)
        checks.whole("steps", self.steps, 0, optional=True)
        checks.number("seconds", self.seconds, least=0, optional=True)

    def start(self) -> None:
        """Start the clock of the `seconds` bound."""
        self._started = time.monotonic()

    def reached(self, progress: Progress) -> str | None:
        """Return the name and value of the bound of epochs or steps that `progress` has reached, or None."""
        if self.epochs is not None and progress.epoch >= self.epochs:
            return f"epochs={self.epochs}"
        if self.steps is not None and progress.global_step >= self.steps:
            return f"steps={self.steps}"
        return None

    def out_of_time(self) -> str | None:
        """Return the name and value of the bound of seconds once it is reached, by this process's clock."""
        if self.seconds is not None and time.monotonic() - self._started >= self.seconds:
            return f"seconds={self.seconds}"
        return None

    def steps_left(self, progress: Progress) -> int | None:
        """Return how many more optimizer steps are allowed, or None when unbounded."""
        return None if self.steps is None else max(0, self.steps - progress.global_step)
