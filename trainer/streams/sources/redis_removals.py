"""Detects removed unread entries of a Redis stream, by XINFO STREAM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigurationError
from ..batch import Offset

Id = tuple[int, int]
_START: Id = (0, 0)


@dataclass(frozen=True)
class Loss:
    """Unread entries that were removed, with a message that says what happened."""

    message: str
    restart: bool = False  # whether the key was replaced and must be read from its start
    upto: Id = _START  # id of the newest removed entry, if known


class Removals:
    """Detects removals by comparing the state of a key between reads.

    Redis before version 7 has no counters, so removals from between unread entries are not detected.

    Args:
        resumed: whether an entry at or before the cursor is known to have existed.
        accepted: id up to which removals were reported and accepted.
    """

    def __init__(self, resumed: bool, accepted: Id = _START) -> None:
        self._begin(resumed, accepted)

    def _begin(self, resumed: bool, accepted: Id) -> None:
        self.resumed, self.accepted = resumed, accepted
        self._seen = resumed  # whether the key has existed
        self._added: int | None = None
        self._all_read = False
        self._last = _START

    def look(
        self, info: Mapping[str, Any] | None, cursor: Id, ids: Sequence[Id], full: bool, within: Id | None
    ) -> Loss | None:
        """Return the loss of unread entries since the last call, or None.

        Args:
            info: the answer to XINFO STREAM; None if the key does not exist.
            cursor: id of the last entry read before.
            ids: ids of the entries just read, in the same transaction as `info`.
            full: whether more entries may follow `ids`.
            within: id of a partially read entry, which must still exist, or None.
        """
        last, added = (_START, None) if info is None else (parse(info["last-generated-id"]), info.get("entries-added"))
        if self._seen and (info is None or last < cursor or (added or 0) < (self._added or 0)):
            return self._replaced(info, last)
        if info is None:
            return None
        resumed, seen, all_read, before = self.resumed, self._seen, self._all_read, self._added
        self.resumed, self._seen = resumed or bool(ids), True
        self._all_read, self._added, self._last = not full, added, last
        oldest = parse(info["first-entry"][0]) if info["first-entry"] else None
        reached = ids[-1] if ids else cursor
        # If the key ends before its last generated id, the entry with that id was removed.
        removed = last if not full and last > reached else parse(info.get("max-deleted-entry-id", b"0-0"))
        news = seen and removed > max(cursor, self.accepted)
        # Although an entry at or before the cursor existed, the key now begins after the cursor.
        lost_start = resumed and oldest is not None and oldest > cursor
        trimmed = lost_start if within is None else bool(ids) and ids[0] != within
        if not trimmed and not news:
            if removed > cursor:  # removed before this stream began to read
                self.accepted = max(self.accepted, removed)
            return None
        count = "" if before is None or full or not all_read else f"{added - before - len(ids)} "
        first = ids[0] if ids else oldest if oldest is not None and oldest > cursor else None
        left = "none is left" if first is None else f"the first id available is {text(first)}"
        message = f"has lost {count}entries after {text(cursor)} before they were read (XDEL, XTRIM, MAXLEN); {left}"
        return Loss(message, upto=removed)

    def _replaced(self, info: Mapping[str, Any] | None, last: Id) -> Loss:
        """Reset the state of a deleted key and return the loss of its unread entries."""
        what = "was deleted" if info is None else "was deleted and created again"
        if self._last != _START:
            what += f"; the last id seen in it was {text(self._last)}"
        if info is not None:
            what += f": now it holds {info['length']} entries, up to {text(last)}"
        self._begin(False, _START)
        return Loss(what, restart=True)


def parse(value: Offset | bytes, label: str = "") -> Id:
    """Parse an entry id into (milliseconds, sequence); `label` begins error messages."""
    if isinstance(value, bytes):
        value = value.decode()
    first, _, second = str(value).partition("-")
    if not all(part.isascii() and part.isdigit() for part in (first, second or "0")):
        raise ConfigurationError(f"{label} takes an entry id such as 1700000000000-0; received {value!r}")
    return int(first), int(second or 0)


def text(at: Id) -> str:
    """Format an entry id as Redis writes it."""
    return f"{at[0]}-{at[1]}"
