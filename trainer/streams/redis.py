"""Redis Streams as a stream. Needs redis-py, the extra ``redis``; the server must be 6.2 or newer."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from ..checks import whole
from ..errors import ConfigurationError, StreamError
from ..hooks import mask_text, remember_secret
from .base import Position, require_partitions
from .broker_stream import BrokerStream
from .dead_letter import DeadLetter
from .schema import Schema

logger = logging.getLogger(__name__)

Id = tuple[int, int]
_LAST_SEQUENCE = 2**64 - 1
# How long a call blocks at most, so that `close` is noticed and a dead connection found out.
_BLOCK_SECONDS = 0.5


class RedisStream(BrokerStream):
    """Entries of one or several Redis stream keys.

    An entry carries a payload, JSON or Arrow IPC, in one field; or its fields are the columns of one row, as text.
    Entries are read by id, without a consumer group. A position is ``{key: [id, row]}``, the next to read; `commit`
    only notes it in a hash for people and tools, and trims when asked to.

    Several keys are merged by entry id, that is by the server's clock, and so in the same order whenever they are
    read, provided that the ids are made by the server (``XADD key *``).

    When entries after the position have been trimmed away unread, StreamError names the first id there is. Redis
    does not tell the trimming of the last entry read from that of the next one, so the last one read must stay:
    `trim` leaves it, and a MAXLEN must be generous.

    Several processes that train together share the keys: sorted by name they go to the processes in turn.

    Args:
        keys: the stream key, or several.
        schema: what the columns are to be, or a mapping of `Schema`'s arguments.
        url: of the server, as redis-py takes it; "unix://path.sock" works as well.
        field: name of the field with the payload; None: the entry's fields are the columns.
        format: "json", "arrow" or "auto".
        list_delimiter: between the values of a list, where fields are columns.
        start: where to begin without a position: "0" (the oldest entry), "$" (after the newest) or an id.
        count: entries fetched in one call per key.
        commit_key: hash for `commit`; None: the first key with ":position" appended.
        trim: whether `commit` removes the entries before the position.
        on_missing: when unread entries are gone: "error", or "skip" to warn and go on with the first there is.
        dead_letter: file for records that do not fit, or a `DeadLetter`.
        max_bad_share: largest share of such records; None: that of `dead_letter`, 0.01 for a new one.
        give_up_after: seconds of unbroken failure after which StreamError is raised; None: never.

    Raises:
        ConfigurationError: redis-py is missing, or an option is not one of those accepted.
    """

    partitioned = True

    def __init__(
        self,
        keys: str | Sequence[str],
        schema: Schema | Mapping[str, Any],
        *,
        url: str = "redis://localhost:6379/0",
        field: str | None = "data",
        format: str = "auto",
        list_delimiter: str = " ",
        start: str = "0",
        count: int = 1000,
        commit_key: str | None = None,
        trim: bool = False,
        on_missing: str = "error",
        dead_letter: DeadLetter | str | Path | None = None,
        max_bad_share: float | None = None,
        give_up_after: float | None = None,
    ) -> None:
        self.keys = [keys] if isinstance(keys, str) else list(keys)
        if not self.keys or len(set(self.keys)) != len(self.keys):
            raise ConfigurationError(f"keys takes one or several different names; received {keys!r}")
        whole("count", count)
        super().__init__(
            f"redis {', '.join(self.keys)}",
            f"Redis at {mask_text(url)}",
            schema,
            format=format,
            on_missing=on_missing,
            dead_letter=dead_letter,
            max_bad_share=max_bad_share,
            give_up_after=give_up_after,
        )
        self.start = start if start == "$" else _text(_parse(start, "start"))
        self.field, self.list_delimiter, self.count = field, list_delimiter, count
        self.commit_key = commit_key or f"{self.keys[0]}:position"
        self.trim = trim
        self._all_keys = tuple(self.keys)
        self._dealt: tuple[int, int] | None = None
        self._redis, self._client = _connect(url)
        self._reset({})

    def deal(self, rank: int, world: int) -> None:
        """Read only the keys whose place in the order of names leaves `rank` when divided by `world`."""
        if self._dealt == (rank, world):
            return
        self._dealt = rank, world
        mine = sorted(self._all_keys)[rank::world]
        self.keys = [key for key in self._all_keys if key in mine]  # their order decides between equal ids
        self._reset({})

    def _reset(self, position: Position) -> None:
        """Forget what was fetched; cursors are the last ids read, rows to drop those of an entry begun."""
        self._clear()
        self._position = {}
        self._cursors: dict[str, Id] = {}
        self._skip: dict[str, tuple[Id, int]] = {}
        # Whether entries right behind the cursor are known to have been there once.
        self._checked: dict[str, bool] = {}
        self._buffers: dict[str, deque[tuple[Id, Mapping[bytes, bytes]]]] = {key: deque() for key in self.keys}
        self._settled: dict[str, Id] = {}
        for key in self.keys:
            if key in position:
                self._place(key, *position[key], checked=True)
            elif self.start != "$":
                self._place(key, self.start, 0, checked=False)

    def _place(self, key: str, offset: str, row: int, checked: bool) -> None:
        at = _parse(offset, f"position of {key!r}")
        self._position[key] = [_text(at), row]
        self._cursors[key] = _before(at)
        self._checked[key] = checked and at > (0, 1)
        if row:
            self._skip[key] = (at, row)

    def _newest(self) -> None:
        """Place the keys that begin after the newest entry; needs the server."""
        for key in self.keys:
            if key not in self._cursors:
                last = self._client.xrevrange(key, count=1)
                self._place(key, _text(_after(_parse(last[0][0]))) if last else "0-1", 0, checked=False)

    def position(self) -> Position:
        """Return the position after the rows returned so far.

        With ``start="$"`` the first call asks the server, and waits for it up to 30 seconds.

        Raises:
            StreamError: the server did not answer.
        """
        self._insist(self._newest, lambda: len(self._cursors) == len(self.keys), "where '$' is cannot be told")
        return dict(self._position)

    def seek(self, position: Position) -> None:
        """Go on reading at `position`; keys it lacks begin at `start`.

        Raises:
            StreamError: it has something that is no id, or a key that is not read here.
        """
        require_partitions(self, position, self._all_keys)
        try:
            self._reset(position)
        except (TypeError, ValueError) as error:
            raise StreamError(f"a position of RedisStream is {{key: [id, row]}}; received {position!r}") from error

    def _attempt(self, action: Any, timeout: float) -> bool:
        """Do something with the server once its back-off allows; return whether it was done.

        Raises:
            StreamError: the server refuses, or has failed for too long.
        """
        errors = self._redis.exceptions
        if not self._retry.wait(timeout):
            return False
        try:
            with self._lock:
                if self._closed:
                    return False
                action()
        except (errors.AuthenticationError, errors.AuthorizationError) as error:
            raise StreamError(f"{self._retry.what} refuses: {error}") from error
        except (errors.ConnectionError, errors.TimeoutError, errors.ReadOnlyError, errors.TryAgainError) as error:
            self._retry.failed(error)
            return False
        except errors.ResponseError as error:
            raise StreamError(f"{self._retry.what} refuses: {error}") from error
        self._retry.succeeded()
        return True

    def _fetch(self, max_rows: int, timeout: float) -> None:
        deadline = monotonic() + timeout
        while not self._ready and not self._closed:
            read = self._attempt(self._read, max(0.0, deadline - monotonic()))
            if self._ready:
                return
            left = deadline - monotonic()
            if left <= 0:
                return
            if read:
                self._attempt(lambda seconds=left: self._await(seconds), left)

    def _read(self) -> None:
        """Fetch the next entries of every key in one transaction and push those whose order is settled."""
        if not self.keys:
            return
        self._newest()
        wanted = [key for key in self.keys if len(self._buffers[key]) < self.count]
        with self._client.pipeline(transaction=True) as pipe:
            pipe.time()
            for key in wanted:
                pipe.xrange(key, count=1)
                pipe.xread({key: _text(self._cursors[key])}, count=self.count)
            (seconds, micros), *answers = pipe.execute()
        # An id of this millisecond can still be given to an entry; of those before, none.
        now = (seconds * 1000 + micros // 1000, 0)
        for index, key in enumerate(wanted):
            entries = [(_parse(name), fields) for name, fields in _entries(answers[2 * index + 1])]
            self._check_missing(key, answers[2 * index], entries)
            self._buffers[key].extend(entries)
            if entries:
                self._cursors[key] = entries[-1][0]
                self._checked[key] = True
            full = len(entries) == self.count
            self._settled[key] = _after(self._cursors[key]) if full else now
        self._deliver()

    def _check_missing(self, key: str, first: list[Any], entries: list[tuple[Id, Any]]) -> None:
        """Find out whether entries after the cursor have been removed before they were read.

        Raises:
            StreamError: they have, and `on_missing` is "error".
        """
        cursor = self._cursors[key]
        oldest = _parse(first[0][0]) if first else None
        begun = self._skip.get(key)
        if begun and begun[0] > cursor:
            gone = bool(entries) and entries[0][0] != begun[0]
        else:
            gone = self._checked[key] and oldest is not None and oldest > cursor
        if not gone:
            return
        self._skip.pop(key, None)
        self._lost(
            f"entries of {key!r} after {_text(cursor)} may have been trimmed before they were read; "
            f"the first id available is {_text(oldest)}"
        )

    def _deliver(self) -> None:
        buffers = self._buffers
        if len(self.keys) == 1:
            key = self.keys[0]
            taken = [(key, *item) for item in buffers[key]]
            buffers[key].clear()
        else:
            settled = min(self._settled.values())
            taken = []
            for key in self.keys:
                while buffers[key] and buffers[key][0][0] < settled:
                    taken.append((key, *buffers[key].popleft()))
            taken.sort(key=lambda item: (item[1], self.keys.index(item[0])))
        if not taken:
            return
        skip = {}
        for number, (key, at, _) in enumerate(taken):
            if key in self._skip and self._skip[key][0] == at:
                skip[number] = self._skip.pop(key)[1]
            if not self._skip:
                break
        places = [(key, _text(at), _text(_after(at))) for key, at, _ in taken]
        if self.field is None:
            decoded = self._decoder.decode_fields([fields for _, _, fields in taken], self.list_delimiter)
        else:
            name = self.field.encode()
            decoded = self._decoder.decode([fields.get(name, b"") for _, _, fields in taken])
        self._push(self._decoder.batch(decoded, places, skip))

    def _await(self, timeout: float) -> None:
        """Wait on the server until a key has a new entry."""
        if not self.keys:
            self._retry.pause(timeout)
            return
        if any(self._buffers.values()):
            self._retry.pause(min(timeout, 0.001))  # until the millisecond of the newest entry is over
            return
        block = max(1, int(1000 * min(timeout, _BLOCK_SECONDS)))
        self._client.xread({key: _text(at) for key, at in self._cursors.items()}, count=1, block=block)

    def commit(self, position: Position) -> None:
        """Note `position` in the hash and, with `trim`, remove the entries before it; a failure is only logged."""
        errors = self._redis.exceptions
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for key in self.keys:
                    if key not in position:
                        continue
                    pipe.hset(self.commit_key, key, json.dumps(position[key]))
                    if self.trim:
                        # The last entry read stays, as the mark that nothing after it was removed.
                        pipe.xtrim(key, minid=_text(_before(_parse(position[key][0]))), approximate=False)
                pipe.execute()
        except errors.RedisError as error:
            logger.warning("%s: the position could not be noted: %s", self._retry.what, error)

    def lag(self) -> int | None:
        """Return the entries waiting: 0 where there are none, else estimated from the ids' times; None if unknown."""
        waiting = self._ready_rows + sum(len(buffer) for buffer in self._buffers.values())
        try:
            for key, cursor in list(self._cursors.items()):
                last, first = self._client.xrevrange(key, count=1), self._client.xrange(key, count=1)
                if last and _parse(last[0][0]) > cursor:
                    newest, oldest = _parse(last[0][0])[0], _parse(first[0][0])[0]
                    share = (newest - cursor[0]) / (newest - oldest) if newest > oldest else 1.0
                    waiting += max(1, round(self._client.xlen(key) * min(1.0, share)))
        except self._redis.exceptions.RedisError:
            return None
        return waiting

    def _disconnect(self) -> None:
        self._client.close()


def _connect(url: str) -> tuple[Any, Any]:
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry as ClientRetry
    except ImportError as error:
        raise ConfigurationError("RedisStream needs redis-py: pip install 'mindspore-trainer[redis]'") from error
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
    """Return the entries in an XREAD answer on one key: a list of pairs, or a mapping in the newer protocol."""
    if not answer:
        return []
    if isinstance(answer, Mapping):
        (entries,) = answer.values()
        return entries[0] if entries and isinstance(entries[0], list) else entries
    return answer[0][1]


def _parse(text: str | bytes, what: str = "") -> Id:
    """Return an entry id as (milliseconds, sequence)."""
    if isinstance(text, bytes):
        text = text.decode()
    first, _, second = str(text).partition("-")
    try:
        return int(first), int(second or 0)
    except ValueError:
        error = f"{what} takes an entry id such as 1700000000000-0; received {text!r}"
        raise ConfigurationError(error) from None


def _text(at: Id) -> str:
    return f"{at[0]}-{at[1]}"


def _after(at: Id) -> Id:
    return (at[0], at[1] + 1) if at[1] < _LAST_SEQUENCE else (at[0] + 1, 0)


def _before(at: Id) -> Id:
    if at[1]:
        return at[0], at[1] - 1
    return (at[0] - 1, _LAST_SEQUENCE) if at[0] else (0, 0)
