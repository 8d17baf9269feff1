"""SIGTERM, SIGHUP and SIGINT during a run.

The first signal requests a clean stop, the second ends the process at once.

Python runs a signal's handler when the main thread is back in Python. It may be inside a graph, or wait in MindSpore's
C++ for a pipeline, without end. So signals are also written through `signal.set_wakeup_fd` to a thread, which ends the
process at the second one even if the main thread hangs, and ends the run when the main thread does not return
from a wait for data.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..data.waiting import DATA_WAIT

logger = logging.getLogger(__name__)

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
INTERRUPTED = "interrupted"  # the reason given in an interactive session, where MindSpore makes SIGTERM of SIGINT
GRACE_SECONDS = 1.0  # time for the main thread to return from a wait for data
JOB_GRACE_SECONDS = 10.0  # the same in a job, which then ends without a last snapshot
_ENDED = 0  # among the numbers of signals: those before it were for a run that has ended
NO_WIND_UP = 1  # exit code of such an end; the supervisor then ends the other processes


class StopOnSignal:
    """Calls `stop(name)` on the first signal; ends the process on the second.

    SIGINT and SIGTERM are both handled because MindSpore turns a SIGINT that arrives inside a graph into SIGTERM. A
    signal that is ignored, as SIGHUP is under nohup, stays ignored. Outside the main thread Python cannot install
    handlers, and nothing is changed. In an interactive session the second signal raises KeyboardInterrupt on the spot
    and the third ends the process.

    Args:
        stop: asks the run to end after the current step.
        wind_up: ends the run for a main thread that never returns from its wait; called on another thread.
        alone: whether this process is the only one. One of several never leaves a wait on its own, because the others
            would wait for it: it stops with them, at their next agreement.
    """

    def __init__(
        self, stop: Callable[[str], None], wind_up: Callable[[], None] = lambda: None, *, alone: bool = True
    ) -> None:
        self._stop, self._wind_up, self._alone = stop, wind_up, alone
        self.grace = GRACE_SECONDS if alone else JOB_GRACE_SECONDS
        self._before: dict[int, Any] = {}
        self._outside: tuple[Any, ...] = ()
        self._count = 0
        self._process = os.getpid()
        self.received: int | None = None  # number of the first signal

    @property
    def called(self) -> bool:
        """Whether a signal has come."""
        return self._count > 0

    def __enter__(self) -> StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            for number in HANDLED:
                if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
            # a callback of one run may call another Trainer: the outer handlers are restored afterwards
            self._outside = DATA_WAIT.before, DATA_WAIT.leaving, _WATCHER.begin(self)
            DATA_WAIT.before = self._reclaim
            DATA_WAIT.leaving = False
        return self

    def _reclaim(self) -> None:
        # every graph call installs MindSpore's own handler of SIGINT, which sends SIGTERM
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked child ends as if nothing were handled here
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._count += 1
        if self._count > 1:
            if is_interactive() and self._count == 2:
                raise KeyboardInterrupt
            os._exit(128 + number)
        self.received = number
        DATA_WAIT.leaving = True
        self._stop(INTERRUPTED if is_interactive() else signal.Signals(number).name)
        if self._alone:
            DATA_WAIT.leave()

    def take_over(self, number: int) -> None:
        """End the run and the process, while the main thread waits for data."""
        if not self._alone:
            logger.error(
                "the data does not come and cannot be interrupted, and the other processes cannot stop without this "
                "one: the job ends with the newest snapshot it has"
            )
            _leave_at_once(NO_WIND_UP)
        try:
            self._stop(signal.Signals(number).name)
            logger.warning("the wait for data cannot be interrupted: the run ends without further data")
            self._wind_up()
        except BaseException as error:
            logger.error("winding up failed: %s: %s", type(error).__name__, error)
        finally:
            _leave_at_once(128 + number)

    def __exit__(self, *exc_info: object) -> None:
        if not self._before:
            return
        DATA_WAIT.before, DATA_WAIT.leaving, watched = self._outside
        try:
            _WATCHER.end(self, watched)
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            self._before.clear()

    def leave(self, *, complete: bool = False) -> None:
        """Raise KeyboardInterrupt after SIGINT, else SystemExit(128 + number).

        In an interactive session, where SystemExit ends nothing, KeyboardInterrupt for all; nothing if the result of
        the call is `complete`, as the history of an interrupted training is.
        """
        if self.received is None or (complete and is_interactive()):
            return
        if self.received == signal.SIGINT or is_interactive():
            raise KeyboardInterrupt
        raise SystemExit(128 + self.received)


def _leave_at_once(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def is_interactive() -> bool:
    """Return whether this is a Python prompt, IPython or a notebook."""
    return hasattr(sys, "ps1") or hasattr(builtins, "get_ipython") or bool(sys.flags.interactive)


class _Watcher:
    """A thread that receives signals while the main thread is outside Python."""

    def __init__(self) -> None:
        self._guarded: StopOnSignal | None = None
        self._pipe = (-1, -1)
        self._fd_before = -1
        self._numbers: queue.SimpleQueue[int] = queue.SimpleQueue()

    def begin(self, guarded: StopOnSignal) -> tuple[StopOnSignal | None, int, int]:
        """Watch on behalf of `guarded`; return what `end` restores."""
        if self._pipe[0] < 0:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
            for target in (self._read, self._watch):
                threading.Thread(target=target, name="trainer-signals", daemon=True).start()
            os.register_at_fork(after_in_child=self._forget)
        outside = self._guarded, self._fd_before
        self._guarded = guarded
        descriptor = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if descriptor != self._pipe[1]:  # not nested in another run of ours: signals are passed on to it
            self._fd_before = descriptor
        return *outside, descriptor

    def end(self, guarded: StopOnSignal, outside: tuple[StopOnSignal | None, int, int]) -> None:
        outer, fd_before, descriptor = outside
        signal.set_wakeup_fd(descriptor)
        guarded._reclaim()  # after which Python has called the handlers of all signals that have come
        self._guarded, self._fd_before = outer, fd_before
        # without a signal the threads are not woken: they would take the GIL in turn, which costs milliseconds
        if guarded.called and guarded._process == os.getpid():
            with contextlib.suppress(BlockingIOError):
                os.write(self._pipe[1], bytes([_ENDED]))

    def _forget(self) -> None:
        """Keep a forked child from writing its signals to this process."""
        if self._guarded is not None:
            with contextlib.suppress(ValueError):
                signal.set_wakeup_fd(-1)

    def _read(self) -> None:
        while True:
            for number in os.read(self._pipe[0], 64):
                if self._fd_before != -1 and number != _ENDED:  # the descriptor of another event loop
                    with contextlib.suppress(OSError):
                        os.write(self._fd_before, bytes([number]))
                self._numbers.put(number)

    def _watch(self) -> None:
        guarded, first, since = None, 0, 0.0
        while True:
            number = None
            with contextlib.suppress(queue.Empty):
                number = self._numbers.get(timeout=0.1 if first else None)
            if self._guarded is not guarded or number == _ENDED:
                guarded, first = self._guarded, 0
            if guarded is None or is_interactive():
                continue
            if number in HANDLED:
                if first:
                    os._exit(128 + number)
                first, since = number, time.monotonic()
            if first and DATA_WAIT.active and time.monotonic() - since > guarded.grace:
                DATA_WAIT.gate.acquire()
                if DATA_WAIT.active:
                    guarded.take_over(first)
                DATA_WAIT.gate.release()


_WATCHER = _Watcher()
