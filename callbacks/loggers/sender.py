"""`Sender`: sends log requests to a server from a background thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

FIRST_PAUSE = 1.0  # seconds before the first retry; each later pause is twice as long
LONGEST_PAUSE = 60.0


class Sender:
    """Runs requests in order on a daemon thread; retries temporary failures.

    Args:
        name: name of the logger, for warnings.
        is_temporary: returns whether an exception is temporary (the server is down); after any other exception, the
            request is dropped.
        capacity: maximum length of the queue; when it is full, the oldest request is dropped.
    """

    def __init__(self, name: str, is_temporary: Callable[[Exception], bool], *, capacity: int = 10_000) -> None:
        self._name, self._is_temporary = name, is_temporary
        self._queue: deque[Callable[[], None]] = deque(maxlen=capacity)
        self._changed = threading.Condition()
        self._busy = self._failing = self._closing = self._warned = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name=f"trainer-{name}", daemon=True)
        self._thread.start()

    def send(self, request: Callable[[], None]) -> None:
        """Queue a request without waiting."""
        with self._changed:
            self._dropped += len(self._queue) == self._queue.maxlen
            self._queue.append(request)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for all requests; return early if the server fails.

        Returns whether all requests were handled.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failing or not (self._queue or self._busy), seconds)
            return not (self._queue or self._busy)

    def close(self, seconds: float) -> None:
        """Wait up to `seconds` until all requests are sent, then end the thread."""
        with self._changed:
            self._closing = True  # wakes the thread from its pause for a last attempt
            self._changed.notify_all()
        self._thread.join(seconds)
        with self._changed:
            unsent = len(self._queue) + self._busy + self._dropped
            self._queue.clear()
        if unsent:
            logger.warning("%s: %d requests were not sent", self._name, unsent)

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                request, self._busy = self._queue.popleft(), True
                is_last_attempt = self._closing
            error = self._attempt(request)
            retry = error is not None and self._is_temporary(error)
            with self._changed:
                self._busy, self._failing = False, retry
                if retry and not is_last_attempt:
                    self._queue.appendleft(request)
                elif error is not None:
                    self._dropped += 1
                self._changed.notify_all()
                if retry and is_last_attempt:  # the server is still down at the end of the run
                    return
                if retry:
                    self._changed.wait_for(lambda: self._closing, pause)
            pause = min(2 * pause, LONGEST_PAUSE) if retry else FIRST_PAUSE

    def _attempt(self, request: Callable[[], None]) -> Exception | None:
        try:
            request()
        except Exception as error:
            if not self._warned:
                self._warned = True
                logger.warning("%s cannot report (%s); training continues", self._name, error)
            return error
        return None
