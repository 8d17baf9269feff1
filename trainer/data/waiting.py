"""Reads ahead on a thread, and measures and interrupts waits for data."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Observer = Callable[[str, float, float], None]  # (part of the work, its beginning and end by `time.perf_counter()`)


class WaitClock:
    """Measures how much of a run's time is spent waiting for data.

    A feed adds to the attributes directly: a call per chunk would cost time.
    """

    __slots__ = ("since", "waited", "worked")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Reset the times to zero."""
        self.waited = 0.0  # seconds between requesting a chunk and receiving it
        self.worked = 0.0  # seconds between receiving a chunk and requesting the next
        self.since = time.perf_counter()

    def note_wait(self, now: float, for_others: float) -> None:
        """Count the time since `since` as waiting for data.

        Args:
            now: `time.perf_counter()`.
            for_others: seconds spent waiting for other processes. They count as work, up to the length of the wait.
        """
        wait = now - self.since
        counted_as_work = min(wait, for_others)
        self.waited, self.worked, self.since = self.waited + wait - counted_as_work, self.worked + counted_as_work, now

    @property
    def share(self) -> float:
        """Share of the time spent waiting, 0 to 1; the time since `since` counts as work."""
        return self.waited / ((self.waited + self.worked + time.perf_counter() - self.since) or 1.0)


@dataclass(slots=True)
class ReadingTimes:
    """Total seconds of a feed's work; each attribute is written by one thread."""

    read: float = 0.0  # reading batches from the source, including waits for a stream
    prepared: float = 0.0  # stacking, planning rows of sparse tables and making tensors, on the training thread
    prepared_ahead: float = 0.0  # the same on the reading thread, during training


class Interrupted(BaseException):
    """Interrupts a wait for data after a stop signal.

    It is a BaseException, so that ``except Exception`` in user code does not catch it.
    """


class DataWait:
    """Context manager for code that may wait for data and may be interrupted.

    Only waits of the main thread can be interrupted, because Python runs signal handlers there.
    """

    def __init__(self) -> None:
        self.active = False  # whether the main thread is inside the context
        self.leaving = False  # whether a signal has asked the run to end
        self.gate = threading.Lock()  # lock held during shutdown; keeps the main thread from leaving the wait
        self.before: Callable[[], None] | None = None  # hook called on entering, and again during a long wait

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            if self.before is not None:
                self.before()
            self.active = True

    def __exit__(self, *exc_info: object) -> None:
        if self.active and threading.current_thread() is threading.main_thread():
            with self.gate:
                self.active = False

    def leave(self) -> None:
        """Raise `Interrupted` if the main thread is waiting; called on the main thread.

        The wait counts as over before the exception is raised, no matter which line the signal interrupted.
        """
        # If the lock is taken, `__exit__` is ending the wait, or a shutdown has begun.
        if self.active and self.gate.acquire(blocking=False):
            self.active = False
            self.gate.release()
            raise Interrupted

    def still_waiting(self) -> None:
        """Call the `before` hook again during a long wait."""
        if self.before is not None and threading.current_thread() is threading.main_thread():
            self.before()


DATA_WAIT = DataWait()


MIN_QUEUED = 2
MAX_QUEUED = 32
ENOUGH_BYTES = 1 << 18
JOIN_SECONDS = 5.0
_END = object()


class Prefetch:
    """Runs an iterator on one daemon thread, ahead of its consumer.

    The thread pauses when at least `least` chunks are queued and they hold `ENOUGH_BYTES` or number `most`. It resumes
    when half of them have been taken: with small steps, a wake-up for every chunk would take longer than the work.

    Args:
        chunks: iterator over values with an `nbytes` attribute.
        most: maximum number of queued chunks.
        least: number of chunks that may be queued regardless of their size.
    """

    def __init__(self, chunks: Iterator[Any], most: int = MAX_QUEUED, *, least: int = MIN_QUEUED) -> None:
        self._chunks = chunks
        self._least, self._most = max(least, MIN_QUEUED), max(least, most)
        self._ready: deque[tuple[Any, int]] = deque()
        self._changed = threading.Condition()
        # Each of these counters has one writing thread, so taking a queued chunk needs no lock.
        self._bytes_put = self._bytes_taken = 0
        self._length_when_full = 0
        self._consumer_waits = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="trainer-prefetch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for chunk in self._chunks:
                if not self._put(chunk, chunk.nbytes):
                    return
            self._put(_END)
        except BaseException as error:
            self._put(error)

    def _put(self, value: Any, size: int = 0) -> bool:
        with self._changed:
            while not self._stopped and self._full():
                self._length_when_full = len(self._ready)
                self._changed.wait()
            if self._stopped:
                return False
            self._bytes_put += size
            self._ready.append((value, size))
            if self._consumer_waits:
                self._changed.notify_all()
        return True

    def _full(self) -> bool:
        waiting = len(self._ready)
        return waiting >= self._least and (waiting >= self._most or self._bytes_put - self._bytes_taken >= ENOUGH_BYTES)

    @property
    def depth(self) -> int:
        """Number of queued chunks."""
        return len(self._ready)

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def get(self, timeout: float) -> Any:
        """Return the next chunk, or None at the end.

        Raises queue.Empty after `timeout` seconds, or the error of the iterator.
        """
        if not self._ready:
            self._wait(timeout)
        value, size = self._ready.popleft()
        if value is _END:
            return None
        if isinstance(value, BaseException):
            raise value
        self._bytes_taken += size
        if self._length_when_full and 2 * len(self._ready) <= self._length_when_full:
            with self._changed:
                self._length_when_full = 0
                self._changed.notify_all()
        return value

    def _wait(self, timeout: float) -> None:
        with self._changed:
            self._length_when_full = 0
            self._changed.notify_all()
            self._consumer_waits = True
            try:
                if not self._changed.wait_for(lambda: self._ready, timeout):
                    raise queue.Empty
            finally:
                self._consumer_waits = False

    def stop(self, seconds: float | None = None) -> bool:
        """Stop the thread; return whether it ended within `seconds` or `JOIN_SECONDS`.

        A thread that is blocked in the source is abandoned; it is a daemon thread.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(timeout=JOIN_SECONDS if seconds is None else seconds)
        return not self._thread.is_alive()
