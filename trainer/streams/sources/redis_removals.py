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
    up_to: Id = _START  # id of the newest removed entry, if known


class Removals:
    """Detects removals by comparing the state of a key between reads.

    Removals between unread entries are detected only with Redis 7 or later, which counts the entries of a key.

    Args:
        resumed: whether an entry at or before the cursor is known to have existed.
        accepted: id up to which removals were reported and accepted.
    """

    def __init__(self, resumed: bool, accepted: Id = _START) -> None:
        self._reset(resumed, accepted)

    def _reset(self, resumed: bool, accepted: Id) -> None:
        self.resumed, self.accepted = resumed, accepted
        self._has_existed = resumed  # whether the key has existed
        self._entries_added: int | None = None
        self._read_all = False
        self._last_id = _START

    def find_loss(
        self, info: Mapping[str, Any] | None, cursor: Id, ids: Sequence[Id], full: bool, partly_read: Id | None
    ) -> Loss | None:
        """Return the loss of unread entries since the last call, or None.

        Args:
            info: the answer to XINFO STREAM; None if the key does not exist.
            cursor: id of the last entry read before.
            ids: ids of the entries just read, in the same transaction as `info`.
            full: whether more entries may follow `ids`.
            partly_read: id of a partially read entry, which must still exist, or None.
        """
        last_id = _START if info is None else parse_id(info["last-generated-id"])
        added = None if info is None else info.get("entries-added")
        if self._has_existed and (info is None or last_id < cursor or (added or 0) < (self._entries_added or 0)):
            return self._handle_replacement(info, last_id)
        if info is None:
            return None
        resumed, existed, all_read, added_before = self.resumed, self._has_existed, self._read_all, self._entries_added
        self.resumed, self._has_existed = resumed or bool(ids), True
        self._read_all, self._entries_added, self._last_id = not full, added, last_id
        oldest = parse_id(info["first-entry"][0]) if info["first-entry"] else None
        reached = ids[-1] if ids else cursor
        # If the newest entry is older than the last generated id, the entry with that id was removed.
        removed = last_id if not full and last_id > reached else parse_id(info.get("max-deleted-entry-id", b"0-0"))
        is_new = existed and removed > max(cursor, self.accepted)
        # An entry at or before the cursor existed, but the oldest entry is now after the cursor.
        lost_start = resumed and oldest is not None and oldest > cursor
        trimmed = lost_start if partly_read is None else bool(ids) and ids[0] != partly_read
        if not trimmed and not is_new:
            if removed > cursor:  # removed before this stream began to read
                self.accepted = max(self.accepted, removed)
            return None
        count = ""
        if added is not None and added_before is not None and all_read and not full:
            count = f"{added - added_before - len(ids)} "
        first = ids[0] if ids else oldest if oldest is not None and oldest > cursor else None
        remainder = "none is left" if first is None else f"the first id available is {format_id(first)}"
        lost = f"{count}entries after {format_id(cursor)}"
        message = f"has lost {lost} before they were read (XDEL, XTRIM, MAXLEN); {remainder}"
        return Loss(message, up_to=removed)

    def _handle_replacement(self, info: Mapping[str, Any] | None, last: Id) -> Loss:
        """Reset the state of a deleted key and return the loss of its unread entries."""
        what = "was deleted" if info is None else "was deleted and created again"
        if self._last_id != _START:
            what += f"; the last id seen in it was {format_id(self._last_id)}"
        if info is not None:
            what += f": now it holds {info['length']} entries, up to {format_id(last)}"
        self._reset(False, _START)
        return Loss(what, restart=True)


def parse_id(value: Offset | bytes, label: str = "") -> Id:
    """Parse an entry id into (milliseconds, sequence); `label` begins error messages."""
    if isinstance(value, bytes):
        value = value.decode()
    first, _, second = str(value).partition("-")
    if not all(part.isascii() and part.isdigit() for part in (first, second or "0")):
        raise ConfigurationError(f"{label} takes an entry id such as 1700000000000-0; received {value!r}")
    return int(first), int(second or 0)


def format_id(at: Id) -> str:
    """Format an entry id as Redis writes it."""
    return f"{at[0]}-{at[1]}"
