"""Where the main thread waits for data, told to whoever must end the wait: a signal (`trainer.run.signals`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Interrupted(BaseException):
    """Raised out of a wait for data when a signal has asked to leave; not for anybody's ``except Exception``."""


class DataWait:
    """Context manager around code that may wait for data without end and may be left at any point.

    Only the main thread's waits count: signals reach no other, and other threads of ours are never waited for.

    Attributes:
        active: whether the main thread is inside.
        leaving: whether a signal has asked the run to end.
        gate: held by whoever winds a run up while the main thread is inside; it does not come out any more then.
        before: called on entering, and whenever a wait goes on.
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
        """Return what does `work`, which may wait; on a thread whose waits do not count, `work` itself."""
        if threading.current_thread() is not threading.main_thread():
            return work

        def wait() -> Any:
            with self:
                return work()

        return wait

    def leave(self) -> None:
        """Raise Interrupted out of the wait; nothing where the main thread, which calls this, is not inside.

        Whatever line of ours the signal has struck, the wait is over for everybody before the exception is under way.
        """
        # taken: by `__exit__`, which is on its way out, or by whoever winds the run up
        if self.active and self.gate.acquire(blocking=False):
            self.active = False
            self.gate.release()
            raise Interrupted

    def goes_on(self) -> None:
        """Say that the main thread has waited a while and waits on."""
        if self.before is not None and threading.current_thread() is threading.main_thread():
            self.before()


DATA_WAIT = DataWait()
