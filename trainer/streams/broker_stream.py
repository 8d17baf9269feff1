"""Common part of the streams that read messages from a server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

from ..checks import choice
from ..errors import StreamError
from .base import BufferedStream
from .dead_letter import DeadLetter
from .decode import Decoder
from .retry import Retry
from .schema import Schema

logger = logging.getLogger(__name__)

_ON_MISSING = ("error", "skip")
_MAX_WAIT = 10.0
# How long `position` waits for a server that has not yet told where reading begins.
_START_SECONDS = 30.0


class BrokerStream(BufferedStream):
    """Payloads fetched from a server that may be down, decoded by a schema; bad ones go to the dead letters.

    A subclass implements `_fetch`, `_attempt` and `_disconnect`, and holds `_lock` while it is in a client that must
    not be closed under it.

    Args:
        source: what is read, as dead letters name it ("kafka clicks").
        server: what is talked to, as messages name it ("Kafka at localhost:9092").
        schema: what the columns are to be, or a mapping of `Schema`'s arguments.
        format: "json", "arrow" or "auto".
        on_missing: when unread messages are gone: "error", or "skip" to warn and go on with the first there is.
        dead_letter: file for records that do not fit, or a `DeadLetter`.
        max_bad_share: largest share of such records; None: that of `dead_letter`, 0.01 for a new one.
        give_up_after: seconds of unbroken failure after which StreamError is raised; None: never.

    Raises:
        ConfigurationError: an option is not one of those accepted.
    """

    def __init__(
        self,
        source: str,
        server: str,
        schema: Schema | Mapping[str, Any],
        *,
        format: str,
        on_missing: str,
        dead_letter: DeadLetter | str | Path | None,
        max_bad_share: float | None,
        give_up_after: float | None,
    ) -> None:
        super().__init__()
        choice("on_missing", on_missing, _ON_MISSING)
        self.on_missing = on_missing
        self.dead_letter = DeadLetter.of(dead_letter, max_bad_share)
        self._decoder = Decoder(schema, self.dead_letter, source, format)
        self._retry = Retry(server, cap=_MAX_WAIT, give_up_after=give_up_after)
        # Held while the reading thread is in the client, so that it is not closed under it; all else may overlap.
        self._lock = Lock()

    def _attempt(self, action: Callable[[], None], timeout: float) -> bool:
        """Do something with the server once its back-off allows; return whether it was done."""
        raise NotImplementedError

    def _disconnect(self) -> None:
        """Close the client; called once, with `_lock` held."""
        raise NotImplementedError

    def _insist(self, action: Callable[[], None], done: Callable[[], bool], unknown: str) -> None:
        """Repeat `action` until `done`, which the first position needs.

        Raises:
            StreamError: the server did not answer; `unknown` says what cannot be told then.
        """
        deadline = monotonic() + _START_SECONDS
        while not done():
            left = max(0.0, deadline - monotonic())
            if not self._attempt(action, left) and left == 0:
                raise StreamError(f"{self._retry.what} did not answer for {_START_SECONDS:.0f} s; {unknown}")

    def _lost(self, message: str) -> None:
        """Say that messages were removed before they were read.

        Raises:
            StreamError: `on_missing` is "error".
        """
        if self.on_missing == "error":
            raise StreamError(f"{message}. Seek there, or pass on_missing='skip', to go on without them")
        logger.warning("%s; going on there", message)

    def close(self) -> None:
        """Close the client and the dead-letter file; a `poll` under way returns soon."""
        already = self._closed
        super().close()
        self._retry.stop()
        with self._lock:
            if not already:
                self._disconnect()
        self.dead_letter.close()
