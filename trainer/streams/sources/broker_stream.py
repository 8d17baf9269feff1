"""Base of the streams that read messages from a server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

from ...checks import choice
from ...errors import StreamError
from ..base import BufferedStream, Sharing
from ..batch import Cursor, Span
from ..dead_letter import DeadLetter
from ..formats.decode import Decoder
from ..formats.schema import Decoded, Schema
from ..retry import Retry

logger = logging.getLogger(__name__)

_ON_MISSING = ("error", "skip")
_MAX_WAIT = 10.0
# How long `position` waits for a server's first answer.
_START_SECONDS = 30.0


class BrokerStream(BufferedStream):
    """Decodes payloads from a server that may be down; sets bad rows aside.

    A subclass implements `_fetch`, `_failed` and `_disconnect`, and sets `_errors`. It holds `_lock` during client
    calls that must not overlap with closing the client.

    Args:
        source: name of the stream in dead letters ("kafka clicks").
        server: name of the server in messages ("Kafka at localhost:9092").
        schema: what the columns are to be, or a mapping of `Schema`'s arguments; None: as the Trainer's features say.
        format: "json", "arrow" or "auto".
        on_missing: when unread messages are gone: "error", or "skip" to warn and go on with the first available.
        dead_letter: file for records that do not fit, or a `DeadLetter`.
        max_bad_share: largest share of such records; None: that of `dead_letter`, 0.01 for a new one.
        give_up_after: seconds of unbroken failure after which StreamError is raised; None: never.

    Raises:
        ConfigurationError: an option is not one of those accepted.
    """

    sharing = Sharing.PARTITIONED
    counts_rows = True
    dead_letter: DeadLetter
    _errors: tuple[type[Exception], ...] = ()

    def __init__(
        self,
        source: str,
        server: str,
        schema: Schema | Mapping[str, Any] | None,
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
        self.schema = self._decoder.declared
        self._retry = Retry(server, cap=_MAX_WAIT, give_up_after=give_up_after)
        self._lock = Lock()
        self._resume_rows: dict[str, Cursor] = {}  # messages partially read before the sought position

    def _failed(self, error: Any) -> None:
        """Record a server failure for the back-off; raise if it is final."""
        raise NotImplementedError

    def declare(self, schema: Schema) -> None:
        """Set the schema unless the stream already has one."""
        self.schema = self._decoder.declare(schema)

    def _attempt(self, action: Callable[[], None], timeout: float) -> bool:
        """Call the server if the back-off allows; return whether the call succeeded."""
        if not self._retry.wait(timeout):
            return False
        try:
            action()
        except self._errors as error:
            self._failed(error)
            return False
        self._retry.succeeded()
        return True

    def _disconnect(self) -> None:
        """Close the client; called once, with `_lock` held."""
        raise NotImplementedError

    def _retry_until(self, action: Callable[[], None], done: Callable[[], bool], unknown: str) -> None:
        """Repeat `action` until `done`, for the first position, or raise at the limit."""
        deadline = monotonic() + _START_SECONDS
        while not done():
            left = max(0.0, deadline - monotonic())
            if not self._attempt(action, left) and left == 0:
                raise StreamError(f"{self._retry.label} did not answer for {_START_SECONDS:.0f} s; {unknown}")

    def _push_messages(self, decoded: Decoded, origins: Sequence[Span]) -> None:
        """Push decoded messages; drop rows before the sought position."""
        rows_read = {}
        for number, origin in enumerate(origins if self._resume_rows else ()):
            cursor = self._resume_rows.pop(origin.partition, None)
            if cursor is not None and cursor.offset == origin.offset:
                rows_read[number] = cursor.row
        self._push(self._decoder.batch(decoded, origins, rows_read))

    def _lost(self, message: str) -> None:
        """Warn of messages removed unread, or raise if `on_missing` is "error"."""
        if self.on_missing == "error":
            raise StreamError(f"{message}. Seek there, or pass on_missing='skip', to go on without them")
        logger.warning("%s; going on there", message)

    def close(self) -> None:
        """Close the client and the dead-letter file; a running `poll` returns soon."""
        already = self._closed
        super().close()
        self._retry.stop()
        with self._lock:
            if not already:
                self._disconnect()
        self.dead_letter.close()
