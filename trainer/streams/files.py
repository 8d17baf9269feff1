"""A folder of segment files as a stream, read in name order and followed as it grows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from ..checks import choice
from ..errors import ConfigurationError, StreamError
from .base import BufferedStream, Position, require_partitions
from .dead_letter import DeadLetter
from .decode import Decoder
from .fingerprint import Fingerprint
from .lanes import END, LANES, PARTITION, Lanes, is_laned, lane_of, parse
from .retry import Retry
from .schema import Schema
from .segment_names import SegmentNames, kind_of
from .segments import CsvReader, Reader, TableReader, TextReader

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
    the bytes read so far. Segments must only grow: one that was replaced or written anew is noticed by it, while it
    is followed and at a resume, and `on_change` says what then. (A change that leaves the first 16 KiB and the last
    4 KiB read as they were is not seen.) A segment that has been read to its end may be emptied or deleted, safely
    once a checkpoint lies behind it; deleting one that has not raises StreamError.

    Several processes share a folder segment by segment (`trainer.streams.lanes`): consecutive numbers in the names go
    to them in turn. A position then has one partition ``files:<lane>`` for every lane begun.

    Args:
        path: the folder, or a single file.
        schema: what the columns are to be, or a mapping of `Schema`'s arguments.
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
        names: CSV field names; None: the first line of each segment has them.
        delimiter: CSV field delimiter; None: a tab for ``.tsv``, else a comma.
        list_delimiter: between the values of a CSV field that holds a list.

    Raises:
        ConfigurationError: an unknown option, a path that does not exist, or pyarrow is needed and missing.
    """

    partitioned = True

    def __init__(
        self,
        path: str | Path,
        schema: Schema | Mapping[str, Any],
        *,
        pattern: str | None = None,
        format: str | None = None,
        end: str = "never",
        poll_interval: float = 0.1,
        dead_letter: DeadLetter | str | Path | None = None,
        max_bad_share: float | None = None,
        on_missing: str = "error",
        on_change: str = "error",
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
        if not self.path.exists():
            raise ConfigurationError(f"FileStream takes a folder or file that exists; received {str(path)!r}")
        self.folder, self._single = (self.path, None) if self.path.is_dir() else (self.path.parent, self.path.name)
        self._segments = SegmentNames(self.folder, self._single, pattern, format)
        self.pattern, self.format, self.end = pattern, format, end
        self.on_missing, self.on_change = on_missing, on_change
        self.names, self.delimiter, self.list_delimiter = names, delimiter, list_delimiter
        self.poll_interval = poll_interval
        self.dead_letter = DeadLetter.of(dead_letter, max_bad_share)
        self._decoder = Decoder(schema, self.dead_letter, f"files {self.path}", "json")
        self.schema = self._decoder.schema
        if format in ("parquet", "arrow"):
            from . import arrow

            arrow.require()
        self._retry = Retry(f"folder {self.folder}")
        self._listing: list[str] = []
        self._done = False
        self._listed_at = -float("inf")
        self._finished: dict[str, tuple[int, str]] = {}
        self._ended = False
        self._rows_read = self._bytes_read = 0
        self._reader: Reader | None = None
        self._lanes: Lanes | None = None
        self._start_at(None, 0, 0)

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
        self._start_at(None, 0, 0)

    @property
    def exhausted(self) -> bool:
        """Whether the last segment has been read to its end and no other will follow."""
        return self._ended and not self._ready

    def _start_at(self, name: str | None, address: int, skip: int, read: Fingerprint | None = None) -> None:
        """Go on at row `skip` from `address` of segment `name`, of which `read` was read; None: before the first."""
        self._close_reader()
        self._name, self._address, self._skip = name, address, skip
        self._print = read or Fingerprint()
        self._seen: tuple[int, int, int] | None = None
        self._emptied = False
        self._ended = False

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None

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
            begun = self._name if self._lanes is None else self._lanes.place(late[0]).name
            logger.warning("segment %s appeared after %s had been begun and will not be read", late[0], begun)
        self._listing = names
        self._listed_at = monotonic()

    def _wants(self, name: str) -> bool:
        """Return whether a segment is to be read after the one under way."""
        if self._lanes is None:
            return name > (self._name or "")
        return name != self._name and self._lanes.wants(name)

    def _is_past(self, name: str) -> bool:
        if self._lanes is None:
            return name < (self._name or "")
        return self._lanes.reads(lane_of(name)) and not self._lanes.wants(name)

    def _later(self) -> str | None:
        return next((name for name in self._listing if self._wants(name)), None)

    def _is_finished(self) -> bool:
        """Return whether the segment under way will not grow: a later one exists, whosever it is."""
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
                self._retry.failed(error)
            left = deadline - monotonic()
            if self._ended or left <= 0:
                return
            self._retry.pause(min(self.poll_interval, left))

    def _step(self) -> bool:
        """Read one piece or move to the next segment; return False when there is nothing to do for now."""
        if self._name is not None and self._read():
            return True
        # Listed before the segment is read again: what is written before a later one appears is not missed.
        self._list()
        if self._name is not None and self._read(finished=self._is_finished()):
            return True
        later = self._later()
        if self._name is not None and (later is not None or (self._lanes is not None and self._is_finished())):
            self._remember_end(later or "")
        if later is not None:
            self._begin(later)
            return True
        self._ended = self._done
        return False

    def _begin(self, name: str) -> None:
        place = None if self._lanes is None else self._lanes.place(name)
        if place is not None and place.name == name and not place.done:
            self._start_at(name, place.address, place.row, place.read)
        else:
            self._start_at(name, 0, 0)

    def _remember_end(self, later: str) -> None:
        self._finished[self._name] = (self._address, later)
        if len(self._finished) > 1000:
            del self._finished[next(iter(self._finished))]
        if self._lanes is not None:
            self._lanes.finish(self._name)
            self._start_at(None, 0, 0)

    def _read(self, finished: bool = False) -> bool:
        """Read one piece of the current segment; return whether there was one.

        Raises:
            StreamError: the segment is gone before it was read, is damaged, or holds too many bad records.
            OSError: it cannot be read for now.
        """
        try:
            if self._reader is None:
                self._reader = self._open()
            unchanged = self._check()
            piece = self._reader.read(self._address, finished) if unchanged else None
            unchanged = unchanged and self._check()  # else a change while it was read would be taken in
        except FileNotFoundError:
            if self.on_missing == "skip":
                return False
            raise StreamError(f"segment {self._name} in {self.folder} was deleted before it was read") from None
        if piece is None or not unchanged:
            return not unchanged and not self._emptied
        start, skip = self._address, self._skip
        if not self._remember(self._reader.bytes_before(piece.end)):
            return False  # it shrank this moment; the next look says how
        rows = int(piece.decoded.counts.sum())
        self._rows_read += rows
        self._bytes_read += piece.end - start
        self._address, self._skip = piece.end, max(0, skip - rows)
        at, after = f"{self._name}@{start}", f"{self._name}@{piece.end}"
        partition = PARTITION if self._lanes is None else f"{PARTITION}:{lane_of(self._name)}"
        batch = self._decoder.batch(piece.decoded, [(partition, at, after)], {0: skip} if skip else None)
        if batch is not None:
            # Added here: the dead-letter file's places stay the same whatever is read together with them.
            at, after = f"{at}:{self._print}", f"{after}:{self._print}"
            spans = [span._replace(offset=at, next_offset=span.next_offset and after) for span in batch.spans]
            self._push(replace(batch, spans=tuple(spans)))
        return True

    def _remember(self, size: int) -> bool:
        """Take the fingerprint of the first `size` bytes; return whether there are so many."""
        if size != self._print.bytes:
            try:
                fingerprint = Fingerprint.of(self.folder / self._name, size)
            except FileNotFoundError:  # deleted; what is open can be read to its end, and is never looked at again
                fingerprint = self._print
            if fingerprint is None:
                return False
            self._print = fingerprint
        return True

    def _check(self) -> bool:
        """Return whether the segment is still the one that was begun and what was read of it may be used.

        Raises:
            StreamError: it was replaced or written anew (see `on_change`).
        """
        path = self.folder / self._name
        try:
            stat = path.stat()
        except FileNotFoundError:
            return True
        seen, before = (stat.st_ino, stat.st_size, stat.st_mtime_ns), self._seen
        if seen == before:
            return not self._emptied
        self._seen = seen
        self._emptied = stat.st_size == 0 and (self._address > 0 or self._print.bytes > 0)
        if self._emptied:
            if before is not None and isinstance(self._reader, TextReader) and before[1] > self._address:
                raise StreamError(f"segment {self._name} in {self.folder} was emptied before it was read")
            logger.warning("segment %s was emptied after %s of it had been read", self._name, self._so_far())
            return False
        known = self._print.bytes > 0 or self._reader is None or self._reader.size() >= self._address
        if not known or Fingerprint.of(path, self._print.bytes) != self._print:
            self._changed()
            return False
        if self._reader is not None and self._opened != stat.st_ino:  # another file with the same beginning
            self._close_reader()
            return False
        return True

    def _so_far(self) -> str:
        return f"{self._print.bytes or self._address} {'bytes' if self._print.bytes else 'bytes or rows'}"

    def _changed(self) -> None:
        message = (
            f"segment {self._name} in {self.folder} is not the one of which {self._so_far()} were read: "
            "it was replaced or written anew"
        )
        if self.on_change == "error":
            raise StreamError(
                f"{message}. Segments must only grow: write new rows to a file with a later name, or pass "
                "on_change='restart' to read it from its start"
            )
        logger.warning("%s; it is read from its start", message)
        self._start_at(self._name, 0, 0)

    def _open(self) -> Reader:
        path = self.folder / self._name
        self._opened = path.stat().st_ino
        kind = kind_of(self._name, self.format)
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
            self._lanes = Lanes()  # several processes have read it; this one reads on alone
        if self._lanes is not None:
            self._position = self._lanes.seek(position)
            self._start_at(None, 0, 0)
            for place in self._lanes.begun():
                self._check_place(place.name, place.address, place.row)
            return
        require_partitions(self, position, (PARTITION,))
        self._position = dict(position)
        if PARTITION not in position:
            self._start_at(None, 0, 0)
            return
        place = parse(position[PARTITION])
        self._check_place(place.name, place.address, place.row, place.read)

    def _check_place(self, name: str, address: int, row: int, read: Fingerprint | None = None) -> None:
        """Make sure that the segment of a position is there, and with `read` start at it."""
        if not self._segments.takes(name):
            raise StreamError(
                f"the position is in {name!r}, which is no segment of {self.folder} (pattern={self.pattern!r}, "
                f"format={self.format!r})"
            )
        if read is not None:
            self._start_at(name, address, row, read)
        path = self.folder / name
        there = path.is_file()
        if there and path.stat().st_size > 0:
            if read is not None and read.bytes:
                self._check()
        elif address or row:
            message = (
                f"segment {name} in {self.folder}, read up to {address} row {row}, is {'empty' if there else 'gone'}"
            )
            if self.on_missing == "error":
                raise StreamError(
                    f"{message}; rows after that may be lost. Put it back, or pass on_missing='skip' to go on"
                )
            logger.warning("%s; going on with the next one", message)

    def resolve(self, position: Position) -> Position:
        """Return `position`, moved to the next segment where it is the end of a finished one."""
        return {partition: self._resolved(partition, value) for partition, value in position.items()}

    def _resolved(self, partition: str, value: Any) -> Any:
        if partition.startswith("@"):
            return value
        place = parse(value)
        end, later = self._finished.get(place.name, (None, ""))
        if end is None or place.done or place.row or place.address < end:
            return value
        return [f"{place.name}@{END}" if partition != PARTITION else f"{later}@0", 0]

    def lag(self) -> int | None:
        """Return the rows waiting: estimated from bytes in text files; None while that cannot be told."""
        reader = self._reader
        if isinstance(reader, TableReader):
            return None if self._later() else reader.size() - self._address + self._ready_rows
        if not self._rows_read:
            return None
        try:
            unread = [name for name in self._listing if name == self._name or self._wants(name)]
            sizes = [(self.folder / name).stat().st_size for name in unread]
        except OSError:
            return None
        waiting = max(0, sum(sizes) - self._address)
        return self._ready_rows + round(waiting * self._rows_read / max(1, self._bytes_read))

    def close(self) -> None:
        """Close the segment and the dead-letter file."""
        super().close()
        self._retry.stop()
        self.dead_letter.close()
