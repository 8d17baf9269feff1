"""Waiting for data: how long it takes, and how a signal interrupts the main thread meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class WaitClock:
    """How much of a run's time is spent waiting for data.

    A feed adds to the attributes directly: a call per chunk would cost time.

    Attributes:
        waited: seconds between asking for a chunk and having it.
        worked: seconds between having a chunk and asking for the next.
        since: `time.perf_counter()` at the last change from one to the other.
    """

    __slots__ = ("since", "waited", "worked")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Reset both to zero."""
        self.waited = self.worked = 0.0
        self.since = time.perf_counter()

    @property
    def share(self) -> float:
        """Share of the time spent waiting, 0 to 1; the time since `since` counts as work."""
        return self.waited / ((self.waited + self.worked + time.perf_counter() - self.since) or 1.0)


class Interrupted(BaseException):
    """Interrupts a wait for data after a stop signal.

    A BaseException, so that user code's ``except Exception`` does not swallow it.
    """


class DataWait:
    """Context manager around code that may wait for data without end and may be interrupted at any point.

    Only the main thread's waits count: signals reach no other thread.

    Attributes:
        active: whether the main thread is inside.
        leaving: whether a signal has asked the run to end.
        gate: lock held during shutdown; keeps the main thread from leaving the wait.
        before: hook called on entering, and again during a long wait.
    """

    def __init__(self) -> None:
        self.active = False
        self.leaving = False
        self.gate = threading.Lock()
        self.before: Callable[[], None] | None = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            if self.before is not None:
                self.before()
            self.active = True

    def __exit__(self, *exc_info: object) -> None:
        if self.active and threading.current_thread() is threading.main_thread():
            with self.gate:
                self.active = False

    def around(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Return `work` inside the context; `work` itself on a thread whose waits do not count."""
        if threading.current_thread() is not threading.main_thread():
            return work

        def wait() -> Any:
            with self:
                return work()

        return wait

    def leave(self) -> None:
        """Raise Interrupted if the main thread, which calls this, is inside.

        The wait is over before the exception is raised, whichever line the signal arrived at.
        """
        # taken by `__exit__`, which is leaving, or by a shutdown
        if self.active and self.gate.acquire(blocking=False):
            self.active = False
            self.gate.release()
            raise Interrupted

    def still_waiting(self) -> None:
        """Call the `before` hook again during a long wait."""
        if self.before is not None and threading.current_thread() is threading.main_thread():
            self.before()


DATA_WAIT = DataWait()
