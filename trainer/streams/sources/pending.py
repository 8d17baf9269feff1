"""State of a join: unmerged rows, impressions waiting for a label, and outcomes.

Rows and outcomes are kept for some rounds after they leave the join, so that a checkpoint can store the state at the
end of an earlier round.
"""

from __future__ import annotations

import base64
import heapq
import zlib
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from ...errors import ConfigurationError, DataError
from ..base import Stream
from ..batch import Batch, Position, advance, far_ahead
from ..formats.ragged_column import Ragged

_WAITING = -1
_READ_ROWS = 4096


class Side:
    """One of the two streams of a join, with its unmerged rows and its event time.

    Attributes:
        head: rows read but not merged yet, or None.
        clock: merge order of the rows in `head`: running maximum of their event times, float64 [rows].
        reached: event time up to which rows were merged.
        position: position after the last merged row.
    """

    def __init__(self, stream: Stream, name: str, key: str) -> None:
        self.stream, self.name, self.key = stream, name, key
        self.position: Position = {}
        self.reset(float("-inf"))

    def reset(self, reached: float) -> None:
        """Drop the unmerged rows and set the event time reached."""
        self.head: Batch | None = None
        self.reached = reached
        self.idle_since: float | None = None
        self.clock = np.empty(0)

    def seek(self, position: Position, reached: float) -> None:
        """Continue at `position`; `reached` is the event time there."""
        self.stream.seek(position)
        self.reset(reached)
        self.position = position

    def lag(self) -> int | None:
        """Return the number of rows that are unread or unmerged, or None if unknown."""
        upstream = self.stream.lag()
        return None if upstream is None else upstream + (0 if self.head is None else self.head.rows)

    def poll(self, timeout: float) -> None:
        """Read rows unless unmerged rows are left."""
        if self.head is not None:
            return
        batch = self.stream.poll(_READ_ROWS, timeout)
        if batch is None:
            return
        if batch.event_time is None or self.key not in batch.columns:
            absent = "event time" if batch.event_time is None else self.key
            raise DataError(f"the {self.name} of a join need {absent!r}; received columns {list(batch.columns)}")
        if self.stream.schema is None:  # a stream with a schema has removed such rows already
            for reason in far_ahead(batch.event_time, self.stream.max_future).values():
                raise DataError(f"the {self.name} of a join: {reason}; it would make waiting impressions negative")
        self.head = batch
        # The running maximum keeps the rows of a stream in their order, even if event times are out of order.
        self.clock = np.maximum.accumulate(np.maximum(batch.event_time, self.reached))
        self.idle_since = None

    def bound(self, idle_timeout: float | None) -> float:
        """Return the time up to which the other stream may be merged.

        It is a lower bound of the event times still to come, or infinity if this stream has ended or is idle.
        """
        if self.head is not None:
            return float(self.clock[-1])
        if self.stream.exhausted:
            return float("inf")
        if self.stream.retrying:
            self.idle_since = None
            return self.reached
        now = monotonic()
        if self.idle_since is None:
            self.idle_since = now
        idle = idle_timeout is not None and now - self.idle_since >= idle_timeout
        return float("inf") if idle else self.reached

    def take(self, rows: int) -> tuple[Batch | None, np.ndarray]:
        """Remove the first `rows` unmerged rows and return them with their clock."""
        if not rows or self.head is None:
            return None, np.empty(0)
        taken, rest = self.head.split(rows)
        clock, self.clock = self.clock[:rows], self.clock[rows:]
        self.head = rest if rest.rows else None
        self.reached = float(clock[-1])
        self.position = advance(self.position, taken)
        return taken, clock


class _Chunk:
    """Impressions that arrived together in round `arrived`, numbered from `first` on.

    Attributes:
        left: round in which each row left, or `_WAITING`, int64 [rows].
        rank: index of each row in the output of that round, or -1 if it was not returned, int64 [rows].
        label: label of each row, float64 [rows].
    """

    def __init__(self, first: int, arrived: int, columns: dict[str, np.ndarray], times: np.ndarray) -> None:
        self.first, self.arrived, self.columns, self.times = first, arrived, columns, times
        self.left = np.full(len(times), _WAITING, dtype=np.int64)
        self.rank = np.full(len(times), -1, dtype=np.int64)
        self.label = np.zeros(len(times))


class PendingRows:
    """Impressions in order of arrival; rows that left are kept until `forget`.

    Attributes:
        count: number of impressions added so far.
    """

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self.count = 0

    def add(self, arrived: int, columns: dict[str, np.ndarray], times: np.ndarray) -> int:
        """Add impressions; return the number of the first."""
        first = self.count
        self._chunks.append(_Chunk(first, arrived, columns, times))
        self.count += len(times)
        return first

    def _held(self, numbers: np.ndarray) -> list[tuple[_Chunk, np.ndarray, np.ndarray]]:
        """Return the chunks of `numbers`, with row indexes and indexes in `numbers`."""
        where = np.searchsorted([chunk.first for chunk in self._chunks], numbers, side="right") - 1
        chosen = [(self._chunks[c], np.flatnonzero(where == c)) for c in np.unique(where)]
        return [(chunk, numbers[indices] - chunk.first, indices) for chunk, indices in chosen]

    def gather(self, numbers: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the columns and times of rows, in the order of `numbers`."""
        held = self._held(numbers)
        back = np.argsort(np.concatenate([indices for _, _, indices in held]))
        columns = {
            name: np.concatenate([chunk.columns[name][rows] for chunk, rows, _ in held])[back]
            for name in held[0][0].columns
        }
        return columns, np.concatenate([chunk.times[rows] for chunk, rows, _ in held])[back]

    def pack(self, numbers: np.ndarray, *labels: np.ndarray) -> list[Any]:
        """Encode the columns and times of rows, and `labels`, for `unpack_rows`."""
        if not len(numbers):
            return [None, None, *map(pack, labels)]
        columns, times = self.gather(numbers)
        return [{name: pack(column) for name, column in columns.items()}, pack(times), *map(pack, labels)]

    def leave(self, numbers: np.ndarray, left: int, ranks: np.ndarray, labels: np.ndarray) -> None:
        """Record that rows left in round `left`, with their ranks and labels.

        The rank is the row's index in the output of that round, or -1 if the row was not returned.
        """
        for chunk, rows, indices in self._held(numbers):
            chunk.left[rows], chunk.rank[rows], chunk.label[rows] = left, ranks[indices], labels[indices]

    def waiting_after(self, done: int) -> np.ndarray:
        """Return the numbers of the rows still waiting at the end of round `done`."""
        parts = [
            chunk.first + np.flatnonzero((chunk.left == _WAITING) | (chunk.left > done))
            for chunk in self._chunks
            if chunk.arrived <= done
        ]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def output_of(self, left: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows in the output of round `left` from `rank` on, and their labels."""
        parts = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
        for chunk in self._chunks:
            rows = np.flatnonzero((chunk.left == left) & (chunk.rank >= rank))
            parts.append((chunk.first + rows, chunk.rank[rows], chunk.label[rows]))
        numbers, ranks, labels = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(ranks, kind="stable")
        return numbers[order], labels[order]

    def forget(self, before: int) -> None:
        """Drop chunks whose impressions all left before round `before`."""
        self._chunks = [chunk for chunk in self._chunks if not ((chunk.left != _WAITING) & (chunk.left < before)).all()]

    @property
    def rows(self) -> int:
        """Number of rows held in memory."""
        return sum(len(chunk.times) for chunk in self._chunks)


class WaitingImpressions:
    """Numbers of the impressions that wait for an outcome, by key and by time."""

    def __init__(self) -> None:
        self.rows = 0
        self._by_key: dict[Any, list[tuple[float, int]]] = {}
        self._by_time: list[tuple[float, int, Any]] = []  # a heap; impressions that left stay until they are at its top

    def add(self, key: Any, time: float, number: int) -> None:
        """Add an impression."""
        self.rows += 1
        self._by_key.setdefault(key, []).append((time, number))
        heapq.heappush(self._by_time, (time, number, key))

    def match(self, key: Any, time: float, early: float, within: float) -> list[int]:
        """Remove the impressions that match an outcome at `time`; return their numbers."""
        held = self._by_key.get(key, ())
        matches = [(since, number) for since, number in held if since - early <= time <= since + within]
        for since, number in matches:
            self._remove(key, since, number)
        return [number for _, number in matches]

    def expire(self, now: float, within: float) -> list[int]:
        """Remove impressions whose limit has passed; return their numbers."""
        left = []
        while self._by_time and self._by_time[0][0] + within < now:
            left += self._remove_oldest()
        return left

    def keep(self, most: int) -> list[int]:
        """Remove the oldest impressions beyond `most`; return their numbers."""
        left = []
        while self.rows > most:
            left += self._remove_oldest()
        return left

    def clear(self) -> list[int]:
        """Remove all impressions; return their numbers in ascending order."""
        numbers = sorted(number for held in self._by_key.values() for _, number in held)
        self.rows, self._by_key, self._by_time = 0, {}, []
        return numbers

    def _remove_oldest(self) -> list[int]:
        time, number, key = heapq.heappop(self._by_time)
        return [number] if self._remove(key, time, number) else []

    def _remove(self, key: Any, time: float, number: int) -> bool:
        """Remove an impression; return whether it was still waiting."""
        held = self._by_key.get(key, [])
        if (time, number) not in held:
            return False
        held.remove((time, number))
        self.rows -= 1
        if not held:
            del self._by_key[key]
        return True


@dataclass(eq=False, slots=True)
class Outcome:
    """An outcome kept for impressions still to come.

    Attributes:
        arrived: round in which the outcome arrived.
        matched: whether it has matched an impression.
        value: label that it gives to an impression.
        left: round in which it was dropped, or None.
    """

    key: Any
    time: float
    arrived: int
    matched: bool
    value: float = 1.0
    left: int | None = None


class OutcomeBuffer:
    """Outcomes by key; dropped outcomes stay in a log until `forget`."""

    def __init__(self) -> None:
        self._by_key: dict[Any, list[Outcome]] = {}
        self._queue: list[tuple[float, int, Outcome]] = []  # heap ordered by event time, then by arrival
        self._log: list[Outcome] = []
        self._count = 0

    def add(self, outcome: Outcome) -> None:
        """Add an outcome."""
        self._by_key.setdefault(outcome.key, []).append(outcome)
        self._log.append(outcome)
        self._count += 1
        heapq.heappush(self._queue, (outcome.time, self._count, outcome))

    def of(self, key: Any) -> list[Outcome]:
        """Return the outcomes of a key."""
        return self._by_key.get(key, [])

    def match(self, key: Any, since: float, until: float) -> float | None:
        """Mark the outcomes of a key from `since` to `until` as matched.

        Returns:
            The value of the earliest of them, or None if there is none.
        """
        matches = [entry for entry in self.of(key) if since <= entry.time <= until]
        for entry in matches:
            entry.matched = True
        return min(matches, key=lambda entry: entry.time).value if matches else None

    def drop(self, before: float, left: int, most: int | None = None) -> int:
        """Drop the outcomes before a time, and the oldest ones beyond `most`.

        Args:
            before: event time.
            left: the current round.
            most: largest number of outcomes to keep; None for no limit.

        Returns:
            How many of the dropped outcomes had matched no impression.
        """
        unmatched = 0
        while self._queue and (self._queue[0][0] < before or (most is not None and len(self._queue) > most)):
            outcome = heapq.heappop(self._queue)[2]
            outcome.left = left
            unmatched += not outcome.matched
            held = self._by_key[outcome.key]
            held.remove(outcome)
            if not held:
                del self._by_key[outcome.key]
        return unmatched

    def forget(self, before: int) -> None:
        """Remove outcomes dropped before round `before` from the log."""
        self._log = [o for o in self._log if o.left is None or o.left >= before]

    def pack(self, done: int) -> list[Any]:
        """Return the outcomes held at the end of round `done`, encoded as JSON."""
        held = [o for o in self._log if o.arrived <= done and (o.left is None or o.left > done)]
        return [pack(np.array(values)) for values in zip(*map(_values, held), strict=True)]

    def restore(self, packed: list[Any], arrived: int) -> None:
        """Add outcomes encoded by `pack`, as if they had arrived in round `arrived`."""
        if packed:
            for key, time, matched, *value in zip(*(unpack(values).tolist() for values in packed), strict=True):
                self.add(Outcome(key, time, arrived, matched, *value))


def _values(outcome: Outcome) -> tuple[Any, ...]:
    return outcome.key, outcome.time, outcome.matched, outcome.value


def pack(array: Any) -> list[Any]:
    """Encode an array or `Ragged` as JSON: dtype, shape and compressed bytes."""
    if isinstance(array, Ragged):
        array = array[:]
        return [pack(array.values), pack(array.offsets), array.options]
    array = np.ascontiguousarray(array)
    return [array.dtype.str, list(array.shape), base64.b64encode(zlib.compress(array.tobytes(), 1)).decode("ascii")]


def unpack(packed: list[Any]) -> Any:
    """Decode the output of `pack`; raise ValueError for anything else."""
    dtype, shape, text = packed
    if isinstance(dtype, list):
        try:
            return Ragged(unpack(dtype), unpack(shape), **text)
        except (TypeError, ConfigurationError) as error:
            raise ValueError(f"damaged lists: {error}") from error
    if np.dtype(dtype) == object and 0 in shape:  # empty lists
        return np.empty(shape, object)
    try:
        data = zlib.decompress(base64.b64decode(text))
    except zlib.error as error:
        raise ValueError(f"damaged array: {error}") from error
    return np.frombuffer(bytearray(data), np.dtype(dtype)).reshape(shape)


def keep_share(keys: np.ndarray, seed: int) -> np.ndarray:
    """Hash each key and the seed to a number in [0, 1).

    Keys are mixed by the finaliser of SplitMix64 (Steele, Lea and Flood, 2014). Text is first hashed to 64 bits with
    CRC-32 and Adler-32.
    """
    if keys.dtype.kind in "iub":
        mixed = keys.astype(np.int64).view(np.uint64).copy()
    else:
        texts = [str(key).encode("utf-8") for key in keys.tolist()]
        mixed = np.array([zlib.crc32(text) | (zlib.adler32(text) << 32) for text in texts], dtype=np.uint64)
    mixed += np.uint64((0x9E3779B97F4A7C15 * (seed + 1)) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53


def unpack_rows(columns: Any, times: Any, *labels: Any) -> list[Any]:
    """Decode the output of `PendingRows.pack`; None for columns without rows."""
    if times is None:
        return [None, None, *labels]
    return [{name: unpack(own) for name, own in columns.items()}, unpack(times), *map(unpack, labels)]
