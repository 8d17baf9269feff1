"""Where records go that cannot be trained on, and when there are too many of them."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path
from threading import Lock
from typing import Any

from ..checks import number, whole
from ..errors import StreamError

logger = logging.getLogger(__name__)

_MAX_RAW = 65_536


class DeadLetter:
    """Counts good and bad rows, keeps the bad ones in a file and stops a stream that has turned bad.

    Each line of the file is a JSON object: ``source``, ``partition``, ``offset``, ``row``, ``reason`` and ``raw`` (the
    payload as text) or ``raw_base64`` (where it is not UTF-8), cut after 65,536 bytes. A record that is read again
    after a resume is written again, with the same place.

    Args:
        path: JSON-lines file to append to; None: bad rows are counted and the first is logged.
        max_bad_share: largest share of bad rows tolerated, 0 to 1.
        min_rows: rows to see before the share counts. Older rows are forgotten gradually (counts are halved every
            10 * `min_rows` rows), so a source that turns bad late is noticed as soon as one that is bad from the start.

    Raises:
        ConfigurationError: `max_bad_share` or `min_rows` out of range.
    """

    def __init__(self, path: str | Path | None = None, max_bad_share: float = 0.01, min_rows: int = 1000) -> None:
        number("max_bad_share", max_bad_share, least=0, most=1, what="a share")
        whole("min_rows", min_rows)
        self.path = None if path is None else Path(path)
        self.max_bad_share = max_bad_share
        self.min_rows = min_rows
        self.good = 0
        self.bad = 0
        self._recent_good = 0.0
        self._recent_bad = 0.0
        self._file: Any = None
        self._warned = False
        self._lock = Lock()

    @classmethod
    def of(cls, value: DeadLetter | str | Path | None, max_bad_share: float | None = None) -> DeadLetter:
        """Return `value` itself, or a DeadLetter for that path and share (None: the default share)."""
        if isinstance(value, cls):
            return value
        return cls(value) if max_bad_share is None else cls(value, max_bad_share)

    def record(self, source: str, partition: str, offset: int | str, row: int, reason: str, raw: Any) -> None:
        """Keep one bad row; count it with `count` afterwards.

        Args:
            raw: the payload: bytes or text, or any value that JSON can hold.

        Raises:
            StreamError: the file cannot be written.
        """
        if self.path is None:
            if not self._warned:
                self._warned = True
                logger.warning("%s: bad record at %s %s row %d: %s", source, partition, offset, row, reason)
            return
        entry = {"source": source, "partition": partition, "offset": offset, "row": row, "reason": reason}
        entry.update(_raw(raw))
        try:
            with self._lock:
                if self._file is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self._file = self.path.open("a", encoding="utf-8")
                self._file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise StreamError(f"cannot write the dead-letter file {self.path}: {error}") from error

    def count(self, good: int, bad: int) -> None:
        """Add rows to the counts.

        Raises:
            StreamError: the share of bad rows among recent ones exceeds `max_bad_share`.
        """
        if bad and self._file is not None:
            self._file.flush()
        self.good += good
        self.bad += bad
        self._recent_good += good
        self._recent_bad += bad
        rows = self._recent_good + self._recent_bad
        if bad and rows >= self.min_rows and self._recent_bad > self.max_bad_share * rows:
            where = f"; they are in {self.path}" if self.path else ""
            raise StreamError(
                f"{self._recent_bad:.0f} of the last {rows:.0f} rows are bad, more than max_bad_share="
                f"{self.max_bad_share:g} allows{where}"
            )
        if rows > 10 * self.min_rows:
            self._recent_good /= 2
            self._recent_bad /= 2

    def close(self) -> None:
        """Close the file; a later record opens it again."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _raw(raw: Any) -> dict[str, str]:
    if isinstance(raw, memoryview | bytearray):
        raw = bytes(raw)
    if isinstance(raw, bytes):
        raw = raw[:_MAX_RAW]
        try:
            return {"raw": raw.decode("utf-8")}
        except UnicodeDecodeError:
            return {"raw_base64": base64.b64encode(raw).decode("ascii")}
    text = raw if isinstance(raw, str) else json.dumps(raw, default=str)
    return {"raw": text[:_MAX_RAW]}
