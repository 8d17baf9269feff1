"""A folder of segment files as a stream, read in name order and followed as it grows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from ...checks import choice, number
from ...errors import ConfigurationError, StreamError
from ..base import BufferedStream, Sharing
from ..batch import Cursor, Position, Span, cursors_of
from ..dead_letter import DeadLetter
from ..formats.decode import Decoder
from ..formats.schema import Schema
from ..formats.segments import CsvReader, Reader, TableReader, TextReader
from ..retry import Retry
from .folder_segments import LANES, PARTITION, Lanes, SegmentNames, is_laned, kind_of, lane_of
from .segment import OpenSegment, Progress

logger = logging.getLogger(__name__)

DONE = "_DONE"
_ENDS = ("never", "at_last")
_FORMATS = ("jsonl", "csv", "parquet", "arrow")


class FileStream(BufferedStream):
    """Rows of a folder's files, one after another in the order of their names.

    A segment is finished when a file with a later name exists, or when the folder holds a file ``_DONE``, which
    also ends the stream. Until then it is followed: new whole lines (or record batches) are read as they appear, a
    last line without its newline waits. Names that start with ``_`` or ``.`` or end in ``.tmp`` are not segments. What
    else the folder holds and `pattern` leaves out, or cannot be read (a folder, a name whose format is not known), is
    ignored, with one warning that names it.

    A position is ``{"files": ["<name>@<address>:<fingerprint>", row]}``; the address is a byte offset in text files
    and a row number in Parquet and Arrow files, so seeking reads nothing of what lies before. The fingerprint is of
    the bytes read so far. Segments must only grow: one that was replaced or written again is noticed by it, while it
    is followed and at a resume, and `on_change` says what then. (A change that leaves the first 16 KiB and the last
    4 KiB read as they were is not seen.) A segment that has been read to its end may be emptied or deleted, safely
    once a checkpoint lies behind it; deleting one that has not raises StreamError.

    A segment ``NAME`` with a file ``NAME.sha256`` beside it (`trainer.streams.write_checksum`) is compared with that
    checksum before its first row is read, and again at a resume; one that does not match raises StreamError.

    Several processes share a folder segment by segment (`streams.sources.folder_segments`): consecutive numbers in the
    names go to them in turn. A position then has one partition ``files:<lane>`` for every lane begun.

    Args:
        path: the folder, or a single file.
        schema: what the columns are to be, or a mapping of `Schema`'s arguments; None: as the Trainer's features say.
        pattern: shell pattern of segment names; None: every name with a suffix that segments have (.jsonl, .ndjson,
            .json, .csv, .tsv, .parquet, .arrow, .arrows, .feather; with `format` one of its own, or no suffix).
        format: "jsonl", "csv", "parquet" or "arrow"; None: by suffix.
        end: "never": wait for more; "at_last": the stream ends with what is there.
        poll_interval: seconds between looks at a folder that has nothing new.
        dead_letter: file for records that do not fit, or a `DeadLetter`.
        max_bad_share: largest share of such records; None: that of `dead_letter`, 0.01 for a new one.
        on_missing: what to do at a resume when the segment of the position is gone or empty: "error", or "skip" to
            go on with the next one.
        on_change: what to do with a segment that is not the one that was begun: "error", or "restart" to read what
            it holds now from its start.
        give_up_after: seconds of unbroken failure to list, open or read, after which StreamError names the file; None:
            never.
        names: CSV field names; None: the first line of each segment has them.
        delimiter: CSV field delimiter; None: a tab for ``.tsv``, else a comma.
        list_delimiter: between the values of a CSV field that holds a list.

    Raises:
        ConfigurationError: an unknown option, a path that does not exist, or pyarrow is needed and missing.
    """

    sharing = Sharing.PARTITIONED
    dead_letter: DeadLetter

    def __init__(
        self,
        path: str | Path,
        schema: Schema | Mapping[str, Any] | None = None,
        *,
        pattern: str | None = None,
        format: str | None = None,
        end: str = "never",
        poll_interval: float = 0.1,
        dead_letter: DeadLetter | str | Path | None = None,
        max_bad_share: float | None = None,
        on_missing: str = "error",
        on_change: str = "error",
        give_up_after: float | None = 300.0,
        names: list[str] | None = None,
        delimiter: str | None = None,
        list_delimiter: str = " ",
    ) -> None:
        super().__init__()
        choice("end", end, _ENDS)
        choice("format", format, _FORMATS, optional=True)
        choice("on_missing", on_missing, ("error", "skip"))
        choice("on_change", on_change, ("error", "restart"))
        self.path = Path(path)
        try:
            if not self.path.exists():
                raise ConfigurationError(f"FileStream takes a folder or file that exists; received {str(path)!r}")
        except OSError as error:
            raise ConfigurationError(f"FileStream cannot look for {str(path)!r}: {error.strerror}") from error
        self.folder, self._single = (self.path, None) if self.path.is_dir() else (self.path.parent, self.path.name)
        self._segments = SegmentNames(self.folder, self._single, pattern, format)
        self.pattern, self.format, self.end = pattern, format, end
        self.on_missing, self.on_change = on_missing, on_change
        self.names, self.delimiter, self.list_delimiter = names, delimiter, list_delimiter
        self.poll_interval = poll_interval
        self.dead_letter = DeadLetter.of(dead_letter, max_bad_share)
        self._decoder = Decoder(schema, self.dead_letter, f"files {self.path}", "json")
        self.schema = self._decoder.declared
        if format in ("parquet", "arrow"):
            from ..formats import arrow

            arrow.require()
        number("give_up_after", give_up_after, above=0, optional=True)
        self._retry = Retry(f"folder {self.folder}", give_up_after=give_up_after)
        self._listing: list[str] = []
        self._done = False
        self._finished: dict[str, tuple[int, str]] = {}
        self._ended = False
        self._rows_read = self._bytes_read = 0
        self._segment: OpenSegment | None = None
        self._lanes: Lanes | None = None

    def declare(self, schema: Schema) -> None:
        """Take what the columns are to be, where the stream was given no schema."""
        self.schema = self._decoder.declare(schema)

    def deal(self, rank: int, world: int) -> None:
        """Read only the segments of process `rank` of `world`, by the numbers in their names.

        Raises:
            ConfigurationError: there are more processes than lanes.
        """
        if world > LANES:
            raise ConfigurationError(f"FileStream divides a folder among at most {LANES} processes; there are {world}")
        if self._lanes is not None and (self._lanes.rank, self._lanes.world) == (rank, world):
            return
        self._lanes = Lanes(rank, world)
        self._start_at(None)

    @property
    def exhausted(self) -> bool:
        """Whether the last segment has been read to its end and no other will follow."""
        return self._ended and not self._ready

    def _start_at(self, begin: Progress | None) -> None:
        """Continue in a segment; None: before the first."""
        if self._segment is not None:
            self._segment.close()
        restart = self.on_change == "restart"
        self._segment = None if begin is None else OpenSegment(self.folder, begin, self._reader_of, restart)
        self._ended = False

    @property
    def _name(self) -> str:
        """Name of the segment under way; "" before the first."""
        return self._segment.name if self._segment is not None else ""

    def _list(self) -> None:
        """Look at the folder.

        Raises:
            StreamError: a segment that was seen and not read is gone.
            OSError: the folder cannot be read for now.
        """
        names, entries = self._segments.look()
        self._done = self.end == "at_last" or DONE in entries
        present, known = set(names), set(self._listing)
        gone = [name for name in self._listing if name not in present and self._wants(name)]
        if gone:
            raise StreamError(f"segment {gone[0]} in {self.folder} was deleted before it was read")
        new = [name for name in names if name not in known and name != self._name] if self._listing else []
        late = [name for name in new if self._is_past(name)]
        if late:
            begun = self._name if self._lanes is None else self._lanes.progress(late[0]).name
            logger.warning("segment %s appeared after %s had been begun and will not be read", late[0], begun)
        self._listing = names

    def _wants(self, name: str) -> bool:
        """Return whether a segment is to be read after the one under way."""
        if self._lanes is None:
            return name > self._name
        return name != self._name and self._lanes.wants(name)

    def _is_past(self, name: str) -> bool:
        if self._lanes is None:
            return name < self._name
        return self._lanes.reads(lane_of(name)) and not self._lanes.wants(name)

    def _later(self) -> str | None:
        return next((name for name in self._listing if self._wants(name)), None)

    def _is_finished(self) -> bool:
        """Return whether the segment under way will not grow: a later one exists, in any lane."""
        return self._done or any(name > self._name for name in self._listing)

    def _fetch(self, max_rows: int, timeout: float) -> None:
        deadline = monotonic() + timeout
        while not self._ready and not self._closed:
            try:
                if self._retry.wait(max(0.0, deadline - monotonic())):
                    moved = self._step()
                    self._retry.succeeded()
                    if moved:
                        continue
            except OSError as error:
                if error.filename is None and self._name:  # a read names no file
                    error = OSError(error.errno, error.strerror or str(error), str(self.folder / self._name))
                self._retry.failed(error)
            left = deadline - monotonic()
            if self._ended or left <= 0:
                return
            self._retry.pause(min(self.poll_interval, left))

    def _step(self) -> bool:
        """Read one piece or move to the next segment; return False when there is nothing to do for now."""
        if self._segment is not None and self._read():
            return True
        # Listed before the segment is read again, so that rows written before a later one appears are not missed.
        self._list()
        if self._segment is not None and self._read(finished=self._is_finished()):
            return True
        later = self._later()
        if self._segment is not None and (later is not None or (self._lanes is not None and self._is_finished())):
            self._remember_end(later or "")
        if later is not None:
            begun = None if self._lanes is None else self._lanes.progress(later)
            self._start_at(begun if begun is not None and begun.name == later and not begun.done else Progress(later))
            return True
        self._ended = self._done
        return False

    def _remember_end(self, later: str) -> None:
        self._finished[self._name] = (self._segment.address, later)
        if len(self._finished) > 1000:
            del self._finished[next(iter(self._finished))]
        if self._lanes is not None:
            self._lanes.finish(self._name)
            self._start_at(None)

    def _read(self, finished: bool = False) -> bool:
        """Read one piece of the current segment; return whether there was one.

        Raises:
            StreamError: the segment is gone before it was read, is damaged, or holds too many bad records.
            OSError: it cannot be read for now.
        """
        segment = self._segment
        try:
            piece = segment.read(finished)
        except FileNotFoundError:
            if self.on_missing == "skip":
                return False
            raise StreamError(f"segment {segment.name} in {self.folder} was deleted before it was read") from None
        if piece is None:
            return False
        start, skip = segment.address, segment.row
        if not segment.advance(piece):
            return False
        self._rows_read += int(piece.decoded.counts.sum())
        self._bytes_read += piece.end - start
        at, after = f"{segment.name}@{start}", f"{segment.name}@{piece.end}"
        partition = PARTITION if self._lanes is None else f"{PARTITION}:{lane_of(segment.name)}"
        batch = self._decoder.batch(piece.decoded, [Span(partition, at, 0, 0, after)], {0: skip} if skip else None)
        if batch is not None:
            # Added here: offsets in the dead-letter file do not depend on the rows read together.
            at, after = f"{at}:{segment.fingerprint}", f"{after}:{segment.fingerprint}"
            spans = [span._replace(offset=at, next_offset=span.next_offset and after) for span in batch.spans]
            self._push(replace(batch, spans=tuple(spans)))
        return True

    def _reader_of(self, path: Path) -> Reader:
        kind = kind_of(path.name, self.format)
        if kind == "table":
            return TableReader(path, self._decoder)
        if kind == "jsonl":
            return TextReader(path, self._decoder)
        delimiter = self.delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
        return CsvReader(path, self._decoder, self.names, delimiter, self.list_delimiter)

    def seek(self, position: Position) -> None:
        """Go on reading at `position`.

        Raises:
            StreamError: the position is not one of this stream's, or its segment is gone (see `on_missing`).
        """
        self._clear()
        self._listing = []
        if self._lanes is None and is_laned(position):
            self._lanes = Lanes()  # several processes have read it; this process goes on alone
        if self._lanes is not None:
            self._position = self._lanes.seek(position)
            self._start_at(None)
            for begun in self._lanes.begun():
                self._check_begun(begun)
            return
        cursors = cursors_of(self, position, (PARTITION,))
        self._position = dict(position)
        self._start_at(None)
        if PARTITION in cursors:
            self._check_begun(Progress.of(cursors[PARTITION]))

    def _check_begun(self, begun: Progress) -> None:
        """Check that the segment of a position is there; without lanes, start there."""
        if not self._segments.takes(begun.name):
            raise StreamError(
                f"the position is in {begun.name!r}, which is no segment of {self.folder} (pattern={self.pattern!r}, "
                f"format={self.format!r})"
            )
        if self._lanes is None:
            self._start_at(begun)
        path = self.folder / begun.name
        try:
            exists = path.is_file()
            if exists and path.stat().st_size > 0:
                if self._segment is not None and begun.read.bytes:
                    self._segment.is_unchanged()
                return
        except OSError:  # unknown for now; reading looks again
            return
        if begun.address or begun.row:
            message = (
                f"segment {begun.name} in {self.folder}, read up to {begun.address} row {begun.row}, is "
                f"{'empty' if exists else 'gone'}"
            )
            if self.on_missing == "error":
                raise StreamError(
                    f"{message}; rows after that may be lost. Put it back, or pass on_missing='skip' to go on"
                )
            logger.warning("%s; going on with the next one", message)

    def resolve(self, position: Position) -> Position:
        """Return `position`, moved to the next segment where it is the end of a finished one."""
        resolved = dict(position)
        for partition, value in position.items():
            if partition.startswith("@"):
                continue
            at = Progress.of(Cursor.of(value))
            end, later = self._finished.get(at.name, (None, ""))
            if end is not None and not at.done and not at.row and at.address >= end:
                moved = Progress(later) if partition == PARTITION else Progress(at.name, done=True)
                resolved[partition] = moved.to_json()
        return resolved

    def lag(self) -> int | None:
        """Return the rows waiting: estimated from bytes in text files; None while that is unknown."""
        segment = self._segment
        address = 0 if segment is None else segment.address
        if segment is not None and isinstance(segment.reader, TableReader):
            return None if self._later() else segment.reader.size() - address + self._ready_rows
        if not self._rows_read:
            return None
        try:
            unread = [name for name in self._listing if name == self._name or self._wants(name)]
            sizes = [(self.folder / name).stat().st_size for name in unread]
        except OSError:
            return None
        waiting = max(0, sum(sizes) - address)
        return self._ready_rows + round(waiting * self._rows_read / max(1, self._bytes_read))

    def close(self) -> None:
        """Close the segment and the dead-letter file."""
        super().close()
        self._retry.stop()
        self.dead_letter.close()
