"""A stream that reads Redis Streams.

Needs redis-py (extra ``redis``) and Redis 6.2 or later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from ...checks import require, whole
from ...errors import ConfigurationError, StreamError
from ...masking import mask_text, remember_secret
from ..batch import Cursor, Offset, Position, Span, cursors_of
from ..dead_letter import DeadLetter
from ..formats.decode import MAX_RECORD_BYTES
from ..formats.schema import Schema
from .broker_stream import BrokerStream, ReadMarks, checksum
from .redis_removals import Id, Removals, format_id, parse_id

_REMOVED = "@removed:"  # a position holds under "@removed:<key>" the id up to which removals were accepted
_LAST_SEQUENCE = 2**64 - 1
_BLOCK_SECONDS = 0.5  # longest blocking call, so that `close` takes effect and dead connections are noticed
_CHECK_SECONDS = 60.0  # interval of checks that an entry read earlier is still the same


class RedisStream(BrokerStream):
    """A stream of the entries in one or several Redis stream keys.

    One field of an entry contains a payload, JSON or Arrow IPC; or the fields of an entry are the columns of one row,
    as text. Entries are read by id, without a consumer group. A position is ``{key: [id, row]}`` with the next row to
    read of each key.

    Entries of several keys are merged by id, so by the time of the server's clock. The order is the same in every run
    if the server generates the ids (``XADD key *``).

    If unread entries were removed (XDEL, XTRIM, MAXLEN, a key deleted or created again), StreamError describes the
    loss; see `on_missing`. Choose a large MAXLEN, so that the last read entry is kept: once it is trimmed, Redis cannot
    tell whether unread entries were trimmed, too. Removals between unread entries are detected with Redis 7 or later. A
    key that was recreated with the same ids is detected as long as a certain entry before the position exists: a
    checkpoint stores its checksum (``"@mark:key"``), which is compared on resume and once a minute.

    Several processes divide the keys: keys sorted by name go to the ranks in turn.

    Args:
        keys: one stream key, or several.
        schema: a `Schema`, or a mapping of its arguments. None uses the columns of the Trainer's features.
        url: URL of the server as redis-py takes it, including "unix://path.sock".
        field: name of the field with the payload; None if the fields of an entry are the columns.
        format: "json", "arrow" or "auto".
        list_delimiter: delimiter between the values of a list, if fields are columns.
        start: where to begin without a position: "0" (the oldest entry), "$" (after the newest) or an id.
        count: number of entries fetched per key in one call.
        on_missing: what to do if unread entries were removed: "error", or "skip" to warn and continue with the first
            available entry.
        dead_letter: file for bad records, or a `DeadLetter`.
        max_bad_share: largest share of bad records. None uses the share of `dead_letter`, which is 0.01 by default.
        max_record_bytes: maximum size of a message in bytes; a larger message is a bad row.
        give_up_after: seconds of unbroken failure after which StreamError is raised; None to retry forever.

    Raises:
        ConfigurationError: redis-py is missing, or an option is invalid.
    """

    def __init__(
        self,
        keys: str | Sequence[str],
        schema: Schema | Mapping[str, Any] | None = None,
        *,
        url: str = "redis://localhost:6379/0",
        field: str | None = "data",
        format: str = "auto",
        list_delimiter: str = " ",
        start: str = "0",
        count: int = 1000,
        on_missing: str = "error",
        dead_letter: DeadLetter | str | Path | None = None,
        max_bad_share: float | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
        give_up_after: float | None = None,
    ) -> None:
        self.keys = [keys] if isinstance(keys, str) else list(keys)
        if not self.keys or len(set(self.keys)) != len(self.keys):
            raise ConfigurationError(f"keys takes one or several different names; received {keys!r}")
        whole("count", count)
        source, server = f"redis {', '.join(self.keys)}", f"Redis at {mask_text(url)}"
        super().__init__(
            source, server, schema, format, on_missing, dead_letter, max_bad_share, max_record_bytes, give_up_after
        )
        self.start = start if start == "$" else format_id(parse_id(start, "start"))
        self.field, self.list_delimiter, self.count = field, list_delimiter, count
        self._all_keys = tuple(self.keys)
        self._rank_and_world: tuple[int, int] | None = None
        self._redis, self._client = connect(url)
        errors = self._redis.exceptions
        self._errors = (errors.ConnectionError, errors.TimeoutError, errors.ResponseError)
        self._marks = ReadMarks(parse_id)
        self._restart_at({})

    def assign_partitions(self, rank: int, world: int) -> None:
        """Read only every `world`-th key in name order, from index `rank` on."""
        if self._rank_and_world == (rank, world):
            return
        self._rank_and_world = rank, world
        mine = sorted(self._all_keys)[rank::world]
        self.keys = [key for key in self._all_keys if key in mine]  # in the given order, which breaks ties between ids
        self._restart_at({})

    def _restart_at(self, position: Position) -> None:
        """Drop the fetched entries and continue at `position`."""
        self._clear()
        self._position = {}
        self._last_read: dict[str, Id] = {}  # by key: id of the last entry read
        self._resume_rows = {}
        self._removals: dict[str, Removals] = {}
        self._buffers: dict[str, deque[tuple[Id, Mapping[bytes, bytes]]]] = {key: deque() for key in self.keys}
        self._final_before: dict[str, Id] = {}  # by key: no more entries with a lower id can arrive
        self._next_check = 0.0
        for key in self.keys:
            if key in position:
                cursor, accepted = Cursor.of(position[key]), parse_id(position.get(_REMOVED + key, "0-0"))
                self._start_at(key, parse_id(cursor.offset, f"position of {key!r}"), cursor.row, True, accepted)
            elif self.start != "$":
                self._start_at(key, parse_id(self.start))

    def _start_at(self, key: str, at: Id, row: int = 0, resumed: bool = False, accepted: Id = (0, 0)) -> None:
        cursor = Cursor(format_id(at), row)
        self._position[key] = cursor.to_json()
        self._last_read[key] = _id_before(at)
        self._removals[key] = Removals(resumed and at > (0, 1), accepted)
        if row:
            self._resume_rows[key] = cursor

    def _find_newest(self) -> None:
        """Ask the server for the newest entry of the keys that start after it."""
        for key in self.keys:
            if key not in self._last_read:
                last = self._client.xrevrange(key, count=1)
                self._start_at(key, _id_after(parse_id(last[0][0])) if last else (0, 1))

    def position(self) -> Position:
        """Return the position after the rows returned so far.

        With ``start="$"``, the first call asks the server and waits up to 30 seconds for the answer.

        Raises:
            StreamError: the server did not answer.
        """
        self._retry_until(
            self._find_newest, lambda: len(self._last_read) == len(self.keys), "the newest entry is unknown"
        )
        return dict(self._position)

    def seek(self, position: Position) -> None:
        """Continue reading at `position`; keys missing from it begin at `start`.

        Raises:
            StreamError: the position has an invalid id, or a key that this stream does not read.
        """
        cursors_of(self, position, self._all_keys)
        try:
            self._restart_at(position)
            self._marks.begin(position)
        except (TypeError, ValueError) as error:
            raise StreamError(f"a position of RedisStream is {{key: [id, row]}}; received {position!r}") from error

    def _handle_failure(self, error: Any) -> None:
        errors = self._redis.exceptions
        passing: tuple[type[Exception], ...] = (errors.ConnectionError, errors.TimeoutError, errors.ReadOnlyError)
        passing += (errors.TryAgainError, errors.MasterDownError, errors.ClusterDownError)
        is_passing = isinstance(error, passing) or str(error).startswith("UNBLOCKED")  # the server became a replica
        if isinstance(error, errors.AuthenticationError | errors.AuthorizationError) or not is_passing:
            raise StreamError(f"{self._retry.label} refuses: {error}") from error
        self._retry.failed(error)

    def _attempt(self, action: Callable[[], None], timeout: float) -> bool:
        def locked() -> None:
            with self._lock:
                if not self._closed:
                    action()

        return super()._attempt(locked, timeout)

    def _fetch(self, max_rows: int, timeout: float) -> None:
        deadline = monotonic() + timeout
        read = self._attempt(self._read, timeout)
        remaining = deadline - monotonic()
        if read and remaining > 0 and not self._ready:
            self._attempt(lambda: self._wait_for_entries(remaining), remaining)

    def _read(self) -> None:
        """Fetch the next entries of each key in one transaction; push the ordered ones."""
        if not self.keys:
            return
        self._find_newest()
        wanted = [key for key in self.keys if len(self._buffers[key]) < self.count]
        check = monotonic() >= self._next_check
        marks = {key: self._marks.before(key, Cursor.of(self._position[key])) for key in wanted} if check else {}
        marked = {key: mark for key, mark in marks.items() if mark is not None}
        with self._client.pipeline(transaction=True) as pipe:
            pipe.time()
            for key in wanted:
                pipe.xinfo_stream(key)
                pipe.xread({key: format_id(self._last_read[key])}, count=self.count)
            for key, mark in marked.items():
                pipe.xrange(key, mark.offset, mark.offset)
            (seconds, micros), *answers = pipe.execute(raise_on_error=False)
        rereads = dict(zip(marked, answers[2 * len(wanted) :], strict=True))
        # New entries may still get an id of the current millisecond, but not of an earlier one.
        now = (seconds * 1000 + micros // 1000, 0)
        for key, info, answer in zip(wanted, answers[::2], answers[1::2], strict=False):
            for error in (info, answer, rereads.get(key)):
                if isinstance(error, Exception) and "no such key" not in str(error):
                    raise error
            if rereads.get(key) and checksum(_content_of(rereads[key][0][1])) != marked[key].checksum:
                self._restart_replaced_key(key, marked[key].offset, info)
                continue
            entries = [(parse_id(name), fields) for name, fields in _entries(answer)]
            full = len(entries) == self.count
            if self._check_removals(key, None if isinstance(info, Exception) else info, entries, full):
                self._buffers[key].extend(entries)
                self._last_read[key] = entries[-1][0] if entries else self._last_read[key]
            self._final_before[key] = _id_after(self._last_read[key]) if full else now
        self._next_check = monotonic() + _CHECK_SECONDS if check else self._next_check
        self._deliver()

    def _restart_replaced_key(self, key: str, at: Offset, info: Mapping[str, Any]) -> None:
        """Restart a key whose entry `at` has changed, or raise if `on_missing` is "error"."""
        self._report_loss(
            f"stream {key!r} holds another entry {at} than the one that was read there: it was deleted and created "
            f"again, or is another one; it holds {info['length']} entries, none of which was read"
        )
        self._marks.forget(key)
        self._buffers[key].clear()
        self._resume_rows.pop(key, None)
        self._removals[key] = Removals(False)
        self._last_read[key] = self._final_before[key] = (0, 0)

    def _check_removals(self, key: str, info: Any, entries: list[tuple[Id, Any]], full: bool) -> bool:
        """Check for removed unread entries; return False if the key restarts."""
        resume_id = parse_id(self._resume_rows[key].offset) if key in self._resume_rows else (0, 0)
        partly_read = resume_id if resume_id > self._last_read[key] else None
        loss = self._removals[key].find_loss(info, self._last_read[key], [at for at, _ in entries], full, partly_read)
        if loss is None:
            return True
        self._resume_rows.pop(key, None)
        self._report_loss(f"stream {key!r} {loss.message}")
        self._removals[key].accepted = max(self._removals[key].accepted, loss.up_to)
        if loss.restart:
            self._last_read[key] = (0, 0)
        return not loss.restart

    def resolve(self, position: Position) -> Position:
        accepted = {key: removals.accepted for key, removals in list(self._removals.items())}
        removed = {_REMOVED + key: format_id(at) for key, at in accepted.items() if at > (0, 0)}
        return self._marks.resolve(position) | removed

    def _deliver(self) -> None:
        # A single key needs no merging, so its newest entries are delivered at once.
        is_single = len(self.keys) == 1
        final_before = min(self._final_before.values())
        entries = []
        for key, buffer in self._buffers.items():
            while buffer and (is_single or buffer[0][0] < final_before):
                entries.append((key, *buffer.popleft()))
        if not is_single:
            entries.sort(key=lambda item: (item[1], self.keys.index(item[0])))
        if not entries:
            return
        origins = [Span(key, format_id(at), 0, 0, format_id(_id_after(at))) for key, at, _ in entries]
        self._marks.add(origins, lambda index: _content_of(entries[index][2]))
        if self.field is None:
            decoded = self._decoder.decode_fields([fields for _, _, fields in entries], self.list_delimiter)
        else:
            name = self.field.encode()
            decoded = self._decoder.decode([fields.get(name, b"") for _, _, fields in entries])
        self._push_messages(decoded, origins)

    def _wait_for_entries(self, timeout: float) -> None:
        if not self.keys or any(self._buffers.values()):
            # Buffered entries can be delivered once the millisecond of the newest id has passed.
            self._retry.pause(min(timeout, 0.001) if self.keys else timeout)
            return
        block = max(1, int(1000 * min(timeout, _BLOCK_SECONDS)))
        self._client.xread({key: format_id(at) for key, at in self._last_read.items()}, count=1, block=block)

    def lag(self) -> int | None:
        """Return the number of entries waiting, or None if unknown.

        It is estimated from the times in the ids of the oldest, the newest and the last read entry.
        """
        waiting = self._ready_rows + sum(len(buffer) for buffer in self._buffers.values())
        try:
            for key, cursor in list(self._last_read.items()):
                last, first = self._client.xrevrange(key, count=1), self._client.xrange(key, count=1)
                if last and parse_id(last[0][0]) > cursor:
                    newest, oldest = parse_id(last[0][0])[0], parse_id(first[0][0])[0]
                    unread_share = (newest - cursor[0]) / (newest - oldest) if newest > oldest else 1.0
                    waiting += max(1, round(self._client.xlen(key) * min(1.0, unread_share)))
        except self._redis.exceptions.RedisError:
            return None
        return waiting

    def _disconnect(self) -> None:
        self._client.close()


def connect(url: str) -> tuple[Any, Any]:
    """Return the module redis, and a client that connects on first use.

    Raises:
        ConfigurationError: redis-py is missing or rejects the URL.
    """
    redis = require("redis", "Redis needs redis-py", "redis")
    from redis.backoff import NoBackoff
    from redis.retry import Retry as ClientRetry

    try:
        client = redis.Redis.from_url(
            url,
            decode_responses=False,
            socket_connect_timeout=5.0,
            socket_timeout=_BLOCK_SECONDS + 10.0,
            retry=ClientRetry(NoBackoff(), 0),
        )
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"url takes what redis-py does, such as redis://localhost:6379/0: {error}") from error
    remember_secret(client.connection_pool.connection_kwargs.get("password"))
    return redis, client


def _entries(answer: Any) -> list[Any]:
    """Return the entries in an XREAD answer for one key; RESP3 answers are mappings."""
    if not answer:
        return []
    if isinstance(answer, Mapping):
        (entries,) = answer.values()
        return entries[0] if entries and isinstance(entries[0], list) else entries
    return answer[0][1]


def _content_of(fields: Mapping[bytes, bytes]) -> list[bytes]:
    return [part for field in fields.items() for part in field]


def _id_after(at: Id) -> Id:
    return (at[0], at[1] + 1) if at[1] < _LAST_SEQUENCE else (at[0] + 1, 0)


def _id_before(at: Id) -> Id:
    if at[1]:
        return at[0], at[1] - 1
    return (at[0] - 1, _LAST_SEQUENCE) if at[0] else (0, 0)
