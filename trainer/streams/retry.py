"""Exponential back-off with jitter for a source that is down."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from threading import Event
from time import monotonic

from ..checks import number
from ..errors import StreamError
from ..masking import mask_text

logger = logging.getLogger(__name__)

_FIRST_WAIT = 0.1


@dataclass(eq=False)
class Retry:
    """Schedules retries and logs outages.

    The n-th wait, counted from 0, is ``min(cap, 0.1 * 2 ** n)`` seconds. A random share of up to half of it is
    subtracted, so that the clients of a server do not all reconnect at once.

    Args:
        label: name of the source in messages, such as "Redis at localhost:6379".
        cap: longest wait in seconds, at least 0.1.
        give_up_after: seconds of unbroken failure after which StreamError is raised; None to retry forever.

    Raises:
        ConfigurationError: `cap` is below 0.1.
    """

    label: str
    cap: float = 30.0
    give_up_after: float | None = None

    def __post_init__(self) -> None:
        number("cap", self.cap, minimum=_FIRST_WAIT)
        self.label = mask_text(self.label)
        self.failures = 0
        self._failing_since = self._next_attempt = 0.0
        self._stop_event, self._random = Event(), random.Random()

    def failed(self, error: BaseException | str) -> None:
        """Record a failure and schedule the next attempt; warn on the first in a row.

        A failure reported before the next attempt belongs to the previous attempt, so it does not lengthen the wait.

        Raises:
            StreamError: the source has been failing for `give_up_after` seconds.
        """
        now, text = monotonic(), mask_text(str(error))
        if self.failures == 0:
            self._failing_since = now
            logger.warning("%s failed (%s); trying again with growing waits of up to %g s", self.label, text, self.cap)
        down = now - self._failing_since
        if self.give_up_after is not None and down >= self.give_up_after:
            cause = error if isinstance(error, BaseException) else None
            raise StreamError(
                f"{self.label} has been failing for {down:.1f} s ({self.failures + 1} attempts), "
                f"longer than give_up_after={self.give_up_after} s; the last error: {text}"
            ) from cause
        if self.failures and now < self._next_attempt:
            return
        wait = min(self.cap, _FIRST_WAIT * 2 ** min(self.failures, 64))
        self._next_attempt = now + wait * self._random.uniform(0.5, 1)
        self.failures += 1

    def succeeded(self) -> None:
        """Record a success; log it if it ends an outage."""
        if self.failures:
            down = monotonic() - self._failing_since
            logger.warning("%s is back after %.1f s and %d failed attempts", self.label, down, self.failures)
            self.failures = 0

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the next attempt; return whether it is due."""
        due = self._next_attempt - monotonic() if self.failures else 0.0
        if due > 0:
            self._stop_event.wait(min(due, max(0.0, timeout)))
        return not self._stop_event.is_set() and due <= timeout

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`; `stop` ends the sleep early."""
        self._stop_event.wait(max(0.0, seconds))

    def stop(self) -> None:
        """End all current and future waits; may be called from another thread."""
        self._stop_event.set()
