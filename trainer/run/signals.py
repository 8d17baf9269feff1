"""Handles SIGTERM, SIGHUP and SIGINT during a run.

The first signal requests a clean stop; the second ends the process immediately.

Python runs signal handlers only while the main thread executes Python code. But the main thread may run a graph, or
hang in MindSpore's C++ code while it waits for a pipeline. Therefore `signal.set_wakeup_fd` also forwards signals to a
thread. This thread ends the process at the second signal even if the main thread hangs. It also ends the run if the
main thread does not return from a wait for data.
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
INTERRUPTED = "interrupted"  # stop reason in interactive sessions, where MindSpore turns SIGINT into SIGTERM
GRACE_SECONDS = 1.0  # time for the main thread to return from a wait for data
JOB_GRACE_SECONDS = 10.0  # grace with several processes; when it is over, the job ends without a last snapshot
_ENDED = 0  # marker in the queue of signal numbers: all signals before it were for a run that has ended
EXIT_WITHOUT_SHUTDOWN = 1  # exit code; the supervisor then ends the other processes


class StopOnSignal:
    """Calls `stop(name)` on the first signal; ends the process on the second.

    SIGINT and SIGTERM are both handled because MindSpore turns a SIGINT that arrives inside a graph into SIGTERM. A
    signal that is already ignored, such as SIGHUP under nohup, stays ignored. Python can install handlers only on the
    main thread; on other threads this class does nothing. In an interactive session, the second signal raises
    KeyboardInterrupt immediately and the third ends the process.

    Args:
        stop: asks the run to end after the current step.
        shut_down: shuts the run down if the main thread never returns from its wait for data; called on another thread.
        alone: whether this is the only process of the job. With several processes, no process leaves a wait on its own,
            because the others would then wait for it; all stop together at their next agreement.
    """

    def __init__(
        self, stop: Callable[[str], None], shut_down: Callable[[], None] = lambda: None, *, alone: bool = True
    ) -> None:
        self._stop, self._shut_down, self._single_process = stop, shut_down, alone
        self.grace = GRACE_SECONDS if alone else JOB_GRACE_SECONDS
        self._previous_handlers: dict[int, Any] = {}
        self._outer_state: tuple[Any, ...] = ()
        self._count = 0
        self._process = os.getpid()
        self.received: int | None = None  # number of the first signal

    @property
    def called(self) -> bool:
        """Whether a signal was received."""
        return self._count > 0

    def __enter__(self) -> StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            for number in HANDLED:
                if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous_handlers[number] = signal.signal(number, self._handle)
            # Calls can be nested, since a callback may call another Trainer: `__exit__` restores the outer handlers.
            self._outer_state = DATA_WAIT.before, DATA_WAIT.leaving, _WATCHER.begin(self)
            DATA_WAIT.before = self._reclaim
            DATA_WAIT.leaving = False
        return self

    def _reclaim(self) -> None:
        """Install the SIGINT handler again: every graph call replaces it by MindSpore's."""
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked child uses the default action
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
        if self._single_process:
            DATA_WAIT.leave()

    def shut_down_and_exit(self, number: int) -> None:
        """End the run and the process although the main thread still waits for data."""
        if not self._single_process:
            logger.error(
                "this process waits for data and cannot be interrupted, and the other processes cannot stop without "
                "it: the job ends with the newest snapshot it has"
            )
            _exit_now(EXIT_WITHOUT_SHUTDOWN)
        try:
            self._stop(signal.Signals(number).name)
            logger.warning("the wait for data cannot be interrupted: the run ends without further data")
            self._shut_down()
        except BaseException as error:
            logger.error("shutdown failed: %s: %s", type(error).__name__, error)
        finally:
            _exit_now(128 + number)

    def __exit__(self, *exc_info: object) -> None:
        if not self._previous_handlers:
            return
        DATA_WAIT.before, DATA_WAIT.leaving, watched = self._outer_state
        try:
            _WATCHER.end(self, watched)
        finally:
            for number, handler in self._previous_handlers.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            self._previous_handlers.clear()

    def leave(self, *, complete: bool = False) -> None:
        """Raise KeyboardInterrupt after SIGINT, SystemExit(128 + number) after others.

        An interactive session ignores SystemExit, so there every signal raises KeyboardInterrupt. It raises nothing if
        the result of the call is `complete`, for example the history of an interrupted training.
        """
        if self.received is None or (complete and is_interactive()):
            return
        if self.received == signal.SIGINT or is_interactive():
            raise KeyboardInterrupt
        raise SystemExit(128 + self.received)


def _exit_now(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def is_interactive() -> bool:
    """Return whether this is a Python prompt, IPython or a notebook."""
    return hasattr(sys, "ps1") or hasattr(builtins, "get_ipython") or bool(sys.flags.interactive)


class _Watcher:
    """A thread that receives signals while the main thread does not run Python code."""

    def __init__(self) -> None:
        self._active: StopOnSignal | None = None
        self._pipe = (-1, -1)
        self._outer_fd = -1
        self._numbers: queue.SimpleQueue[int] = queue.SimpleQueue()

    def begin(self, owner: StopOnSignal) -> tuple[StopOnSignal | None, int, int]:
        """Watch signals for `owner`; return the state that `end` restores."""
        if self._pipe[0] < 0:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
            for target in (self._read, self._watch):
                threading.Thread(target=target, name="trainer-signals", daemon=True).start()
            os.register_at_fork(after_in_child=self._forget)
        outside = self._active, self._outer_fd
        self._active = owner
        descriptor = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if descriptor != self._pipe[1]:  # belongs to another library, to which signals are forwarded
            self._outer_fd = descriptor
        return *outside, descriptor

    def end(self, owner: StopOnSignal, outside: tuple[StopOnSignal | None, int, int]) -> None:
        outer, outer_fd, descriptor = outside
        signal.set_wakeup_fd(descriptor)
        owner._reclaim()  # side effect: Python calls the handlers of all pending signals
        self._active, self._outer_fd = outer, outer_fd
        # Do not wake the threads if there was no signal: their competition for the GIL would cost milliseconds.
        if owner.called and owner._process == os.getpid():
            with contextlib.suppress(BlockingIOError):
                os.write(self._pipe[1], bytes([_ENDED]))

    def _forget(self) -> None:
        """Keep a forked child from writing its signals to the pipe of its parent."""
        if self._active is not None:
            with contextlib.suppress(ValueError):
                signal.set_wakeup_fd(-1)

    def _read(self) -> None:
        while True:
            for number in os.read(self._pipe[0], 64):
                if self._outer_fd != -1 and number != _ENDED:  # forward to the event loop of another library
                    with contextlib.suppress(OSError):
                        os.write(self._outer_fd, bytes([number]))
                self._numbers.put(number)

    def _watch(self) -> None:
        owner, first, since = None, 0, 0.0
        while True:
            number = None
            with contextlib.suppress(queue.Empty):
                number = self._numbers.get(timeout=0.1 if first else None)
            if self._active is not owner or number == _ENDED:
                owner, first = self._active, 0
            if owner is None or is_interactive():
                continue
            if number in HANDLED:
                if first:
                    os._exit(128 + number)
                first, since = number, time.monotonic()
            if first and DATA_WAIT.active and time.monotonic() - since > owner.grace:
                DATA_WAIT.gate.acquire()
                if DATA_WAIT.active:
                    owner.shut_down_and_exit(first)
                DATA_WAIT.gate.release()


_WATCHER = _Watcher()
