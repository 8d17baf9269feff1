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
        passes: returns whether an exception is temporary (the server is down); after other exceptions, the request is
            dropped.
        most: capacity of the queue; when it is full, the oldest requests are dropped.
    """

    def __init__(self, name: str, passes: Callable[[Exception], bool], *, most: int = 10_000) -> None:
        self._name, self._passes = name, passes
        self._waiting: deque[Callable[[], None]] = deque(maxlen=most)
        self._changed = threading.Condition()
        self._busy = self._failing = self._closing = self._warned = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name=f"trainer-{name}", daemon=True)
        self._thread.start()

    def send(self, request: Callable[[], None]) -> None:
        """Queue a request without waiting."""
        with self._changed:
            self._dropped += len(self._waiting) == self._waiting.maxlen
            self._waiting.append(request)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for all requests; return early if the server fails.

        Returns whether all requests were handled.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failing or not (self._waiting or self._busy), seconds)
            return not (self._waiting or self._busy)

    def close(self, seconds: float) -> None:
        """Wait up to `seconds` until all requests are sent, then end the thread."""
        with self._changed:
            self._closing = True  # wakes the thread from its pause for a last attempt
            self._changed.notify_all()
        self._thread.join(seconds)
        with self._changed:
            left = len(self._waiting) + self._busy + self._dropped
            self._waiting.clear()
        if left:
            logger.warning("%s: %d requests were not sent", self._name, left)

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                request, self._busy = self._waiting.popleft(), True
                last = self._closing
            error = self._attempt(request)
            again = error is not None and self._passes(error)
            with self._changed:
                self._busy, self._failing = False, again
                if again and not last:
                    self._waiting.appendleft(request)
                elif error is not None:
                    self._dropped += 1
                self._changed.notify_all()
                if again and last:  # the server is still down at the end of the run
                    return
                if again:
                    self._changed.wait_for(lambda: self._closing, pause)
            pause = min(2 * pause, LONGEST_PAUSE) if again else FIRST_PAUSE

    def _attempt(self, request: Callable[[], None]) -> Exception | None:
        try:
            request()
        except Exception as error:
            if not self._warned:
                self._warned = True
                logger.warning("%s cannot report (%s); training continues", self._name, error)
            return error
        return None
