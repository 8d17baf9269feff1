"""State of a segment while it is read: progress, change detection, checksum."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ...checkpoint import durable
from ...errors import StreamError
from ...storage.cached_segments import CHECKSUM_SUFFIX
from ..batch import Cursor, Offset
from ..formats.segments import Piece, Reader, TextReader

logger = logging.getLogger(__name__)

_CHECKSUM_LINE = re.compile(rb"\\?([0-9a-fA-F]{64})(?:[ \t].*)?")
_MAX_CHECKSUM_BYTES = 65_536  # bytes of a checksum file that are read
_HEAD_BYTES, _TAIL_BYTES = 16_384, 4_096  # bytes covered by a fingerprint
_DONE = "end"


def write_checksum(segment: str | Path, target: str | Path | None = None) -> Path:
    """Write the checksum file of a finished segment next to it; return its path.

    Readers do not verify a segment without a checksum file, so the checksum must exist first. Write the segment under a
    name that ends with ``.tmp``, call this function with the final path as `target`, then rename the segment.

    Args:
        segment: the segment file.
        target: the final path of the segment; None if the segment already has its final name.

    Raises:
        OSError: the file cannot be read, or the checksum cannot be written.
    """
    target = Path(segment if target is None else target)
    path = target.with_name(target.name + CHECKSUM_SUFFIX)
    durable.replace_file(path, f"{_sha256(Path(segment))}  {target.name}\n".encode())
    return path


def verify_checksum(segment: Path) -> None:
    """Verify a segment against its checksum file, if there is one."""
    path = segment.with_name(segment.name + CHECKSUM_SUFFIX)
    try:
        with path.open("rb") as file:
            lines = file.read(_MAX_CHECKSUM_BYTES).splitlines()
    except FileNotFoundError:
        return
    match = _CHECKSUM_LINE.fullmatch(lines[0]) if lines else None
    if match is None:
        raise StreamError(f"{path} holds no SHA-256: write it with `sha256sum {segment.name} > {path.name}`")
    if _sha256(segment) != match[1].decode().lower():
        raise StreamError(f"segment {segment} is damaged: it does not match its checksum in {path.name}")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(durable.BLOCK):
            digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A fingerprint of the first `bytes` bytes of a file.

    It is a hash of the first 16 KiB and the last 4 KiB of these bytes. It depends on the content, not on the inode, so
    a resume may read a copy of the folder on another machine.
    """

    bytes: int = 0
    digest: str = ""  # hexadecimal BLAKE2b of 8 bytes; empty if `bytes` is 0

    @classmethod
    def of(cls, path: Path, size: int) -> Fingerprint | None:
        """Return the fingerprint of the first `size` bytes; None if the file is shorter."""
        if size == 0:
            return cls()
        with path.open("rb") as file:
            head = file.read(min(size, _HEAD_BYTES))
            at = max(len(head), size - _TAIL_BYTES)
            file.seek(at)
            tail = file.read(size - at)
        if len(head) < min(size, _HEAD_BYTES) or len(tail) < size - at:
            return None
        return cls(size, hashlib.blake2b(head + tail, digest_size=8).hexdigest())

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """Parse a fingerprint formatted by `str`; raise ValueError for other text."""
        size, colon, digest = text.partition(":")
        if not (colon and len(digest) == 16 and int(digest, 16) >= 0 and int(size) > 0):
            raise ValueError(f"{text!r} is not a fingerprint")
        return cls(int(size), digest)

    def __str__(self) -> str:
        return f"{self.bytes}:{self.digest}" if self.bytes else ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Read progress in a folder, or in one lane of it.

    All segments before segment `name` have been read. If `done`, that segment has been read to its end as well;
    otherwise the next row to read is row `row` after `address`.
    """

    name: str
    address: int = 0
    row: int = 0
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    done: bool = False

    @classmethod
    def of(cls, cursor: Cursor) -> Progress:
        """Parse what `to_json` wrote."""
        try:
            name, at, location = str(cursor.offset).rpartition("@")
            if not at or not name:
                raise ValueError(cursor.offset)
            if location == _DONE:
                return cls(name, done=True)
            address, _, text = location.partition(":")
            return cls(name, int(address or 0), cursor.row, Fingerprint.parse(text) if text else Fingerprint())
        except ValueError:
            raise StreamError(
                f"a position of FileStream is {{'files': ['<name>@<address>', row]}}; received {cursor.to_json()!r}"
            ) from None

    def to_json(self) -> list[Offset]:
        """Return ``[offset, row]``, the form used in positions."""
        if self.done:
            return Cursor(f"{self.name}@{_DONE}").to_json()
        suffix = f":{self.fingerprint}" if self.fingerprint.bytes else ""
        return Cursor(f"{self.name}@{self.address}{suffix}", self.row).to_json()


class OpenSegment:
    """An open segment, which is checked for changes of the bytes already read.

    If they changed, `read` raises StreamError, or starts again at the beginning if `restart`.
    """

    def __init__(self, folder: Path, progress: Progress, open_reader: Callable[[Path], Reader], restart: bool) -> None:
        self.folder, self.name, self.path = folder, progress.name, folder / progress.name
        self._open_reader, self._restarts = open_reader, restart
        self.reader: Reader | None = None
        self._start_at(progress)

    def _start_at(self, progress: Progress) -> None:
        self.close()
        self.address, self.row, self.fingerprint = progress.address, progress.row, progress.fingerprint
        self._last_stat: tuple[int, int, int] | None = None
        self._is_emptied = False

    def close(self) -> None:
        """Close the file."""
        reader, self.reader = self.reader, None
        with contextlib.suppress(OSError):  # the file is only read, so a failed close loses no data
            if reader is not None:
                reader.close()

    def read(self, finished: bool) -> Piece | None:
        """Return the next piece, or None if no complete row follows.

        Raises:
            StreamError: the segment is damaged or was replaced.
            OSError: the segment cannot be read at the moment.
        """
        while not self._is_emptied:
            if self.reader is None:
                self.reader = self._open()
            if self.is_unchanged():
                piece = self.reader.read(self.address, finished)
                if self.is_unchanged():  # the file may have changed during the read
                    return piece
        self.is_unchanged()
        return None

    def _open(self) -> Reader:
        stat = self.path.stat()
        self._inode = stat.st_ino
        if stat.st_size or not self.address:  # otherwise the segment was emptied after it had been read
            verify_checksum(self.path)
        return self._open_reader(self.path)

    def advance(self, piece: Piece) -> bool:
        """Advance past a piece; return False if the file has become too short for it."""
        assert self.reader is not None  # `read`, which gave the piece, has opened it
        size = self.reader.bytes_before(piece.end)
        if size != self.fingerprint.bytes:
            try:
                fingerprint = Fingerprint.of(self.path, size)
            except FileNotFoundError:  # deleted, but the open file remains readable
                fingerprint = self.fingerprint
            if fingerprint is None:
                return False
            self.fingerprint = fingerprint
        self.address, self.row = piece.end, max(0, self.row - int(piece.decoded.counts.sum()))
        return True

    def is_unchanged(self) -> bool:
        """Return whether the bytes already read are unchanged in the file.

        Raises:
            StreamError: the segment was replaced, rewritten, or emptied before it was read.
        """
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return True
        current, previous = (stat.st_ino, stat.st_size, stat.st_mtime_ns), self._last_stat
        if current == previous:
            return not self._is_emptied
        emptied = stat.st_size == 0 and (self.address > 0 or self.fingerprint.bytes > 0)
        # Without a fingerprint, check only that the file is not shorter than before.
        same = self.fingerprint.bytes > 0 or self.reader is None or self.reader.size() >= self.address
        same = same and not emptied and Fingerprint.of(self.path, self.fingerprint.bytes) == self.fingerprint
        # Set after the read above: if that fails, the next call checks again.
        self._last_stat, self._is_emptied = current, emptied
        if emptied:
            if previous is not None and isinstance(self.reader, TextReader) and previous[1] > self.address:
                raise StreamError(f"segment {self.name} in {self.folder} was emptied before it was read")
            logger.warning("segment %s was emptied after %s of it had been read", self.name, self._describe_read())
        elif not same:
            self._handle_replacement()
        elif self.reader is not None and self._inode != stat.st_ino:  # another file with the same content so far
            self.close()
        else:
            return True
        return False

    def _describe_read(self) -> str:
        size = self.fingerprint.bytes
        return f"{size} bytes" if size else f"{self.address} bytes or rows"

    def _handle_replacement(self) -> None:
        message = (
            f"segment {self.name} in {self.folder} is not the one from which {self._describe_read()} were read: "
            "it was replaced or written again"
        )
        if not self._restarts:
            raise StreamError(
                f"{message}. Segments must only grow: write new rows to a file with a later name, or pass "
                "on_change='restart' to read it from its start"
            )
        logger.warning("%s; it is read from its start", message)
        self._start_at(Progress(self.name))
