"""Which entries of a folder are segments, and of which kind."""

from __future__ import annotations

import fnmatch
import logging
import os
from collections.abc import Set as AbstractSet
from pathlib import Path

from ...errors import ConfigurationError
from . import segment_checksum

logger = logging.getLogger(__name__)

_SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv",
    ".parquet": "table", ".arrow": "table", ".arrows": "table", ".feather": "table",
}  # fmt: skip
_SHOWN = 5


def kind_of(name: str, format: str | None) -> str | None:
    """Return "jsonl", "csv" or "table" for a segment, or None when neither suffix nor `format` decides."""
    if format is not None:
        return "table" if format in ("parquet", "arrow") else format
    return _SUFFIXES.get(Path(name).suffix.lower())


class SegmentNames:
    """Picks the segments of a folder; names everything else in one warning.

    Args:
        folder: the folder.
        single: name of the one file that is read, or None.
        pattern: shell pattern; None: names with a known suffix, with a `format` one of its own or none.
        format: format of all segments; None: by suffix.

    Raises:
        ConfigurationError: the single file's suffix, or one spelled out in the pattern, says nothing of the format.
    """

    def __init__(self, folder: Path, single: str | None, pattern: str | None, format: str | None) -> None:
        self.folder, self.single, self.pattern, self.format = folder, single, pattern, format
        self._warned: set[str] = set()
        wanted = single or pattern
        if wanted and kind_of(wanted, format) is None:
            spelled_out = not any(sign in (Path(wanted).suffix or wanted) for sign in "*?[")
            if single or spelled_out:
                raise ConfigurationError(
                    f"the format of {folder / wanted} is not known from its suffix; pass format= one of jsonl, csv, "
                    f"parquet, arrow (suffixes known: {', '.join(_SUFFIXES)})"
                )

    def look(self) -> tuple[list[str], AbstractSet[str]]:
        """Return the names of the segments, in order, and of everything in the folder.

        Raises:
            OSError: the folder cannot be read.
        """
        with os.scandir(self.folder) as entries:
            present = {entry.name: entry.is_file() for entry in entries}
        if self.single:
            return [name for name in (self.single,) if present.get(name)], present.keys()
        names = sorted(name for name, is_file in present.items() if is_file and self.takes(name))
        self._warn({name for name in present if not _private(name)}.difference(names))
        return names, present.keys()

    def takes(self, name: str) -> bool:
        """Return whether a file of this name is a segment."""
        if self.single:
            return name == self.single
        if _private(name) or Path(name).name != name:
            return False
        if self.pattern is not None:
            return fnmatch.fnmatch(name, self.pattern) and kind_of(name, self.format) is not None
        suffix = Path(name).suffix.lower()
        kind = _SUFFIXES.get(suffix)
        return kind is not None if self.format is None else not suffix or kind == kind_of(name, self.format)

    def _warn(self, ignored: AbstractSet[str]) -> None:
        new = sorted(ignored - self._warned)
        if not new:
            return
        self._warned.update(new)
        shown = ", ".join(new[:_SHOWN]) + (f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else "")
        hint = "; pattern= and format= choose what else is read" if self.pattern is None else ""
        logger.warning("ignored in %s, being no segments: %s%s", self.folder, shown, hint)


def _private(name: str) -> bool:
    return name[:1] in ("_", ".") or name.endswith((".tmp", segment_checksum.SUFFIX))
