"""A stream that reads a folder of segment files and follows it as it grows."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

from ...checks import choice, number
from ...errors import ConfigurationError, StreamError
from ...storage.cached_segments import CachedSegments
from ...storage.location import is_url
from ..base import BufferedStream, Sharing
from ..batch import Cursor, Position, Span, cursors_of
from ..dead_letter import DeadLetter
from ..formats import arrow
from ..formats.decode import MAX_RECORD_BYTES, Decoder
from ..formats.schema import Schema
from ..formats.segments import CsvReader, ParquetReader, Reader, TextReader
from ..retry import Retry
from .finished_segments import FinishedSegments
from .folder_segments import LANES, PARTITION, Lanes, SegmentNames, folder_and_name, has_lanes, kind_of, lane_of
from .segment import OpenSegment, Progress

logger = logging.getLogger(__name__)

DONE = "_DONE"


class FileStream(BufferedStream):
    """A stream of the rows in a folder's files, read in the order of the file names.

    Each file is a segment. A segment is finished when a file with a later name exists, or when the folder contains a
    file ``_DONE``, which also ends the stream. Until then the stream follows the segment: it reads complete lines as
    they appear. Names that start with ``_`` or ``.`` or end with ``.tmp`` are not segments. Other entries are ignored
    if `pattern` excludes them or if they cannot be read (folders, unknown formats); a warning names them.

    A position is ``{"files": ["<name>@<address>:<fingerprint>", row]}``. The address is a byte offset in text files and
    a row number in Parquet files, so `seek` does not read the data before it. The fingerprint is a hash of the first 16
    KiB and the last 4 KiB read so far. Segments must only grow. The stream compares fingerprints while it follows a
    segment and on resume, so it detects a segment that was replaced or rewritten, unless the hashed bytes are the same;
    `on_change` decides what happens then.

    A segment that was read to its end may be emptied or deleted once a later checkpoint exists. Deleting an unread
    segment raises StreamError. Rows that are added to a segment after it was read to its end are not read; `late_rows`
    counts them, and a warning names the segment.

    If a segment ``NAME`` has a file ``NAME.sha256`` next to it (see `trainer.streams.write_checksum`), the stream
    verifies the checksum before it reads the first row and again on resume. A mismatch raises StreamError.

    Several processes divide a folder by segments: consecutive numbers in the segment names go to the processes in turn.
    A position then has one partition ``files:<lane>`` for every lane begun (see `streams.sources.folder_segments`).

    Args:
        path: a folder, a single file, or the URL of either, such as ``s3://bucket/folder``. Each segment at a URL is
            copied to the local disk while it is read.
        schema: a `Schema`, or a mapping of its arguments. None uses the columns of the Trainer's features.
        pattern: shell pattern of segment names. None selects all names with the suffix .jsonl, .ndjson, .json, .csv,
            .tsv or .parquet. If `format` is given, None selects the suffixes of that format, and names without suffix.
        format: "jsonl", "csv" or "parquet"; None derives it from the suffix.
        end: "never" to wait for more rows, or "at_last" to end the stream after the rows that exist now.
        poll_interval: seconds between checks of a folder without new rows.
        dead_letter: file for bad records, or a `DeadLetter`.
        max_bad_share: largest share of bad records. None uses the share of `dead_letter`, which is 0.01 by default.
        max_record_bytes: maximum length of a line of text in bytes; a longer line is a bad row. Reading a line takes up
            to 8 times its size in memory, and more for a JSON line with many small values that pyarrow rejects.
        on_missing: what to do on resume if the segment of the position is missing or empty: "error", or "skip" to
            continue with the next segment.
        on_change: what to do if a segment was replaced after reading began: "error", or "restart" to read its new
            content from the start.
        give_up_after: seconds of unbroken failure to list, open or read, after which StreamError is raised; None to
            retry forever.
        names: CSV field names; None if the first line of each segment has them. The schema declares the rest of the CSV
            format.
        list_delimiter: delimiter between the values of a CSV field that holds a list.

    Raises:
        ConfigurationError: an option is unknown, the path does not exist, the URL cannot be used, or pyarrow is needed
            and missing.
    """

    sharing = Sharing.PARTITIONED
    counts_rows = True
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
        max_record_bytes: int = MAX_RECORD_BYTES,
        on_missing: str = "error",
        on_change: str = "error",
        give_up_after: float | None = 300.0,
        names: list[str] | None = None,
        list_delimiter: str = " ",
    ) -> None:
        super().__init__()
        choice("end", end, ("never", "at_last"))
        choice("format", format, ("jsonl", "csv", "parquet"), optional=True)
        choice("on_missing", on_missing, ("error", "skip"))
        choice("on_change", on_change, ("error", "restart"))
        self.path = Path(path)
        self._cache = cache = CachedSegments(str(path)) if is_url(path) else None
        self.folder, single = folder_and_name(self.path) if cache is None else (cache.folder, cache.single)
        self._segments = SegmentNames(self.folder, single, pattern, format, cache)
        self.pattern, self.format, self.end = pattern, format, end
        self.on_missing, self.on_change = on_missing, on_change
        self.names, self.list_delimiter = names, list_delimiter
        self.poll_interval = poll_interval
        self.dead_letter = DeadLetter.of(dead_letter, max_bad_share)
        self._decoder = Decoder(schema, self.dead_letter, f"files {path}", "json", max_record_bytes)
        self.schema = self._decoder.declared
        if format == "parquet":
            arrow.require()
        number("give_up_after", give_up_after, above=0, optional=True)
        number("poll_interval", poll_interval, minimum=0, what="seconds")
        self._retry = Retry(f"folder {self._label}", give_up_after=give_up_after)
        self._listing: list[str] | None = None  # segments at the last listing; None before the first one
        self._unread: deque[str] = deque()  # segments unread at the last listing
        self._sizes: dict[str, int] = {}  # sizes of unread finished segments, in bytes
        self._no_more_segments = False  # whether the folder is complete
        self._finished = FinishedSegments(self.folder, self._open_reader, cache)
        self._rows_read = self._bytes_read = 0
        self._segment: OpenSegment | None = None
        self._lanes: Lanes | None = None

    @property
    def _label(self) -> str:
        return str(self.folder) if self._cache is None else self._cache.location.display_url("")

    def declare(self, schema: Schema) -> None:
        self._use_schema(self._decoder.declare(schema))

    def assign_partitions(self, rank: int, world: int) -> None:
        """Read only the segments of one rank, by the numbers in the segment names.

        Raises:
            ConfigurationError: there are more processes than lanes.
        """
        if world > LANES:
            raise ConfigurationError(f"FileStream divides a folder among at most {LANES} processes; there are {world}")
        if self._lanes is not None and (self._lanes.rank, self._lanes.world) == (rank, world):
            return
        self._lanes = Lanes(rank, world)
        self._listing = None
        self._start_at(None)

    def _start_at(self, progress: Progress | None) -> None:
        """Continue at `progress`, or before the first segment if it is None."""
        if self._segment is not None:
            self._segment.close()
        restart = self.on_change == "restart"
        self._segment = None if progress is None else OpenSegment(self.folder, progress, self._open_reader, restart)
        self._ended = False

    @property
    def _segment_name(self) -> str:
        return self._segment.name if self._segment is not None else ""

    def _refresh_listing(self, force: bool = False) -> None:
        """List the folder if it has changed, or always if `force`.

        Raise StreamError if an unread segment was deleted.
        """
        previous, segments = self._listing, self._segments
        segments.refresh(force or previous is None)
        self._no_more_segments = self.end == "at_last" or DONE in segments.entries
        names = segments.names
        if names is previous:
            return
        if previous:
            present, known = set(names), {*previous, self._segment_name}
            missing = next((name for name in previous if name not in present and self._must_read(name)), None)
            if missing is not None:
                self._raise_deleted(missing)
            late = next((name for name in names if name not in known and self._is_past(name)), None)
            if late is not None:
                progress = None if self._lanes is None else self._lanes.progress(late)
                current = self._segment_name if progress is None else progress.name
                logger.warning("segment %s appeared after %s had been begun and will not be read", late, current)
        self._listing = names
        self._unread = deque(name for name in names if self._must_read(name))

    def _raise_deleted(self, name: str) -> NoReturn:
        raise StreamError(f"segment {name} in {self._label} was deleted before it was read") from None

    def _must_read(self, name: str) -> bool:
        """Return whether a segment must be read after the current one."""
        if self._lanes is None:
            return name > self._segment_name
        return name != self._segment_name and self._lanes.must_read(name)

    def _is_past(self, name: str) -> bool:
        """Return whether a segment lies before the current one, or its lane's progress."""
        if self._lanes is None:
            return name < self._segment_name
        return self._lanes.reads(lane_of(name)) and not self._lanes.must_read(name)

    def _next_unread(self) -> str | None:
        while self._unread and not self._must_read(self._unread[0]):
            self._unread.popleft()
        return self._unread[0] if self._unread else None

    def _is_finished(self) -> bool:
        """Return whether the current segment is finished: a later one exists in any lane."""
        listing = self._listing
        return self._no_more_segments or (listing is not None and len(listing) > 0 and listing[-1] > self._segment_name)

    @property
    def retrying(self) -> bool:
        return self._retry.failures > 0

    def _fetch(self, max_rows: int, timeout: float) -> None:
        deadline = monotonic() + timeout
        while not self._ready and not self._closed:
            try:
                if self._retry.wait(max(0.0, deadline - monotonic())):
                    progressed = self._advance()
                    self._retry.succeeded()
                    if progressed:
                        continue
            except OSError as error:
                if error.filename is None and self._segment_name:  # read errors contain no file name
                    error = OSError(error.errno, error.strerror or str(error), f"{self._label}/{self._segment_name}")
                self._retry.failed(error)
            remaining = deadline - monotonic()
            if self._ended or remaining <= 0:
                return
            self._retry.pause(min(self.poll_interval, remaining))

    def _advance(self) -> bool:
        """Read one piece or move to the next segment; return False if nothing is left."""
        if self._segment is not None and self._read_piece(self._segment):
            return True
        # List the folder before reading again, so that rows written before a later segment appeared are not missed.
        self._refresh_listing()
        if self._segment is not None and self._read_piece(self._segment, finished=self._is_finished()):
            return True
        self._finished.check(False)
        next_name = self._next_unread()
        if self._segment is not None and (next_name is not None or (self._lanes is not None and self._is_finished())):
            self._finish_segment(self._segment, next_name or "")
        if next_name is not None:
            progress = None if self._lanes is None else self._lanes.progress(next_name)
            is_begun = progress is not None and progress.name == next_name and not progress.done
            self._start_at(progress if is_begun else Progress(next_name))
            return True
        if self._no_more_segments:
            self._refresh_listing(force=True)
            if self._next_unread() is not None or not self._no_more_segments:
                return True
            if not self._ended:
                self._finished.check(True)
            self._ended = True
        return False

    def _finish_segment(self, segment: OpenSegment, next_name: str) -> None:
        self._finished.add(segment, next_name)
        if self._cache is not None:
            self._cache.evict(segment.name)
        if self._lanes is not None:
            self._lanes.finish(segment.name)
            self._start_at(None)

    def _read_piece(self, segment: OpenSegment, finished: bool = False) -> bool:
        """Read one piece of the current segment; return whether there was one."""
        try:
            if self._cache is not None:
                self._cache.fetch(segment.name)
            piece = segment.read(finished)
        except FileNotFoundError:
            if self.on_missing == "error":
                self._raise_deleted(segment.name)
            return False
        if piece is None:
            return False
        start, skip = segment.address, segment.row
        if not segment.advance(piece):
            return False
        self._rows_read += int(piece.decoded.counts.sum())
        self._bytes_read += piece.end - start
        offset, next_offset = f"{segment.name}@{start}", f"{segment.name}@{piece.end}"
        partition = PARTITION if self._lanes is None else f"{PARTITION}:{lane_of(segment.name)}"
        origin = Span(partition, offset, 0, 0, next_offset)
        batch = self._decoder.batch(piece.decoded, [origin], {0: skip} if skip else None)
        if batch is not None:
            # Add fingerprints only here, so that offsets in the dead-letter file do not depend on the batches.
            offset, next_offset = f"{offset}:{segment.fingerprint}", f"{next_offset}:{segment.fingerprint}"
            spans = [span._replace(offset=offset, next_offset=span.next_offset and next_offset) for span in batch.spans]
            self._push(replace(batch, spans=tuple(spans)))
        return True

    def _open_reader(self, path: Path) -> Reader:
        kind = kind_of(path.name, self.format)
        if kind == "parquet":
            return ParquetReader(path, self._decoder)
        if kind == "jsonl":
            return TextReader(path, self._decoder)
        csv_format = self._decoder.schema.csv.for_file(path)
        return CsvReader(path, self._decoder, self.names, csv_format, self.list_delimiter)

    def seek(self, position: Position) -> None:
        """Continue reading at `position`.

        Raises:
            StreamError: the position belongs to another stream, or its segment is missing (see `on_missing`).
        """
        self._clear()
        self._listing = None
        watched, position = position, {k: v for k, v in position.items() if not FinishedSegments.is_own_key(k)}
        if self._lanes is None and has_lanes(position):
            self._lanes = Lanes()  # several processes wrote the position; this process continues alone
        if self._lanes is not None:
            self._position = self._lanes.seek(position)
            begun: Iterable[Progress] = self._lanes.open_segments()
        else:
            begun = map(Progress.of, cursors_of(self, position, (PARTITION,)).values())
            self._position = dict(position)
        self._start_at(None)
        for progress in begun:
            self._check_segment_exists(progress)
        self._finished.seek(watched, self._is_past)

    def _check_segment_exists(self, progress: Progress) -> None:
        """Check that the segment of a position exists; start there unless there are lanes."""
        if not self._segments.is_segment(progress.name):
            raise StreamError(
                f"the position is in {progress.name!r}, which is not a segment of {self._label} (pattern="
                f"{self.pattern!r}, format={self.format!r})"
            )
        if self._lanes is None:
            self._start_at(progress)
        path = self.folder / progress.name
        try:
            if self._cache is not None:
                self._cache.fetch(progress.name)
            exists = path.is_file()
            if exists and path.stat().st_size > 0:
                if self._segment is not None and progress.fingerprint.bytes:
                    self._segment.is_unchanged()
                return
        except OSError:  # the check is not possible now; reading checks again
            return
        if progress.address or progress.row:
            message = (
                f"segment {progress.name} in {self._label}, read up to {progress.address} row {progress.row}, is "
                f"{'empty' if exists else 'gone'}"
            )
            if self.on_missing == "error":
                raise StreamError(
                    f"{message}; rows after that may be lost. Restore it, or pass on_missing='skip' to continue"
                )
            logger.warning("%s; continuing with the next one", message)

    def resolve(self, position: Position) -> Position:
        # Move from the end of a finished segment to the next one, so that a resume does not need the old file.
        resolved = {name: value for name, value in position.items() if not FinishedSegments.is_own_key(name)}
        resolved |= self._finished.position()
        for partition in [partition for partition in position if not partition.startswith("@")]:
            progress = Progress.of(Cursor.of(position[partition]))
            end_address, next_name = self._finished.end_of(progress.name) or (None, "")
            if end_address is not None and not progress.done and not progress.row and progress.address >= end_address:
                next_progress = Progress(next_name) if partition == PARTITION else Progress(progress.name, done=True)
                resolved[partition] = next_progress.to_json()
        return resolved

    def lag(self) -> int | None:
        """Return the number of unread rows, or None while unknown.

        For text files it is estimated from the unread bytes and the average size of the rows read.
        """
        segment = self._segment
        address = 0 if segment is None else segment.address
        if segment is not None and isinstance(segment.reader, ParquetReader):
            return None if self._next_unread() else segment.reader.size() - address + self._ready_rows
        if not self._rows_read:
            return None
        unread = {self._segment_name, *filter(self._must_read, self._unread)}
        unread &= self._segments.entries
        newest = max(unread, default="")
        sizes = {name: self._sizes[name] for name in self._sizes.keys() & unread}
        try:
            for name in unread - sizes.keys():
                sizes[name] = self._cache.size(name) if self._cache else (self.folder / name).stat().st_size
        except OSError:
            return None
        waiting = max(0, sum(sizes.values()) - address)
        self._sizes = {name: size for name, size in sizes.items() if name != newest}
        return self._ready_rows + round(waiting * self._rows_read / max(1, self._bytes_read))

    def late_rows(self) -> int | None:
        return self._finished.late_rows

    def close(self) -> None:
        super().close()
        self._retry.stop()
        self.dead_letter.close()
        if self._cache is not None:
            self._start_at(None)
            self._cache.close()
