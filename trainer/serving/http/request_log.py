"""Logs the rows that a server answered, as data for later training."""

from __future__ import annotations

import asyncio
import datetime
import functools
import json
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ...embedding.tables.hashing import stable_seed
from ...errors import ConfigurationError
from ...streams.retry import Retry
from ...streams.sinks import Sink, sink_for
from ...streams.sources.pending import hash_to_unit
from ...streams.sources.served import LOG_COLUMNS, SERVED_AT
from .batching import ScoredRequest
from .request_rows import RowReader
from .service_call import RefusalError, ServeOptions
from .traffic import Traffic

logger = logging.getLogger(__name__)

_BATCH_ROWS = 2_000
_SHARE_SEED = stable_seed("share of logged requests")  # no other sample of the same ids has this seed
_LONGEST_ID = 200
_LONGEST_WAIT = 5.0  # maximum seconds between attempts to write


def request_id(caller_id: Any) -> str:
    """Return the id of a request: the caller's, or a random one if that is None.

    Raises:
        RefusalError: the caller's id is empty, too long or not printable (status 400).
    """
    if caller_id is None:
        return uuid.uuid4().hex
    text = str(caller_id)
    has_type = isinstance(caller_id, str | int) and not isinstance(caller_id, bool)
    if not (has_type and text.isascii() and text.isprintable() and 0 < len(text) <= _LONGEST_ID):
        accepts = f"1 to {_LONGEST_ID} printable ASCII characters"
        raise RefusalError(400, f"the id of a request takes {accepts}; received {text[:80]!r}")
    return text


def row_ids(request: str, rows: int) -> list[str]:
    """Return the ids of a request's rows: ID for one row, else ID/0, ID/1 ..."""
    return [request] if rows == 1 else [f"{request}/{row}" for row in range(rows)]


@dataclass(frozen=True, eq=False)
class _LogEntry:
    """The answer to one request, queued for writing."""

    id: str
    time: float  # seconds since the epoch
    scored: ScoredRequest
    written: asyncio.Future | None  # completes when the answer has been written durably
    recommended: Mapping[str, Any] | None  # the request and the items, logged instead of raw row and score


class RequestLog:
    """Writes answered rows on its own thread, so that answers do not wait for a disk.

    Failed writes are retried until the server stops. When more than `options.log_queue_rows` rows are queued, further
    rows are dropped. `trainer_serve_log_rows_total` counts all rows by outcome. For lists of recommended items this
    metric is `trainer_serve_recommended_log_rows_total`.

    Args:
        target: folder or URL to write to.
        options: options of the server.
        traffic: counts the rows.
        name: prefix of the log's metrics.

    Raises:
        ConfigurationError: the target cannot be used.
        FolderInUseError: another server writes to the folder.
    """

    def __init__(self, target: str | Path, options: ServeOptions, traffic: Traffic, name: str = "log") -> None:
        self._sink: Sink = sink_for(target)
        self._options, self._count = options, functools.partial(traffic.count_logged, name)
        self._retry = Retry(f"the log of served rows ({self._sink.label})", cap=_LONGEST_WAIT)
        self._takes_rows_of = functools.lru_cache(maxsize=1)(self._is_accepted)  # of the reader that is used now
        self._entries: deque[_LogEntry] = deque()
        self._queued = 0  # number of rows that are not written yet
        self._wake = threading.Condition()
        self._stop_by: float | None = None  # time at which `close` gives up writing; None before `close`
        traffic.add_log_metrics(name, lambda: self._queued, lambda: self._retry.failures > 0)
        self._thread = threading.Thread(target=self._run, name="served-rows", daemon=True)
        self._thread.start()

    @staticmethod
    def check(reader: RowReader) -> None:
        """Check that no column of the rows has the name of a column that the log adds.

        Raises:
            ConfigurationError: a column has such a name.
        """
        names = set(reader.logged) - ({SERVED_AT} if reader.event_time == SERVED_AT else set())
        if taken := [name for name in LOG_COLUMNS if name in names]:
            raise ConfigurationError(
                f"serve: the log of served rows has the columns {', '.join(LOG_COLUMNS)}; the model reads a column "
                f"{taken[0]!r} of its own; rename that column"
            )

    def _is_accepted(self, reader: RowReader) -> bool:
        """Return whether the rows of a network can be logged; log the reason if not.

        A later version may have another network than the one that the server began with.
        """
        try:
            self.check(reader)
        except ConfigurationError as error:
            logger.error("answered rows are not logged: %s", error)
            return False
        return True

    def add(
        self, request: str, scored: ScoredRequest, recommended: Mapping[str, Any] | None = None
    ) -> asyncio.Future | None:
        """Queue an answer; return a future for its durable write, or None.

        The future exists only if `options.log_wait` is set and the answer is logged.
        """
        rows, options = len(scored.good), self._options
        if not rows:
            return None
        if recommended is None and not self._takes_rows_of(scored.reader):
            self._count("unusable", rows)
            return None
        if options.log_share < 1 and hash_to_unit(np.array([request]), _SHARE_SEED)[0] >= options.log_share:
            self._count("left_out", rows)
            return None
        with self._wake:
            if self._queued + rows > options.log_queue_rows or self._stop_by is not None:
                self._count("queue_full", rows)
                return None
            written = asyncio.get_running_loop().create_future() if options.log_wait else None
            self._entries.append(_LogEntry(request, time.time(), scored, written, recommended))
            self._queued += rows
            self._wake.notify()
        return written

    def close(self, seconds: float) -> None:
        """Write the queued rows for up to `seconds`, then release the target."""
        with self._wake:
            self._stop_by = time.monotonic() + seconds
            self._wake.notify()
        self._thread.join(seconds)
        self._retry.stop()
        self._thread.join()
        if self._queued:
            self._count("stopped", self._queued)
            logger.warning("%d answered rows were not logged before the server stopped", self._queued)
        self._sink.close()

    def _run(self) -> None:
        while batch := self._next_batch():
            lines = [line for entry in batch for line in self._lines(entry)]
            refused = self._write_with_retries(lines)
            if refused is None:
                return
            self._count("written", len(lines) - refused)
            self._count("refused", refused)
            with self._wake:
                self._queued -= sum(len(entry.scored.good) for entry in batch)
            for entry in batch:
                if entry.written is not None:
                    entry.written.get_loop().call_soon_threadsafe(_complete, entry.written)

    def _next_batch(self) -> list[_LogEntry]:
        batch: list[_LogEntry] = []
        with self._wake:
            self._wake.wait_for(lambda: self._entries or self._stop_by is not None)
            rows = 0
            while self._entries and rows < _BATCH_ROWS:
                batch.append(self._entries.popleft())
                rows += len(batch[-1].scored.good)
        return batch

    def _write_with_retries(self, lines: Sequence[bytes]) -> int | None:
        """Write lines, with retries; return the number refused, or None on shutdown."""
        while True:
            if not self._retry.wait(_LONGEST_WAIT):
                if self._stop_by is not None and time.monotonic() >= self._stop_by:
                    return None
                continue
            try:
                refused = self._sink.append(lines) if lines else 0
            except self._sink.errors as error:
                self._retry.failed(error)
                continue
            self._retry.succeeded()
            return refused

    def _lines(self, entry: _LogEntry) -> list[bytes]:
        """Return an answer's rows as JSON lines; skip and count unusable rows."""
        scored, ids = entry.scored, row_ids(entry.id, entry.scored.request.count)
        scores = (scored.outputs[0] if scored.probability is None else scored.probability).tolist()
        if scored.tasks:
            by_task = zip(*(prediction.tolist() for prediction, _ in scored.tasks.values()), strict=True)
            scores = [dict(zip(scored.tasks, row, strict=True)) for row in by_task]
        reader, lines = scored.reader, []
        timestamp = datetime.datetime.fromtimestamp(entry.time, datetime.timezone.utc).isoformat()
        log_columns = {SERVED_AT: timestamp, "version": scored.current.version, "share": self._options.log_share}
        if entry.recommended is not None:
            return [_json({**log_columns, "request_id": entry.id, **entry.recommended})]
        raw_rows = reader.raw_rows(scored.request, scored.good.tolist())
        for row, values, score in zip(scored.good.tolist(), raw_rows, scores, strict=True):
            line = {**values, **log_columns, "request_id": ids[row], "score": score}
            if reader.event_time is not None:
                line[reader.event_time] = reader.time_of(values, scored.request, entry.time)
            try:
                lines.append(_json(line))
            except (TypeError, ValueError) as error:
                self._count("unusable", 1)
                logger.warning("a row of request %s cannot be logged: %s", entry.id, error)
        return lines


def _complete(future: asyncio.Future) -> None:
    if not future.done():
        future.set_result(None)


def _json(row: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(row)
    except TypeError:  # orjson does not support integers of more than 64 bits
        return json.dumps(row, separators=(",", ":"), allow_nan=False).encode()
