"""Records bad rows in a dead-letter file and limits their share."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from ..checks import number, whole
from ..errors import StreamError
from .batch import Span

logger = logging.getLogger(__name__)

_MAX_RAW = 65_536
_MAX_REASONS = 1000  # distinct reasons counted separately; all further ones are counted as "other"


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be trained on.

    Attributes:
        message: index of the row's message in the batch of messages that was read.
        row: index of the row within its message.
        reason: why the row is bad.
        raw: the payload as bytes, text or any JSON value.
        line: number of the line where the row begins in a text file, counted from 1; None for other sources.
    """

    message: int
    row: int
    reason: str
    raw: Any
    line: int | None = None


class DeadLetter:
    """Counts rows, writes bad ones to a file, and raises if too many are bad.

    Each line of the file is a JSON object with the keys ``source``, ``partition``, ``offset``, ``row``, ``line`` (for
    text files), ``reason`` and ``raw``, the payload as text. A payload that is not UTF-8 is in ``raw_base64`` instead.
    Payloads are cut after 65,536 bytes. A bad row that is read again after a resume is written again with the same
    offset and row.

    Args:
        path: JSON-lines file to append to. If it is None, bad rows are only counted, and the first one is logged.
        max_bad_share: largest share of bad rows tolerated, 0 to 1.
        min_rows: smallest number of rows to compute the share from. While fewer rows have been seen, the number of bad
            rows is divided by `min_rows`, so by default more than 10 bad rows stop even a short stream. The counts of
            good and bad rows are halved whenever they exceed 10 * `min_rows` rows, so that recent rows count most.

    Attributes:
        good, bad: numbers of rows counted so far.
        reasons: number of bad rows by reason.
        first: location of the first bad row and the value received there; empty if there is none.

    Raises:
        ConfigurationError: `max_bad_share` or `min_rows` is out of range.
    """

    def __init__(self, path: str | Path | None = None, max_bad_share: float = 0.01, min_rows: int = 1000) -> None:
        number("max_bad_share", max_bad_share, minimum=0, maximum=1, what="a share")
        whole("min_rows", min_rows)
        self.path = None if path is None else Path(path)
        self.max_bad_share = max_bad_share
        self.min_rows = min_rows
        self.good = self.bad = 0
        self.reasons: Counter[str] = Counter()
        self.first = self._newest_reason = ""
        self._recent_good = self._recent_bad = 0.0
        self._file: Any = None
        self._warned = False
        self._lock = Lock()

    @classmethod
    def of(cls, value: DeadLetter | str | Path | None, max_bad_share: float | None = None) -> DeadLetter:
        """Return `value` if it is a DeadLetter, else create one that writes to this path."""
        if isinstance(value, DeadLetter):
            return value
        return cls(value) if max_bad_share is None else cls(value, max_bad_share)

    def record(self, source: str, rows: Sequence[BadRow], origins: Sequence[Span]) -> None:
        """Write bad rows to the file; call `count` afterwards.

        Args:
            source: name of the stream.
            rows: the bad rows.
            origins: span of each message, indexed by `BadRow.message`.

        Raises:
            StreamError: the file cannot be written. The stream's position then stays before these rows.
        """
        if not rows:
            return
        if self.path is not None:
            self._write(self.path, source, rows, origins)
        elif not self._warned:
            self._warned = True
            first, origin = rows[0], origins[rows[0].message]
            location = f"row {first.row}" if first.line is None else f"line {first.line}"
            logger.warning(
                "%s: bad record at %s %s %s: %s", source, origin.partition, origin.offset, location, first.reason
            )
        self._newest_reason = rows[-1].reason  # not before: rows that cannot be written are read again
        self.count_reasons(rows, origins)

    def _write(self, path: Path, source: str, rows: Sequence[BadRow], origins: Sequence[Span]) -> None:
        lines = []
        for bad in rows:
            origin = origins[bad.message]
            line = {"source": source, "partition": origin.partition, "offset": origin.offset, "row": bad.row}
            line |= {} if bad.line is None else {"line": bad.line}
            lines.append(json.dumps({**line, "reason": bad.reason, **_raw_fields(bad.raw)}) + "\n")
        with self._lock:
            try:
                self._append(path, "".join(lines).encode())
            except OSError as error:
                with contextlib.suppress(OSError):
                    self._close()
                raise self._file_error("written", error) from error

    def count_reasons(self, rows: Sequence[BadRow], origins: Sequence[Span]) -> None:
        """Count the reasons of bad rows for `report`, and describe the first bad row."""
        for bad in rows:
            reason = _without_value(bad.reason)
            self.reasons[reason if reason in self.reasons or len(self.reasons) < _MAX_REASONS else "other"] += 1
        if rows and not self.first:
            first = rows[0]
            location = f"row {first.row}" if first.line is None else f"line {first.line}"
            self.first = f"{location}{_location(origins[first.message]) if origins else ''}{_value_in(first.reason)}"

    def report(self) -> str | None:
        """Return a message with the count and reasons of bad rows, or None without any."""
        if not self.bad:
            return None
        shown = ", ".join(f"{reason} {times}" for reason, times in self.reasons.most_common(3))
        rows = self.good + self.bad
        return f"{self.bad} of {rows} rows set aside: {shown}; the first is {self.first}{self._file_hint()}"

    def _file_hint(self) -> str:
        return f"; they are in {self.path}" if self.path else ""

    def count(self, good: int, bad: int) -> None:
        """Add to the counts of good and bad rows.

        Raises:
            StreamError: more than `max_bad_share` of the recent rows are bad. If fewer than `min_rows` rows have been
                seen, the number of bad rows is divided by `min_rows`.
        """
        self.good += good
        self.bad += bad
        self._recent_good += good
        self._recent_bad += bad
        rows = self._recent_good + self._recent_bad
        if bad and self._recent_bad > self.max_bad_share * max(rows, self.min_rows):
            raise StreamError(
                f"{self._recent_bad:.0f} of the last {rows:.0f} rows are bad, more than max_bad_share="
                f"{self.max_bad_share:g} allows{self._file_hint()}; the newest: {self._newest_reason}"
            )
        if rows > 10 * self.min_rows:
            self._recent_good /= 2
            self._recent_bad /= 2

    def _append(self, path: Path, lines: bytes) -> None:
        if self._file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered, so that a failed write leaves no data that `close` would write again.
            self._file = path.open("ab", buffering=0)
            if not self._ends_in_newline(path):
                lines = b"\n" + lines
        remaining = memoryview(lines)
        while remaining:
            remaining = remaining[self._file.write(remaining) :]

    def _ends_in_newline(self, path: Path) -> bool:
        """Return whether the last line of the file is complete."""
        if not path.is_file() or self._file.tell() == 0:
            return True
        with path.open("rb") as content:
            content.seek(-1, 2)
            return content.read(1) == b"\n"

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _file_error(self, action: str, error: OSError) -> StreamError:
        return StreamError(
            f"the dead-letter file {self.path} cannot be {action}: {error.strerror or error}. The stream stays before "
            "the bad rows. Free disk space or give dead_letter another path, then continue"
        )

    def close(self) -> None:
        """Close the file; the next `record` opens it again.

        Raises:
            StreamError: closing the file reported a failed write.
        """
        with self._lock:
            try:
                self._close()
            except OSError as error:
                raise self._file_error("closed", error) from error


def _raw_fields(raw: Any) -> dict[str, str]:
    if isinstance(raw, bytes | bytearray | memoryview):
        raw = bytes(raw)[:_MAX_RAW]
        try:
            return {"raw": raw.decode("utf-8")}
        except UnicodeDecodeError:
            return {"raw_base64": base64.b64encode(raw).decode("ascii")}
    text = raw if isinstance(raw, str) else json.dumps(raw, default=str)
    return {"raw": text[:_MAX_RAW]}


def _without_value(reason: str) -> str:
    """Return a reason without its value, so that similar reasons are counted together."""
    return reason.partition("; received")[0].removeprefix("column ").replace("'", "", 2)


def _value_in(reason: str) -> str:
    """Return the part of a reason that shows the received value, or an empty text."""
    return "".join(reason.partition("; received")[1:]).replace(";", ",", 1)


def _location(origin: Span) -> str:
    if isinstance(origin.offset, int):
        return f" of message {origin.offset} of {origin.partition}"
    return f" of {str(origin.offset).partition('@')[0]}"
